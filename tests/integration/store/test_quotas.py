"""Quotas over two replicas, each with connections of its own; and the report of use."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import text

from app.domain.delivery import Booked, Limit, Refused
from app.domain.model import RouteRef, RouteUse, Usage
from app.domain.openings import OpenTurn, TooManyOpen
from app.domain.quotas import UsageLine
from app.domain.turns import MachineState
from app.store.engine import Database
from app.store.rate_windows import RateWindows
from app.store.turns import TurnRepository
from app.store.usage import UsageRepository
from tests.contract.steps import DONE, opened, step
from tests.integration.store.builders import A, B, a_session, a_tenant, a_turn

PRIMARY = RouteRef(provider="primary", model="m-test")
BACKUP = RouteRef(provider="backup", model="m-other")


@pytest.fixture
async def second(database_url: str) -> Database:
    return Database(database_url, pool_size=5)


async def test_two_replicas_together_open_no_more_turns_than_allowed(database: Database, second: Database) -> None:
    tenant_id = await a_tenant(database)
    replicas = [(TurnRepository(database, lease_ttl_s=20.0), A), (TurnRepository(second, lease_ttl_s=20.0), B)]
    try:
        for _ in range(5):
            asked = [
                msgspec.structs.replace(a_turn(tenant_id, await a_session(database, tenant_id), owner=replicas[index % 2][1]), max_open=3)
                for index in range(10)
            ]
            openings = await asyncio.gather(*(replicas[index % 2][0].open(turn) for index, turn in enumerate(asked)))
            running = [opening for opening in openings if isinstance(opening, OpenTurn)]
            assert len(running) == 3
            assert openings.count(TooManyOpen()) == 7
            await asyncio.gather(*(replicas[0][0].commit(step(turn, closing=DONE)) for turn in running))
    finally:
        await second.close()


async def test_two_replicas_together_book_no_more_turns_of_a_minute_than_allowed(database: Database, second: Database) -> None:
    limit = Limit(key=f"tenant:{await a_tenant(database)}", rpm=7, tpm=None)
    stores = (RateWindows(database), RateWindows(second))
    try:
        bookings = await asyncio.gather(*(stores[index % 2].book((limit,), 0, 0.0) for index in range(20)))
        booked = [booking for booking in bookings if isinstance(booking, Booked)]
        assert len(booked) == 7
        assert all(booking.delay_s == 0.0 for booking in booked)
        assert all(booking.delay_s > 55.0 for booking in bookings if isinstance(booking, Refused))
        await stores[1].give_back(booked[0])
        again = await asyncio.gather(*(store.book((limit,), 0, 0.0) for store in stores))
        assert sum(isinstance(booking, Booked) for booking in again) == 1
    finally:
        await second.close()


async def test_the_closing_of_a_tenant_without_a_quota_of_a_day_writes_no_use(database: Database) -> None:
    turns = TurnRepository(database, lease_ttl_s=20.0)
    tenant_id = await a_tenant(database)
    turn = await opened(turns, tenant_id, await a_session(database, tenant_id))
    await turns.commit(step(turn, state=MachineState(usage=Usage(output_tokens=5)), closing=DONE))
    assert await database.fetch(text("SELECT 1 FROM tenant_usage")) == []


async def test_a_step_of_a_tenant_without_a_quota_of_a_day_writes_no_use_and_is_told_none(database: Database) -> None:
    turns = TurnRepository(database, lease_ttl_s=20.0)
    tenant_id = await a_tenant(database)
    turn = await opened(turns, tenant_id, await a_session(database, tenant_id))
    counting = msgspec.structs.replace(step(turn, state=MachineState(usage=Usage(output_tokens=5))), counts=True)
    assert (await turns.commit(counting)).day is None
    assert await database.fetch(text("SELECT 1 FROM tenant_usage")) == []


async def test_a_day_that_was_begun_is_followed_by_the_next_without_a_look_at_it(database: Database) -> None:
    turns, usage = TurnRepository(database, lease_ttl_s=20.0), UsageRepository(database)
    tenant_id = await a_tenant(database)
    await usage.today(tenant_id)
    await database.fetch(text("UPDATE tenant_usage SET day = day - 1, tokens = 1000"))
    turn = await opened(turns, tenant_id, await a_session(database, tenant_id))
    await turns.commit(step(turn, state=MachineState(usage=Usage(output_tokens=5)), closing=DONE))
    assert (await usage.today(tenant_id)).tokens == 5


async def test_the_report_has_a_line_for_each_tenant_day_and_route(database: Database) -> None:
    turns, usage = TurnRepository(database, lease_ttl_s=20.0), UsageRepository(database)
    tenant_id = await a_tenant(database)
    name = tenant_id.replace("_", "-")
    session_id = await a_session(database, tenant_id)
    some = Usage(input_tokens=10, output_tokens=5, cached_input_tokens=4, reasoning_tokens=2)
    fell_back = MachineState(
        attempts=3,
        usage=some + some,
        cost_usd=0.5,
        route=BACKUP,
        routes=(
            RouteUse(route=PRIMARY, attempts=2, failed=2, usage=some),
            RouteUse(route=BACKUP, attempts=1, usage=some, cost_usd=0.5),
        ),
    )
    plain = MachineState(attempts=1, usage=some, route=PRIMARY, routes=(RouteUse(route=PRIMARY, attempts=1, usage=some),))
    for state in (fell_back, plain, MachineState()):
        await turns.commit(step(await opened(turns, tenant_id, session_id), state=state, closing=DONE))
    await opened(turns, tenant_id, session_id)  # runs still
    other = await a_tenant(database)
    await turns.commit(step(await opened(turns, other, await a_session(database, other)), state=plain, closing=DONE))
    today = datetime.now(UTC).date()

    lines = await usage.report(name, today - timedelta(days=1), today)

    assert lines == [
        UsageLine(tenant=name, day=today, route=None, turns=1, attempts=0, failed=0, usage=Usage(), cost_usd=None),
        UsageLine(tenant=name, day=today, route=BACKUP, turns=1, attempts=1, failed=0, usage=some, cost_usd=0.5),
        UsageLine(tenant=name, day=today, route=PRIMARY, turns=2, attempts=3, failed=2, usage=some + some, cost_usd=None),
    ]
    assert len(await usage.report(None, today, today)) == 4
    assert await usage.report(None, today + timedelta(days=1), today + timedelta(days=2)) == []
    assert await usage.report(None, today - timedelta(days=9), today - timedelta(days=1)) == []


async def test_turns_of_the_version_before_are_reported_with_their_one_route(database: Database) -> None:
    turns, usage = TurnRepository(database, lease_ttl_s=20.0), UsageRepository(database)
    tenant_id = await a_tenant(database)
    await turns.commit(step(await opened(turns, tenant_id, await a_session(database, tenant_id)), closing=DONE))
    machine = (
        b'{"iteration":1,"attempts":2,"usage":{"input_tokens":7,"output_tokens":3,"cached_input_tokens":0,"reasoning_tokens":0},'
        b'"cost_usd":0.1,"route":{"provider":"primary","model":"m-test","api_mode":"chat_completions"}}'
    )
    await database.fetch(text("UPDATE turns SET machine = :machine"), {"machine": machine})
    today = datetime.now(UTC).date()
    (line,) = await usage.report(None, today, today)
    assert (line.route, line.turns, line.attempts, line.failed, line.cost_usd) == (PRIMARY, 1, 2, 0, 0.1)
    assert line.usage == Usage(input_tokens=7, output_tokens=3)
    assert (await usage.today(tenant_id)).tokens == 10
