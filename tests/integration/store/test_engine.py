"""A database that is away is one error, whatever the way it went, and it is over when the database is back."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.domain.errors import UnavailableError
from app.store import engine
from app.store.embedded import EmbeddedPostgres, start_embedded
from app.store.engine import Database, Statement, async_url, plain_url

ONE = Statement(text("SELECT 1 AS one"))
SLEEP = Statement(text("SELECT pg_sleep(CAST(:seconds AS double precision))"))
Ask = Callable[[Database, float], Awaitable[object]]


async def by_driver(database: Database, seconds: float) -> object:
    return await database.fetch(SLEEP, {"seconds": seconds})


async def by_core(database: Database, seconds: float) -> object:
    return await database.fetch(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})


async def in_transaction(database: Database, seconds: float) -> object:
    async with database.transaction() as connection:
        return await connection.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})


WAYS = pytest.mark.parametrize("ask", [by_driver, by_core, in_transaction], ids=["driver", "core", "transaction"])


@pytest.fixture
async def killer(database_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def kill_all(killer: "asyncpg.Connection[asyncpg.Record]") -> int:
    killed = await killer.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return len(killed)


async def sleeping(killer: "asyncpg.Connection[asyncpg.Record]", count: int = 1) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'"
    async with asyncio.timeout(10.0):
        while await killer.fetchval(query) != count:
            await asyncio.sleep(0.02)


@WAYS
async def test_a_connection_killed_in_the_middle_of_a_statement_is_an_absent_database(
    database: Database, killer: "asyncpg.Connection[asyncpg.Record]", ask: Ask
) -> None:
    asking = asyncio.ensure_future(ask(database, 30.0))
    await sleeping(killer)
    assert await kill_all(killer) >= 1
    with pytest.raises(UnavailableError) as away:
        await asking
    assert away.value.code == "storage_unavailable"
    await ask(database, 0.0)


@WAYS
async def test_connections_that_died_while_nobody_used_them_cost_at_most_one_error_each(
    database: Database, killer: "asyncpg.Connection[asyncpg.Record]", ask: Ask
) -> None:
    await asyncio.gather(*(ask(database, 0.1) for _ in range(2)))
    await kill_all(killer)
    failures = 0
    for _ in range(5):
        try:
            await ask(database, 0.0)
        except UnavailableError:
            failures += 1
    assert failures <= 2
    await ask(database, 0.0)


async def test_a_pool_that_is_used_up_is_an_absent_database_until_a_connection_gets_free(
    database_url: str, killer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    database = Database(database_url, pool_size=2)
    try:
        busy = [asyncio.ensure_future(by_driver(database, engine.POOL_TIMEOUT_S + 1.5)) for _ in range(2)]
        await sleeping(killer, 2)
        began = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError):
            await database.fetch(ONE)
        assert asyncio.get_running_loop().time() - began == pytest.approx(engine.POOL_TIMEOUT_S, abs=1.0)
        await asyncio.gather(*busy)
        assert (await database.fetch(ONE))[0].one == 1
    finally:
        await database.close()


async def test_more_statements_than_connections_wait_for_their_turn(database_url: str) -> None:
    database = Database(database_url, pool_size=2)
    try:
        rows = await asyncio.gather(*(database.fetch(ONE) for _ in range(50)))
        assert [row[0].one for row in rows] == [1] * 50
    finally:
        await database.close()


async def test_a_cancelled_statement_ends_in_the_database_and_its_connection_is_good_again(
    database_url: str, killer: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    database = Database(database_url, pool_size=1)
    try:
        asking = asyncio.ensure_future(by_driver(database, 30.0))
        await sleeping(killer)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await sleeping(killer, 0)
        assert (await database.fetch(ONE))[0].one == 1
    finally:
        await database.close()


async def test_a_broken_rule_is_not_an_absent_database(database: Database) -> None:
    insert = "INSERT INTO replicas (id, expires_at) VALUES ('rep_1', now())"
    await database.fetch(text(insert))
    with pytest.raises(IntegrityError):
        await database.fetch(text(insert))
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.fetch(Statement(text(insert)))
    assert (await database.fetch(ONE))[0].one == 1


async def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    async def failing() -> None:
        async with database.transaction() as connection:
            await connection.execute(text("INSERT INTO replicas (id, expires_at) VALUES ('rep_1', now())"))
            msg = "on second thoughts"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="second thoughts"):
        await failing()
    assert await database.fetch(text("SELECT id FROM replicas")) == []


async def test_a_server_that_was_never_there_is_an_absent_database() -> None:
    database = Database("postgresql://nobody@127.0.0.1:9/none", pool_size=1)
    for ask in (by_driver, by_core, in_transaction):
        with pytest.raises(UnavailableError):
            await ask(database, 0.0)
    await database.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="agw-engine-") as folder:
        yield Path(folder)


async def test_a_server_that_stops_is_an_absent_database_until_it_runs_again(folder: Path) -> None:
    servers: list[EmbeddedPostgres] = [await asyncio.to_thread(start_embedded, folder / "pg", durable=False)]
    database = Database(servers[0].url, pool_size=3)
    try:
        assert (await database.fetch(ONE))[0].one == 1
        asking = [asyncio.ensure_future(ask(database, 30.0)) for ask in (by_driver, by_core, in_transaction)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(servers.pop().stop)
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(result) for result in results] == [UnavailableError] * 3
        for ask in (by_driver, by_core, in_transaction):
            with pytest.raises(UnavailableError):
                await ask(database, 0.0)
        servers.append(await asyncio.to_thread(start_embedded, folder / "pg", durable=False))
        for ask in (by_driver, by_core, in_transaction):
            await ask(database, 0.0)
    finally:
        await database.close()
        for server in servers:
            await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("prefix", ["postgres://", "postgresql://", "postgresql+asyncpg://"])
def test_every_usual_form_of_url_is_understood(prefix: str) -> None:
    assert async_url(f"{prefix}u:p@h:1/d") == "postgresql+asyncpg://u:p@h:1/d"
    assert plain_url(f"{prefix}u:p@h:1/d") == "postgresql://u:p@h:1/d"


def test_another_database_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with postgresql"):
        async_url("mysql://h/d")
