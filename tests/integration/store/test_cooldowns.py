"""Cool-downs shared by several replicas."""

import asyncio

from sqlalchemy import text

from app.domain.delivery import CooldownReport, CooldownScope
from app.domain.model import FailureReason
from app.store.cooldowns import Cooldowns
from app.store.engine import Database

DOWN = CooldownReport(key="r:1", scope=CooldownScope.ROUTE, reason=FailureReason.STALE, status=None, duration_s=0.0, promised=False)


async def test_of_many_replicas_at_once_one_gets_the_probe(database_url: str, database: Database) -> None:
    other = Database(database_url, pool_size=4)
    try:
        stores = [Cooldowns(database), Cooldowns(other)]
        await stores[0].report(DOWN)
        claims = await asyncio.gather(*(stores[number % 2].claim_probe("r:1", 30.0) for number in range(40)))
        assert sum(claims) == 1
    finally:
        await other.close()


async def test_failures_reported_at_once_are_all_counted_in(database: Database) -> None:
    store = Cooldowns(database)
    await asyncio.gather(*(store.report(DOWN) for _ in range(20)))
    (row,) = await store.read()
    assert row.failures == 20
    assert len(row.recent) == 5


async def test_a_reason_that_only_a_newer_replica_knows_is_left_out(database: Database) -> None:
    store = Cooldowns(database)
    await store.report(DOWN)
    await database.fetch(
        text("INSERT INTO cooldowns SELECT 'r:2', scope, 'tired', until_at, promised, failures, NULL, recent FROM cooldowns")
    )
    assert [row.key for row in await store.read()] == ["r:1"]
