"""Requests and replies over HTTP, against a simulator that refuses what Anthropic refuses."""

from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest

from app.clock import SystemClock
from app.domain.ids import ProviderId
from app.domain.messages import Message, Replay, Role
from app.domain.model import ApiMode, FailureReason, FinishReason, ModelRequest
from app.domain.tenants import Provider, Route
from app.providers.classify import Failure
from app.providers.mode import ReplyParts
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.stream import Attempt
from app.providers.transport import ProviderTransport, endpoint_of
from app.simulator import Simulator
from tests.unit.providers.modes.conversations import TOOLS, result, user

MODE = AnthropicMessages()


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    running = Simulator(picky=True)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def transport() -> AsyncIterator[ProviderTransport]:
    opened = ProviderTransport()
    yield opened
    await opened.close()


@pytest.fixture
def route(simulator: Simulator) -> Route:
    provider = Provider(
        id=ProviderId("prov_1"), name="p", api_mode=ApiMode.ANTHROPIC_MESSAGES, base_url=simulator.base_url, api_key="k", headers={}
    )
    return Route(provider=provider, model="m")


async def ask(transport: ProviderTransport, route: Route, *messages: Message) -> ReplyParts | Failure | None:
    request = ModelRequest(system="Be kind.", messages=messages, tools=TOOLS, first_attempt=1)
    attempt = Attempt(route, endpoint_of(route, MODE), MODE.decoder(request, 1), lambda: 0.0)
    try:
        await attempt.open(transport, MODE.encode(route, request), SystemClock())
        while await attempt.read():
            pass
    finally:
        attempt.close()
    return attempt.outcome


def answered(reply: ReplyParts, route: Route) -> list[Message]:
    """What the history gains by a reply with calls."""
    replay = Replay(origin=route.origin, items=reply.replay)
    asked = Message(role=Role.ASSISTANT, content=reply.text, tool_calls=reply.tool_calls, reasoning=reply.reasoning, replay=replay)
    return [asked, *(result(call.id) for call in reply.tool_calls)]


async def test_thinking_goes_back_with_its_calls_through_several_rounds(
    simulator: Simulator, transport: ProviderTransport, route: Route
) -> None:
    history = [user('[[sim reasoning=3 tool=lookup parallel=2 rounds=3 preamble="Wait. " args={"q":"$round"} text=Done.]]')]
    replies = []
    for _ in range(4):
        reply = await ask(transport, route, *history)
        assert isinstance(reply, ReplyParts)
        replies.append(reply)
        history += answered(reply, route)
    assert [reply.finish for reply in replies] == [FinishReason.TOOL_CALLS] * 3 + [FinishReason.STOP]
    assert [reply.reasoning for reply in replies] == ["the river carried"] * 4
    assert [call.arguments for call in replies[1].tool_calls] == ['{"q":"2"}'] * 2
    assert [record.problems for record in simulator.requests] == [()] * 4
    bodies = [record.raw.replace(b',"cache_control":{"type":"ephemeral"}', b"").removesuffix(b"]}]}") for record in simulator.requests]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(bodies))
    assert simulator.requests[0].headers["anthropic-version"] == "2023-06-01"
    assert simulator.requests[0].headers["x-api-key"] == "k"


async def test_thinking_of_another_model_is_left_out(simulator: Simulator, transport: ProviderTransport, route: Route) -> None:
    said = user("[[sim reasoning=3 text=Hey]]")
    first = await ask(transport, route, said)
    assert isinstance(first, ReplyParts)
    other = msgspec.structs.replace(route, model="other")
    assert isinstance(await ask(transport, other, said, *answered(first, route), user("Again")), ReplyParts)
    refused = await ask(transport, other, said, *answered(first, other), user("Again"))
    assert isinstance(refused, Failure)
    assert refused.status == 400
    assert "signature" in refused.message


@pytest.mark.parametrize(
    ("directives", "reason"),
    [
        ("status=529", FailureReason.OVERLOADED),
        ("status=429 retry_after=2", FailureReason.RATE_LIMIT),
        ("status=401", FailureReason.AUTH),
        ("status=404", FailureReason.MODEL_NOT_FOUND),
        ("json_error error_type=overloaded_error", FailureReason.OVERLOADED),
        ("tokens=9 error_after=2 error_type=overloaded_error", FailureReason.OVERLOADED),
        ("tokens=9 cut_after=2", FailureReason.INCOMPLETE_STREAM),
        ("tokens=9 no_done", FailureReason.INCOMPLETE_STREAM),
        ("tokens=9 no_finish", FailureReason.INCOMPLETE_STREAM),
        ("tokens=9 drop_after=2", FailureReason.CONNECTION_BROKEN),
        ("tokens=9 garbage_after=2", FailureReason.INVALID_RESPONSE),
        ("empty", FailureReason.INVALID_RESPONSE),
        ("hangup", FailureReason.CONNECTION_BROKEN),
    ],
)
async def test_faults(transport: ProviderTransport, route: Route, directives: str, reason: FailureReason) -> None:
    outcome = await ask(transport, route, user(f"[[sim {directives}]]"))
    assert isinstance(outcome, Failure)
    assert outcome.reason is reason


async def test_comments_and_empty_deltas_are_no_content(transport: ProviderTransport, route: Route) -> None:
    impatient = msgspec.structs.replace(route, stale_timeout_s=0.2)
    for fault in ("comments_after", "empty_deltas_after"):
        outcome = await ask(transport, impatient, user(f"[[sim tokens=9 {fault}=2 every_ms=20]]"))
        assert isinstance(outcome, Failure)
        assert outcome.reason is FailureReason.STALE
