"""Leaving a route that fails and coming back to it; waits that the provider asked for. Time is put forward or runs fast."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator.server import Simulator
from tests.e2e import operator_tools
from tests.e2e.chains import Link, answered_by, chain_spec, every_mode, failures, goes_on, problems
from tests.e2e.clocks import UNTIMED, QuickClock, let_pass
from tests.e2e.harness import KEY, OTHER_KEY, Client, Replica, replica

SPEED = 50.0
OUTAGE_S = 60


@asynccontextmanager
async def gateway_on(database_url: str, clock: QuickClock, **settings: Any) -> AsyncIterator[Replica]:
    operator_tools.reset()
    async with replica(database_url, clock=clock, tool_modules=operator_tools.MODULE, **UNTIMED, **settings) as running:
        yield running


@pytest.fixture
async def backup() -> AsyncIterator[Simulator]:
    simulator = Simulator(strict=True, picky=True)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


@asynccontextmanager
async def client_of(running: Replica, *links: Link, key: str = KEY, name: str = "acme", **route: Any) -> AsyncIterator[Client]:
    await running.gateway.tenants.apply(chain_spec(name, key, links, **route), generate_key=False)
    async with running.client(key) as client:
        yield client


@every_mode
async def test_a_primary_that_fails_for_a_minute_is_used_again_soon_after(
    database_url: str, provider: Simulator, backup: Simulator, mode: ApiMode
) -> None:
    """20 requests, one every 4 seconds; the primary fails for the first minute."""
    clock = QuickClock()
    links = [Link(url=simulator.base_url, mode=mode) for simulator in (provider, backup)]
    async with gateway_on(database_url, clock) as running, client_of(running, *links) as client:
        session = await client.session()
        answers, asked = [], []
        for number in range(20):
            if number * 4 < OUTAGE_S:
                provider.play("status=503", "status=503")
            answers.append(await answered_by(client, session))
            asked.append(len(provider.requests))
            assert problems(provider, backup) == []
            provider.clear()
            await let_pass(4, clock, running.gateway.database)
    check_return(answers, asked)


async def test_a_primary_that_is_gone_for_a_minute_is_used_again_soon_after(
    database_url: str, provider: Simulator, backup: Simulator
) -> None:
    clock = QuickClock()
    port = int(provider.origin.rpartition(":")[2])
    links = [Link(url=simulator.base_url) for simulator in (provider, backup)]
    async with gateway_on(database_url, clock) as running, client_of(running, *links) as client:
        session = await client.session()
        await provider.stop()
        answers = []
        for number in range(20):
            if number * 4 == OUTAGE_S:
                await provider.start(port=port)
            answers.append(await answered_by(client, session))
            await let_pass(4, clock, running.gateway.database)
    check_return(answers, [])
    assert problems(provider, backup) == []


def check_return(answers: list[str], asked: list[int]) -> None:
    down = OUTAGE_S // 4
    assert set(answers[:down]) == {"p2"}, "nobody noticed the outage"
    assert sum(asked[:down]) <= 8, "a route that is down is not asked again and again"
    back = answers.index("p1")
    assert set(answers[back:]) == {"p1"}
    assert (back - down) * 4 <= 30


@every_mode
async def test_the_way_back_and_the_reach_of_a_rate_limit(database_url: str, provider: Simulator, backup: Simulator, mode: ApiMode) -> None:
    """A chain that names one target twice; another model through the same credential, and another tenant, go on."""
    clock = QuickClock()
    first = Link(url=provider.base_url, mode=mode, model="m1", provider={"api_key": "sk-shared-0123456789"})
    alias = Link(url=provider.base_url + "/", mode=mode, model="m1", provider={"api_key": "sk-shared-0123456789"})
    other = Link(url=backup.base_url, mode=mode, model="m2")
    third = Link(url=provider.base_url, mode=mode, model="m3", provider={"api_key": "sk-shared-0123456789"})
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway_on(database_url, clock))
        client = await stack.enter_async_context(client_of(running, first, alias, other, third, patience_s=1.0))
        tenant_b = await stack.enter_async_context(client_of(running, first, other, key=OTHER_KEY, name="other"))
        provider.play("status=429 retry_after=3")
        session = await client.session()
        assert await answered_by(client, session) == "p3", "the alias is the same target"
        for _ in range(2):
            await let_pass(1, clock, running.gateway.database)
            assert await answered_by(client, session) == "p3"
        assert len(provider.requests) == 1
        assert await answered_by(client, await client.session(model="m3")) == "p4"
        assert await answered_by(tenant_b) == "p1"
        assert [request.body["model"] for request in provider.requests] == ["m1", "m3", "m1"]
        await let_pass(2, clock, running.gateway.database)
        for _ in range(2):
            assert await answered_by(client, session) == "p1"
        assert problems(provider, backup) == []


async def test_what_one_replica_has_found_out_the_others_know(database_url: str, provider: Simulator, backup: Simulator) -> None:
    links = [Link(url=simulator.base_url) for simulator in (provider, backup)]
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway_on(database_url, QuickClock()))
        client = await stack.enter_async_context(client_of(running, *links))
        other = await stack.enter_async_context(gateway_on(database_url, QuickClock(10.0)))
        elsewhere = await stack.enter_async_context(other.client())
        provider.play("status=402")
        assert await answered_by(client) == "p2"
        async with asyncio.timeout(5.0):
            while await answered_by(elsewhere) != "p2":
                pass
        asked = len(provider.requests)
        assert await answered_by(elsewhere) == "p2"
        assert await answered_by(client) == "p2"
        assert len(provider.requests) == asked


async def test_when_all_are_down_each_target_is_asked_a_bounded_number_of_times(
    database_url: str, provider: Simulator, backup: Simulator
) -> None:
    links = [Link(url=provider.base_url, model="m1", provider={"api_key": "sk-shared-0123456789"})] * 2 + [Link(url=backup.base_url)]
    async with gateway_on(database_url, QuickClock(SPEED)) as running, client_of(running, *links) as client:
        provider.play(*["status=500"] * 20)
        backup.play(*["status=500"] * 20)
        session = await client.session()
        frames = await client.run(session)
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", "provider_unavailable")
        assert failures(frames) == [("p1", "server_error")] * 2 + [("p3", "server_error")] * 3
        assert (len(provider.requests), len(backup.requests)) == (2, 3)
        waits = [later.received_at - earlier.received_at for earlier, later in pairwise(backup.requests)]
        assert waits[0] * SPEED >= 0.75 * 5
        assert waits[1] * SPEED >= 0.75 * 10
        provider.clear()
        backup.clear()
        await goes_on(client, session, provider, backup)


NAMED = {
    "seconds": ("header.retry-after=2", 2.0),
    "past date": ('header.retry-after="{past}"', 0.0),
    "zero": ("header.retry-after=0", 0.0),
    "milliseconds first": ("header.retry-after-ms=300 header.retry-after=9", 0.3),
    "zero milliseconds first": ("header.retry-after-ms=0 header.retry-after=9", 0.0),
}


@every_mode
async def test_a_wait_that_the_provider_names_is_kept(database_url: str, provider: Simulator, mode: ApiMode) -> None:
    clock = QuickClock(10.0)
    async with gateway_on(database_url, clock) as running, client_of(running, Link(url=provider.base_url, mode=mode)) as client:
        for name, (headers, wait_s) in NAMED.items():
            provider.clear()
            past = format_datetime(clock.now() - timedelta(seconds=30), usegmt=True)
            provider.play(f"status=429 {headers.format(past=past)}")
            frames = await client.run(await client.session(), '[[sim text="Said."]]')
            (failed,) = (frame.data for frame in frames if frame.type == "attempt.failed")
            assert failed["delay_s"] == wait_s, name
            assert frames[-1].data["output"] == "Said."
            first, second = provider.requests
            waited_s = (second.received_at - first.received_at) * 10.0
            # What all replicas share runs on the database's clock, which is ten times slower than this one.
            assert wait_s - 0.02 <= waited_s < wait_s * 10.0 + 10.0, name
        provider.clear()
        due = clock.now() + timedelta(seconds=4)
        provider.play(f'status=429 header.retry-after="{format_datetime(due, usegmt=True)}"')
        frames = await client.run(await client.session(), '[[sim text="Said."]]')
        assert frames[-1].data["output"] == "Said."
        assert clock.now() >= due.replace(microsecond=0)
        assert len(provider.requests) == 2
        assert problems(provider) == []
