"""Tools called in circles, over the real gateway: warned in the results, stopped where a tenant wants it or nobody watches."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from app.domain.guardrails import GuardrailThresholds, HardStopAfter
from app.domain.model import ApiMode
from app.domain.tenants import TenantSettings
from app.simulator.server import Simulator
from tests.e2e import watching_tools
from tests.e2e.chains import Link, chain_spec, every_mode, goes_on, problems
from tests.e2e.harness import Client, Frame, replica
from tests.e2e.prefix import prefix_breaks
from tests.e2e.scenes import of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import DEADLINES, steady
from tests.postgres import PostgresServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOPS = GuardrailThresholds(hard_stop=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched_stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    """A gateway whose tools read, watch and fail."""
    async with AsyncExitStack() as stack:
        provider, backup = Simulator(strict=True, picky=True), Simulator(strict=True, picky=True)
        for simulator in (provider, backup):
            await simulator.start()
            stack.push_async_callback(simulator.stop)
        url = await stack.enter_async_context(postgres.database())
        yield Stage(await stack.enter_async_context(replica(url, tool_modules=watching_tools.MODULE)), provider, backup)


@pytest.fixture
def watched(watched_stage: Stage) -> Stage:
    watched_stage.reset()
    watching_tools.reset()
    return watched_stage


@asynccontextmanager
async def guarded(stage: Stage, mode: ApiMode = ApiMode.CHAT_COMPLETIONS, thresholds: GuardrailThresholds = STOPS) -> AsyncIterator[Client]:
    """A client of a new tenant with these guardrails."""
    name = f"guarded-{next(stage.numbers)}"
    key = f"agw_test-key-of-{name}-0123456789"
    spec = chain_spec(name, key, [Link(url=stage.provider.base_url, mode=mode)], **DEADLINES)
    await stage.replica.gateway.tenants.apply(
        msgspec.structs.replace(spec, settings=TenantSettings(guardrails=thresholds)), generate_key=False
    )
    async with stage.replica.client(key) as client:
        yield client


def circle(*calls: tuple[str, str], times: int) -> list[str]:
    """Scripts that call tools round and round."""
    return [f"tool={name} args={json.dumps({'path': path} if path else {})}" for _ in range(times) for name, path in calls]


def warnings(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame.data["code"], frame.data["count"]) for frame in of_type(frames, "guardrail.warning")]


async def results(client: Client, session: str) -> list[str]:
    return [message["content"] for message in await client.messages(session) if message["role"] == "tool"]


CIRCLES = {"A B": (("read", "a"), ("write", "b")), "A B C": (("read", "a"), ("write", "b"), ("write", "c"))}


@pytest.mark.parametrize("calls", CIRCLES.values(), ids=CIRCLES)
@every_mode
async def test_a_cycle_is_warned_after_three_rounds_and_stopped_after_five(watched: Stage, mode: ApiMode, calls: Any) -> None:
    provider = watched.provider
    async with guarded(watched, mode) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(*calls, times=9))
        frames = await client.run(session, "Go round.")
        assert len(provider.requests) == 5 * len(calls)
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.completed", "guardrail_halt")
        (halt,) = of_type(frames, "guardrail.halt")
        assert (halt.data["code"], halt.data["count"]) == ("tool_call_cycle_halt", 5)
        assert halt.data["message"] == frames[-1].data["output"]
        cycles = [found for found in warnings(frames) if found[0] == "tool_call_cycle_warning"]
        assert cycles[0] == ("tool_call_cycle_warning", 3)
        shown = await results(client, session)
        assert "[Tool loop stopped: tool_call_cycle_halt; count=5; " in shown[-1]
        assert (await client.messages(session))[-1]["content"] == frames[-1].data["output"]
        provider.clear()
        await goes_on(client, session, provider)


@every_mode
async def test_a_failing_call_is_blocked_and_insisting_on_it_ends_the_turn(watched: Stage, mode: ApiMode) -> None:
    provider = watched.provider
    async with guarded(watched, mode) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(("fail", "a"), times=12))
        frames = await client.run(session, "Try.")
        assert watching_tools.calls["fail"] == 5
        assert warnings(frames) == [
            *[("repeated_exact_failure_warning", count) for count in (2, 3, 4, 5)],
            *[("repeated_exact_failure_block", 5)] * 3,
        ]
        assert (frames[-1].data["reason"], len(provider.requests)) == ("guardrail_halt", 8)
        shown = await results(client, session)
        assert json.loads(shown[5])["guardrail"] == {"code": "repeated_exact_failure_block", "count": 5}
        assert shown[1].endswith(of_type(frames, "guardrail.warning")[0].data["message"])
        assert problems(provider) == []
        assert prefix_breaks(provider.requests) == []
        provider.clear()
        await goes_on(client, session, provider)


async def test_reading_the_same_again_is_blocked(watched: Stage) -> None:
    provider = watched.provider
    async with guarded(watched) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(("read", "a"), times=6), 'text="As ever."')
        frames = await client.run(session, "Read.")
        assert watching_tools.calls["read"] == 5
        assert warnings(frames)[-1] == ("idempotent_no_progress_block", 5)
        assert frames[-1].data["output"] == "As ever."


POLLS = {
    "status": (("status", ""),),
    "status beside another": (("status", ""), ("measure", "a")),
    "new results each time": (("measure", "a"), ("measure", "b")),
}


@pytest.mark.parametrize("calls", POLLS.values(), ids=POLLS)
async def test_honest_polling_is_not_stopped(watched: Stage, calls: Any) -> None:
    provider = watched.provider
    async with guarded(watched) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(*calls, times=12), 'text="Ready."')
        frames = await client.run(session, "Wait for it.")
        assert (frames[-1].data["reason"], frames[-1].data["output"]) == ("answer", "Ready.")
        assert of_type(frames, "guardrail.halt") == []
        assert {code for code, _ in warnings(frames)} <= {"tool_call_cycle_warning"}


async def test_a_new_turn_begins_with_a_clean_slate(watched: Stage) -> None:
    provider = watched.provider
    async with guarded(watched) as client:
        session = await client.session(toolsets=["operator"])
        for _ in range(2):
            provider.play(*circle(("read", "a"), ("write", "b"), times=4), 'text="Enough."')
            frames = await client.run(session, "Go round.")
            assert frames[-1].data["output"] == "Enough."
            assert next(found for found in warnings(frames) if found[0] == "tool_call_cycle_warning") == ("tool_call_cycle_warning", 3)


@pytest.mark.parametrize(("background", "reason"), [(False, "answer"), (True, "guardrail_halt")], ids=["watched", "background"])
async def test_without_a_setting_only_background_turns_are_stopped(watched: Stage, reason: str, *, background: bool) -> None:
    provider = watched.provider
    async with guarded(watched, thresholds=GuardrailThresholds()) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(("fail", "a"), times=10), 'text="I give up."')
        response = await client.http.post(
            f"/sessions/{session}/turns", json={"input": "Try.", "background": background}, headers={"Accept": "application/json"}
        )
        frames = await client.replay(response.json()["id"])
        assert frames[-1].data["reason"] == reason
        assert warnings(frames)[0] == ("repeated_exact_failure_warning", 2)
        provider.clear()
        await goes_on(client, session, provider)


async def test_thresholds_are_read_from_the_tenant(watched: Stage) -> None:
    thresholds = GuardrailThresholds(hard_stop=True, hard_stop_after=HardStopAfter(same_tool_failure=3))
    async with guarded(watched, thresholds=thresholds) as client:
        session = await client.session(toolsets=["operator"])
        watched.provider.play(*circle(("fail", "a"), times=9))
        frames = await client.run(session, "Try.")
        (halt,) = of_type(frames, "guardrail.halt")
        assert (halt.data["code"], halt.data["count"]) == ("same_tool_failure_halt", 3)


@every_mode
async def test_invented_tools_three_times_running_end_the_turn(watched: Stage, mode: ApiMode) -> None:
    provider = watched.provider
    async with guarded(watched, mode, GuardrailThresholds()) as client:
        session = await client.session(toolsets=["operator"])
        provider.play(*circle(("invented", "a"), times=9))
        frames = await client.run(session, "Try.")
        assert len(provider.requests) == 3
        (halt,) = of_type(frames, "guardrail.halt")
        assert (halt.data["code"], halt.data["count"]) == ("invalid_tool_calls", 3)
        assert "read" in (await results(client, session))[0], "the model is told what there is"
        provider.clear()
        await goes_on(client, session, provider)


@every_mode
async def test_calls_that_are_announced_and_missing_do_not_go_on_without_end(watched: Stage, mode: ApiMode) -> None:
    """Each protocol has its own word for it; where it has none an answer without content is the same thing (C007)."""
    provider = watched.provider
    async with steady(watched, mode, routes=2, max_attempts=1) as client:
        session = await client.session()
        script = "empty" if mode is ApiMode.RESPONSES else 'text="" finish=tool_calls'
        provider.play(*[script] * 20)
        frames = await client.run(session, "hello")
        assert frames[-1].type == "turn.failed"
        assert frames[-1].data["reason"] in {"invalid_response", "provider_unavailable"}
        assert len(provider.requests) == 2, "one for each route"
        provider.clear()
        await goes_on(client, session, provider)
