"""One budget for a turn and all turns below it, counted where it is spent: in the provider's log."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from app.domain.tenants import Prices, TenantSettings
from app.simulator.log import RecordedRequest
from tests.e2e.delegating import FOR_EVER, TOOLSETS, check, child_turns, delegates, looks_up, of_children, results, says
from tests.e2e.harness import Frame, tenant
from tests.e2e.scenes import of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import steady

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICES = Prices(input=10.0, cached_input=10.0, output=10.0)
"""US dollars per million tokens."""
TREE = delegates(*[delegates(*[FOR_EVER] * 3)] * 3)
"""Three children with three children each, which never end by themselves."""


def tokens_of(*usages: dict[str, Any]) -> int:
    return sum(usage["input_tokens"] + usage["output_tokens"] for usage in usages)


def whole(frames: list[Frame]) -> dict[str, Any]:
    """The end of a turn with children."""
    data = frames[-1].data
    assert data["children"] is not None
    return data


def closing_calls(requests: list[RecordedRequest]) -> list[RecordedRequest]:
    return [request for request in requests if request.body.get("tool_choice") == "none"]


@pytest.mark.parametrize("limit", [2, 4, 5, 12, 30])
async def test_all_model_calls_of_a_tree_stay_within_the_parents_iterations_and_one_closing_call(stage: Stage, limit: int) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, TREE, max_iterations=limit)
        end = whole(frames)
        requests = list(stage.provider.requests)
        assert len(requests) <= limit + 1
        assert end["iterations"] + end["children"]["iterations"] == limit
        assert end["reason"] == "budget_exhausted"
        assert len(closing_calls(requests)) == 1, "none, or a child's"
        assert closing_calls(requests)[0] is requests[-1]
        assert len(of_children(stage.provider)) <= limit - 1
        assert {child["reason"] for child in await child_turns(client, frames)} == {"budget_exhausted"}
        assert len(await results(client, session)) == 3
        await check(client, stage.provider, session, frames)


async def test_what_children_left_is_the_parents(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        goals = delegates(looks_up(1, "One."), looks_up(1, "Two."), "[[sim status=400]]")
        frames = await client.run(session, goals, max_iterations=10)
        end = whole(frames)
        assert (end["reason"], end["iterations"], end["children"]["iterations"]) == ("answer", 2, 5)
        await check(client, stage.provider, session, frames)
        text = f"[[sim calls={json.dumps([{'name': 'delegate_task', 'arguments': {'goal': looks_up(1, 'x')}}])} rounds=9]]"
        frames = await client.run(session, text, max_iterations=10)
        end = whole(frames)
        assert end["iterations"] + end["children"]["iterations"] == 10
        assert end["reason"] == "budget_exhausted"
        await check(client, stage.provider, session, frames)


async def test_with_nothing_left_a_delegation_is_answered_so(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates(says("Never.")), max_iterations=1)
        assert await results(client, session) != []
        (result,) = await results(client, session)
        assert result.startswith("Not run: nothing is left of the turn's budget.")
        assert frames[-1].data["reason"] == "budget_exhausted"
        assert frames[-1].data["children"] is None
        assert len(stage.provider.requests) == 2
        await check(client, stage.provider, session, frames)


async def test_the_tokens_of_a_turn_are_those_of_all_turns_below_it(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        limit = 60_000
        frames = await client.run(session, TREE, max_tokens=limit)
        end = whole(frames)
        assert end["reason"] == "budget_exhausted"
        used = tokens_of(end["usage"], end["children"]["usage"])
        assert limit / 2 < used <= limit
        assert end["children"]["turns"] > 3
        await check(client, stage.provider, session, frames)


async def test_the_money_of_a_turn_is_that_of_all_turns_below_it(stage: Stage) -> None:
    async with steady(stage, prices=PRICES) as client:
        session = await client.session(toolsets=TOOLSETS)
        limit = 0.6
        frames = await client.run(session, TREE, max_cost_usd=limit)
        end = whole(frames)
        assert end["reason"] == "budget_exhausted"
        assert limit / 2 < end["cost_usd"] + end["children"]["cost_usd"] <= limit
        await check(client, stage.provider, session, frames)


@pytest.mark.parametrize("limit", [{"max_tokens": 30_000}, {"max_cost_usd": 0.3}], ids=["tokens", "money"])
async def test_what_children_may_say_at_the_same_time_fits_into_the_whole(stage: Stage, limit: dict[str, Any]) -> None:
    provider = stage.provider
    async with steady(stage, prices=PRICES, output_tokens=20_000, max_output_tokens=20_000) as client:
        session = await client.session(toolsets=TOOLSETS)
        async with client.turn(session, delegates(*["[[sim silent]]"] * 3), **limit) as stream:
            first, *under_way = await provider.wait_for_requests(4, 5)
            await client.http.delete(f"/turns/{(await stream.until('subagent.started')).data['turn_id']}")
            frames = await stream.read_to_end()
        allowed = [request.body["max_tokens"] for request in under_way]
        assert len(of_children(provider)) == 3
        assert min(allowed) > 1_000
        assert sum(allowed) < 30_000
        assert first not in under_way
        await check(client, provider, session, frames)


async def test_a_day_counts_every_child_once(stage: Stage) -> None:
    key = "agw_test-key-of-daily-0123456789"
    spec = tenant("daily", key, [stage.provider.base_url])
    settings = TenantSettings(tokens_per_day=1_000_000, max_concurrent_turns=1)
    await stage.replica.gateway.tenants.apply(msgspec.structs.replace(spec, settings=settings), generate_key=False)
    async with stage.replica.client(key) as client:
        session = await client.session(toolsets=TOOLSETS)

        async def left(text: str) -> tuple[int, dict[str, Any]]:
            response: httpx.Response = await client.http.post(
                f"/sessions/{session}/turns", json={"input": text}, headers={"Accept": "application/json"}
            )
            assert response.status_code == 200, response.text
            limits = dict(part.strip().split(";r=") for part in response.headers["RateLimit"].split(","))
            return int(limits['"tokens"'].split(";")[0]), response.json()

        before, turn = await left(delegates(*[looks_up(1, "Fine.")] * 3))
        after, _ = await left("hello")
        assert turn["children"]["turns"] == 3, "children are no turns of the tenant's own"
        assert before - after == tokens_of(turn["usage"], turn["children"]["usage"])
        stage.provider.clear()


async def test_a_budget_warning_tells_what_is_left_of_the_whole(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates(looks_up(6, "Six."), rounds=9), max_iterations=12)
        first = of_type(frames, "budget.warning")[0]
        assert first.data["iteration"] <= first.data["max_iterations"] < 12
        assert whole(frames)["reason"] == "budget_exhausted"
        await check(client, stage.provider, session, frames)
