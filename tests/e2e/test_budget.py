"""The budget of a turn over the real gateway: told in time, kept, and closed by one call that may not call tools."""

from typing import Any

import msgspec
import pytest

from app.domain.model import ApiMode
from app.domain.tenants import Prices, TenantSettings
from app.simulator import RawScript, raw_script
from app.simulator.log import RecordedRequest
from tests.e2e.chains import Link, chain_spec, every_mode, goes_on, problems
from tests.e2e.harness import Client, Frame
from tests.e2e.operator_tools import runs
from tests.e2e.prefix import prefix_breaks
from tests.e2e.scenes import now, of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import DEADLINES, steady
from tests.e2e.wire_modes import WRITERS, Call

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {ApiMode.CHAT_COMPLETIONS: "max_tokens", ApiMode.RESPONSES: "max_output_tokens", ApiMode.ANTHROPIC_MESSAGES: "max_tokens"}
NO_CHOICE: dict[ApiMode, Any] = {
    ApiMode.CHAT_COMPLETIONS: "none",
    ApiMode.RESPONSES: "none",
    ApiMode.ANTHROPIC_MESSAGES: {"type": "none"},
}
PRICES = Prices(input=10.0, cached_input=10.0, output=10.0)
"""US dollars per million tokens, all the same: 1,000 tokens are a cent."""


def calls_again(mode: ApiMode, number: int) -> RawScript:
    """A reply that calls a tool, whatever it was told."""
    writer = WRITERS[mode]
    call = Call("now", "{}", f"call_{number}", index=1)
    return raw_script(writer.start() + writer.text("One last look.") + writer.calls(call) + writer.end())


def levels(frames: list[Frame]) -> list[tuple[str, int]]:
    return [(frame.data["level"], frame.data["iteration"]) for frame in of_type(frames, "budget.warning")]


def total(frame: Frame) -> int:
    return int(frame.data["usage"]["input_tokens"] + frame.data["usage"]["output_tokens"])


async def last_results(client: Client, session: str) -> list[str]:
    return [message["content"] for message in await client.messages(session) if message["role"] == "tool"]


@every_mode
async def test_a_closing_call_that_asks_for_tools_again(stage: Stage, mode: ApiMode) -> None:
    """Three iterations and exactly one closing call; what that one asks for is neither run nor stored."""
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        provider.play(*(calls_again(mode, number) for number in range(4)))
        frames = await client.run(session, "Look.", max_iterations=3)
        assert len(provider.requests) == 4
        assert runs.begun["now"] == 3
        note = "[The budget of this turn (3 of 3 iterations) was used up before the work was finished.]"
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.completed", "budget_exhausted")
        assert frames[-1].data["output"] == f"One last look.\n\n{note}"
        assert frames[-1].data["iterations"] == 3
        choices = [request.body.get("tool_choice") for request in provider.requests]
        assert choices == [None, None, None, NO_CHOICE[mode]]
        assert len({msgspec.json.encode(request.body["tools"]) for request in provider.requests}) == 1
        assert levels(frames) == [("exhausted", 3)]
        transcript = await client.messages(session)
        assert sum(len(message.get("tool_calls") or ()) for message in transcript) == 3
        assert transcript[-1]["content"] == f"One last look.\n\n{note}"
        after = await goes_on(client, session, provider)
        assert after.data["iterations"] == 1, "a new turn has a new budget"
        assert prefix_breaks(provider.requests) == []


@every_mode
async def test_the_model_is_told_in_its_results_and_the_client_by_events(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session(toolsets=["operator"])
        frames = await client.run(session, '[[sim tool=now rounds=20 text="Summed up."]]', max_iterations=10)
        assert frames[-1].data["output"] == "Summed up."
        assert frames[-1].data["reason"] == "budget_exhausted"
        assert levels(frames) == [("caution", 7), ("warning", 9), ("exhausted", 10)]
        results = await last_results(client, session)
        assert [number for number, result in enumerate(results, 1) if result != "12:00"] == [7, 9, 10]
        assert results[6].startswith("12:00\n\n[BUDGET: Iteration 7/10. 3 left. ")
        assert results[8].startswith("12:00\n\n[BUDGET WARNING: Iteration 9/10. Only 1 left. ")
        shown = [frame.data["output"] for frame in of_type(frames, "tool.completed")]
        assert shown == results, "events show what the model reads"
        assert len(provider.requests) == 11
        assert problems(provider) == []
        assert prefix_breaks(provider.requests) == []
        await goes_on(client, session, provider)


def limits_of(requests: list[RecordedRequest], mode: ApiMode) -> list[int]:
    return [request.body[LIMITS[mode]] for request in requests]


@every_mode
async def test_a_budget_of_tokens_is_kept(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode, output_tokens=800) as client:
        session = await client.session(toolsets=["operator"])
        text = '[[sim tool=now rounds=80 usage=2000/100 text="Summed up."]]'
        frames = await client.run(session, text, max_tokens=20_000)
        assert frames[-1].data["reason"] == "budget_exhausted"
        assert frames[-1].data["output"] == "Summed up."
        assert 12_000 < total(frames[-1]) <= 20_000
        limits = limits_of(list(provider.requests), mode)
        assert max(limits) == 800
        assert all(limit >= 16 for limit in limits)
        assert [level for level, _ in levels(frames)][-1] == "exhausted"
        assert provider.requests[-1].body["tool_choice"] == NO_CHOICE[mode]
        assert problems(provider) == []
        assert prefix_breaks(provider.requests) == []


async def test_the_output_of_a_call_is_limited_to_the_rest_of_the_tokens(stage: Stage) -> None:
    provider = stage.provider
    async with steady(stage, output_tokens=4_000) as client:
        session = await client.session(toolsets=[])
        frames = await client.run(session, "[[sim tokens=20]]", max_tokens=1_000)
        (request,) = provider.requests
        assert 500 < request.body["max_tokens"] < 1_000
        assert total(frames[-1]) <= 1_000
        assert frames[-1].data["reason"] == "answer"


async def test_a_budget_that_pays_no_call_asks_nobody(stage: Stage) -> None:
    provider = stage.provider
    async with steady(stage) as client:
        session = await client.session()
        frames = await client.run(session, "hello", max_tokens=10)
        assert list(provider.requests) == []
        assert frames[-1].data["reason"] == "budget_exhausted"
        assert "0 of 10 tokens" in frames[-1].data["output"]
        await goes_on(client, session, provider)


@every_mode
async def test_a_budget_of_money_is_kept(stage: Stage, mode: ApiMode) -> None:
    async with steady(stage, mode, prices=PRICES) as client:
        session = await client.session(toolsets=["operator"])
        text = '[[sim tool=now rounds=80 usage=1900/100 text="Summed up."]]'
        frames = await client.run(session, text, max_cost_usd=0.3)
        assert frames[-1].data["reason"] == "budget_exhausted"
        assert 0.2 < frames[-1].data["cost_usd"] <= 0.3
        assert "US dollars used." in of_type(frames, "budget.warning")[0].data["message"]


async def test_the_tenants_limits_are_the_upper_bound(stage: Stage) -> None:
    provider = stage.provider
    name = f"limited-{next(stage.numbers)}"
    key = f"agw_test-key-of-{name}-0123456789"
    settings = TenantSettings(max_tokens_per_turn=9_000, max_cost_usd_per_turn=5.0)
    spec = msgspec.structs.replace(chain_spec(name, key, [Link(url=provider.base_url)], **DEADLINES), settings=settings)
    await stage.replica.gateway.tenants.apply(spec, generate_key=False)
    async with stage.replica.client(key) as client:
        session = await client.session(toolsets=["operator"])
        text = '[[sim tool=now rounds=80 usage=1000/50 text="Summed up."]]'
        for asked in ({}, {"max_tokens": 1_000_000, "max_cost_usd": 99.0}, {"max_tokens": 7_000}):
            frames = await client.run(session, text, **asked)
            assert frames[-1].data["reason"] == "budget_exhausted"
            assert total(frames[-1]) <= min(9_000, asked.get("max_tokens", 9_000))


@pytest.mark.parametrize("field", ["max_tokens", "max_cost_usd"])
@pytest.mark.parametrize("value", [0, -1, "many"])
async def test_a_budget_that_is_none_is_refused(stage: Stage, field: str, value: object) -> None:
    async with steady(stage) as client:
        session = await client.session()
        response = await client.http.post(f"/sessions/{session}/turns", json={"input": "hello", field: value})
        assert response.status_code == 422
        assert response.json()["code"] == "invalid_request"


@every_mode
async def test_an_interrupt_reaches_the_closing_call(stage: Stage, mode: ApiMode) -> None:
    provider = stage.provider
    async with steady(stage, mode) as client:
        session = await client.session()
        async with client.turn(session, "[[sim tool=now rounds=9 tokens=400 pace_ms=20]]", max_iterations=1) as stream:
            await stream.until("budget.warning")
            delta = await stream.until("message.delta")
            since = now()
            await client.http.delete(f"/turns/{delta.data['turn_id']}")
            frames = await stream.read_to_end()
        assert now() - since < 1.0
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.interrupted", "requested")
        assert frames[-1].data["output"].startswith("the")
        await goes_on(client, session, provider)
        assert prefix_breaks(provider.requests) == []
