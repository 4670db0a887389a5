"""Limits of credentials through the whole service: kept by all replicas together, and a tenant's own."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace as changed
from typing import Any

from app.domain.model import ApiMode
from app.simulator import raw_script
from app.simulator.server import Simulator
from tests.e2e.chains import DEADLINE_S, Link, answered_by, chain_spec, every_mode, failures, problems, run_as_json
from tests.e2e.clocks import UNTIMED, QuickClock, let_pass
from tests.e2e.harness import KEY, OTHER_KEY, Client, Frame, Replica, replica
from tests.e2e.windows import places_taken
from tests.e2e.wire import DONE, chunk

AT_ONCE: dict[str, Any] = {"longest_wait_s": 0.0}
"""Settings of a gateway whose calls wait for nothing."""


def limited(url: str, mode: ApiMode = ApiMode.CHAT_COMPLETIONS, **limits: int) -> Link:
    return Link(url=url, mode=mode, provider=limits, route={"patience_s": 0.001})


async def many(clients: Sequence[Client], count: int, text: str = '[[sim text="Said."]]') -> list[Frame]:
    """Turns at the same moment, in sessions of their own, spread over the clients; the end of each."""
    sessions = await asyncio.gather(*(clients[number % len(clients)].session() for number in range(count)))
    runs = [clients[number % len(clients)].run(session, text) for number, session in enumerate(sessions)]
    return [frames[-1] for frames in await asyncio.gather(*runs)]


async def opened(stack: AsyncExitStack, running: Replica, *links: Link, key: str = KEY, name: str = "acme", **route: Any) -> Client:
    await running.gateway.tenants.apply(chain_spec(name, key, links, **{"first_token_timeout_s": 10.0, **route}), generate_key=False)
    return await stack.enter_async_context(running.client(key))


@every_mode
async def test_of_many_turns_at_once_as_many_as_the_limit_reach_the_provider(database_url: str, provider: Simulator, mode: ApiMode) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url, **AT_ONCE))
        client = await opened(stack, running, limited(provider.base_url, mode, rpm=5))
        count = 50 if mode is ApiMode.CHAT_COMPLETIONS else 12
        ends = await many([client], count)
        assert Counter(end.type for end in ends) == {"turn.completed": 5, "turn.failed": count - 5}
        assert len(provider.requests) == 5
        errors = [end.data["error"] for end in ends if end.type == "turn.failed"]
        assert {error["code"] for error in errors} == {"provider_unavailable"}
        assert all(error["retryable"] and 55 <= error["retry_after_s"] <= 62 for error in errors)
        status, problem = await run_as_json(client, await client.session(), "hello")
        assert (status, problem["code"]) == (503, "provider_unavailable")
        assert 55 <= problem["retry_after_s"] <= 62
        assert await places_taken(running.gateway.database) == 5


async def test_the_others_of_many_turns_go_to_the_next_route(database_url: str, provider: Simulator) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url))
        other = Link(url=provider.base_url, model="sim-echo")
        client = await opened(stack, running, limited(provider.base_url, rpm=5), other)
        ends = await many([client], 30)
        assert Counter(end.data["route"]["provider"] for end in ends) == {"p1": 5, "p2": 25}
        frames = await client.run(await client.session(), '[[sim text="Said."]]')
        throttled = [frame.data for frame in frames if frame.type == "provider.throttled"]
        assert [(one["route"]["provider"], one["limit"], one["skipped"]) for one in throttled] == [("p1", "rpm", True)]
        assert failures(frames) == [], "a route at its limit is left out, not asked and refused"


async def test_two_replicas_share_one_limit_and_a_restart_forgets_nothing(database_url: str, provider: Simulator) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(replica(database_url, **AT_ONCE))
        first = await opened(stack, one, limited(provider.base_url, rpm=5))
        async with replica(database_url, **AT_ONCE) as other, other.client() as second:
            ends = await many([first, second], 20)
        assert Counter(end.type for end in ends) == {"turn.completed": 5, "turn.failed": 15}
        async with replica(database_url, **AT_ONCE) as restarted, restarted.client() as third:
            ends = await many([third], 5)
        assert {end.type for end in ends} == {"turn.failed"}
        assert len(provider.requests) == 5


async def test_refused_tries_cost_nothing_and_the_window_moves_on(database_url: str, provider: Simulator) -> None:
    """Two calls, then a try every three seconds: the first one behind the window is let through, and nothing is left of it later."""
    clock = QuickClock()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url, clock=clock, **UNTIMED, **AT_ONCE))
        client = await opened(stack, running, limited(provider.base_url, rpm=2))
        session = await client.session()
        ends = []
        for _ in range(25):
            ends.append((await client.run(session, '[[sim text="Said."]]'))[-1].type)
            if ends.count("turn.completed") == 3:
                break
            await let_pass(3, clock, running.gateway.database)
        assert ends[:3] == ["turn.completed", "turn.completed", "turn.failed"]
        assert 60 <= 3 * ends.index("turn.completed", 2) <= 66
        assert len(provider.requests) == 3
        assert problems(provider) == []
        await let_pass(200, clock, running.gateway.database)
        await running.gateway.upkeep.prune()
        assert await places_taken(running.gateway.database) == 0


@every_mode
async def test_a_call_within_patience_waits_for_its_place_and_says_so(database_url: str, provider: Simulator, mode: ApiMode) -> None:
    speed = 100.0
    timing: dict[str, Any] = {"poll_s": 30.0, "lease_beat_s": 300.0, "heartbeat_s": 300.0}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url, clock=QuickClock(speed), **UNTIMED, **timing))
        link = changed(limited(provider.base_url, mode, rpm=1), route={"patience_s": 90.0})
        client = await opened(stack, running, link)
        session = await client.session()
        assert await answered_by(client, session) == "p1"
        frames = await client.run(session, '[[sim text="Said."]]')
        (throttled,) = (frame.data for frame in frames if frame.type == "provider.throttled")
        assert (throttled["limit"], throttled["skipped"]) == ("rpm", False)
        assert 55 <= throttled["delay_s"] <= 62
        assert frames[-1].data["output"] == "Said."
        first, second = provider.requests
        assert (second.received_at - first.received_at) * speed >= throttled["delay_s"]
        assert problems(provider) == []


@every_mode
async def test_tokens_are_booked_by_estimate_and_made_right_by_usage(database_url: str, provider: Simulator, mode: ApiMode) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url, **AT_ONCE))
        client = await opened(stack, running, limited(provider.base_url, mode, tpm=7_000), output_tokens=4_000)
        for _ in range(3):
            ends = await many([client], 1, '[[sim text="Said." usage=600/200]]')
            assert ends[0].type == "turn.completed", "what was booked but not used is free again"
        assert (await many([client], 1, '[[sim text="Said." usage=600/200]]'))[0].type == "turn.failed", "4,000 more could be too many"
        assert len(provider.requests) == 3


async def test_a_limit_that_the_provider_says_is_used_up_is_left_alone(database_url: str, provider: Simulator) -> None:
    told = (("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "30s"))
    answer = changed(raw_script(chunk({"content": "Said."}) + chunk(finish="stop") + DONE), headers=told)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url))
        client = await opened(stack, running, Link(url=provider.base_url), Link(url=provider.base_url, model="sim-echo"))
        provider.play(answer)
        session = await client.session()
        assert await answered_by(client, session) == "p1"
        assert await answered_by(client, session) == "p2"


@every_mode
async def test_tenants_with_the_same_words_for_a_credential_never_meet(database_url: str, provider: Simulator, mode: ApiMode) -> None:
    """One uses up its limit, is refused, loses its credit, finds its model silent: the other notices nothing."""
    same = {"api_key": "sk-literal-of-both-0123456789"}
    link = changed(limited(provider.base_url, mode), provider={**same, "rpm": 4})
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(replica(database_url, **AT_ONCE))
        spare = Link(url=provider.base_url, mode=mode, model="spare")
        calm = await opened(stack, running, link, spare, key=OTHER_KEY, name="calm")
        poor, slow, hungry = [
            await opened(stack, running, link, key=f"{KEY}-{name}", name=name, first_token_timeout_s=DEADLINE_S, max_attempts=1)
            for name in ("poor", "slow", "hungry")
        ]
        for client, script in ((poor, "status=402"), (slow, "silent")):
            provider.play(script)
            assert (await many([client], 1))[0].type == "turn.failed"
            assert await answered_by(calm) == "p1"
        ends = await many([hungry], 5)
        assert Counter(end.type for end in ends) == {"turn.completed": 4, "turn.failed": 1}
        assert await answered_by(calm) == "p1"
