"""Every API mode in conversation with the simulator, which refuses what real providers refuse."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest

from app.clock import SystemClock
from app.domain.ids import ProviderId
from app.domain.messages import Message, Replay, Role, ToolSpec
from app.domain.model import ApiMode, Delta, FailureReason, FinishReason, MessageDelta, ModelOptions, ModelRequest, ReasoningDelta, Usage
from app.domain.tenants import Provider, Route
from app.providers.classify import Failure
from app.providers.mode import Mode, ReplyParts
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.modes.responses import Responses
from app.providers.stream import Attempt
from app.providers.transport import ProviderTransport, endpoint_of
from app.simulator import RequestEnd, Simulator
from tests.unit.providers.modes.conversations import result, user

MODES: dict[ApiMode, Mode] = {
    ApiMode.CHAT_COMPLETIONS: ChatCompletions(),
    ApiMode.RESPONSES: Responses(),
    ApiMode.ANTHROPIC_MESSAGES: AnthropicMessages(),
}
TOOLS = (ToolSpec(name="now", description="The time.", parameters={"type": "object"}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What an attempt gave."""

    outcome: ReplyParts | Failure
    deltas: list[Delta]
    usage: Usage

    @property
    def reply(self) -> ReplyParts:
        assert isinstance(self.outcome, ReplyParts), self.outcome
        return self.outcome

    @property
    def shown(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, MessageDelta))

    @property
    def thought(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ReasoningDelta))


class Talk:
    """A conversation over one route, kept as the agent keeps it."""

    def __init__(self, api_mode: ApiMode, simulator: Simulator, transport: ProviderTransport) -> None:
        provider = Provider(id=ProviderId("prov_1"), name="p", api_mode=api_mode, base_url=simulator.base_url, api_key="k", headers={})
        self.route = Route(provider=provider, model="m")
        self.mode = MODES[api_mode]
        self.transport = transport
        self.messages: list[Message] = []

    async def hear(self, *messages: Message, options: ModelOptions | None = None) -> Heard:
        self.messages += messages
        request = ModelRequest(
            system="Be kind.", messages=tuple(self.messages), tools=TOOLS, first_attempt=1, options=options or ModelOptions()
        )
        decoder = self.mode.decoder(request, 1)
        attempt = Attempt(self.route, endpoint_of(self.route, self.mode), decoder, lambda: 0.0)
        deltas: list[Delta] = []
        try:
            await attempt.open(self.transport, self.mode.encode(self.route, request), SystemClock())
            while arrived := await attempt.read():
                deltas += arrived
        finally:
            attempt.close()
        assert attempt.outcome is not None
        return Heard(outcome=attempt.outcome, deltas=deltas, usage=attempt.usage)

    async def answer_to(self, *messages: Message) -> ReplyParts:
        """Hear a reply and keep it."""
        reply = (await self.hear(*messages)).reply
        replay = Replay(origin=self.route.origin, items=reply.replay) if reply.replay else None
        self.messages.append(Message(role=Role.ASSISTANT, content=reply.text, tool_calls=reply.tool_calls, replay=replay))
        return reply


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    running = Simulator(picky=True)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture(params=MODES, ids=[mode.value for mode in MODES])
async def talk(request: pytest.FixtureRequest, simulator: Simulator) -> AsyncIterator[Talk]:
    transport = ProviderTransport()
    yield Talk(request.param, simulator, transport)
    await transport.close()


async def test_reasoning_and_calls_go_back_as_they_came(talk: Talk) -> None:
    asked = user("[[sim reasoning=3 tool=now args={} parallel=2 rounds=2 preamble=Looking. text=Late.]]")
    first = await talk.answer_to(asked)
    assert (first.text, first.finish, len(first.tool_calls)) == ("Looking.", FinishReason.TOOL_CALLS, 2)
    assert first.reasoning == "the river carried"
    second = await talk.answer_to(*(result(call.id) for call in first.tool_calls))
    third = await talk.answer_to(*(result(call.id) for call in second.tool_calls))
    assert (third.text, third.finish) == ("Late.", FinishReason.STOP)
    assert bool(third.replay) is (talk.route.provider.api_mode is not ApiMode.CHAT_COMPLETIONS)
    assert (await talk.answer_to(user("[[sim text=Bye.]]"))).text == "Bye."


async def test_each_request_repeats_the_one_before_it_and_goes_on(talk: Talk, simulator: Simulator) -> None:
    if talk.route.provider.api_mode is ApiMode.ANTHROPIC_MESSAGES:
        return  # its cache markers move; see the tests of its encoder
    first = await talk.answer_to(user("[[sim reasoning=3 tool=now text=Late.]]"))
    await talk.answer_to(*(result(call.id) for call in first.tool_calls))
    await talk.answer_to(user("Thanks"))
    bodies = [record.raw for record in simulator.requests]
    assert all(later.startswith(earlier.removesuffix(b"]}")) for earlier, later in itertools.pairwise(bodies))


async def test_deltas_make_up_the_reply(talk: Talk) -> None:
    heard = await talk.hear(user('[[sim reasoning=4 text="Dé jà vu 🦊." usage=11/7]]'))
    assert (heard.shown, heard.thought) == (heard.reply.text, heard.reply.reasoning) == ("Dé jà vu 🦊.", "the river carried a")
    assert (heard.usage.input_tokens, heard.usage.output_tokens) == (11, 7)


async def test_options_are_taken(talk: Talk, simulator: Simulator) -> None:
    options = ModelOptions(
        max_output_tokens=64,
        temperature=0.5,
        stop=("END",),
        tool_choice="tool:now",
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    )
    assert (await talk.hear(user("[[sim text=ok]]"), options=options)).reply.text == "ok"
    assert simulator.requests[0].problems == ()


@pytest.mark.parametrize(
    ("finish", "verdict"), [("length", FinishReason.LENGTH), ("stop", FinishReason.TOOL_CALLS), ("tool_calls", FinishReason.TOOL_CALLS)]
)
async def test_what_a_reply_holds_decides(talk: Talk, finish: str, verdict: FinishReason) -> None:
    reply = (await talk.hear(user(f"[[sim tool=now finish={finish}]]"))).reply
    assert reply.finish is verdict
    assert bool(reply.tool_calls) is (verdict is FinishReason.TOOL_CALLS)


async def test_a_refusal(talk: Talk) -> None:
    reply = (await talk.hear(user('[[sim refusal="I will not."]]'))).reply
    assert (reply.text, reply.finish) == ("I will not.", FinishReason.REFUSAL)


FAULTS = [
    ("cut_after=2", FailureReason.INCOMPLETE_STREAM),
    ("no_finish", FailureReason.INCOMPLETE_STREAM),
    ("drop_after=2", FailureReason.CONNECTION_BROKEN),
    ("reset_after=2", FailureReason.CONNECTION_BROKEN),
    ("garbage_after=2", FailureReason.INVALID_RESPONSE),
    ("empty", FailureReason.INVALID_RESPONSE),
    ("stall_after=0", FailureReason.FIRST_TOKEN_TIMEOUT),
    ("stall_after=2", FailureReason.STALE),
    ("comments_after=2 every_ms=20", FailureReason.STALE),
    ("empty_deltas_after=2 every_ms=20", FailureReason.STALE),
    ("error_after=2 error_code=rate_limit_exceeded error_type=rate_limit_error", FailureReason.RATE_LIMIT),
    ("json_error error_code=rate_limit_exceeded error_type=rate_limit_error", FailureReason.RATE_LIMIT),
    ("status=401", FailureReason.AUTH),
    ("html_status=529", FailureReason.OVERLOADED),
    ("hangup", FailureReason.CONNECTION_BROKEN),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[fault.split()[0] for fault, _ in FAULTS])
async def test_a_fault_is_the_same_in_every_mode(talk: Talk, fault: str, reason: FailureReason) -> None:
    talk.route = msgspec.structs.replace(talk.route, first_token_timeout_s=0.5, stale_timeout_s=0.2)
    outcome = (await talk.hear(user(f"[[sim tokens=6 {fault}]]"))).outcome
    assert isinstance(outcome, Failure)
    assert outcome.reason is reason


async def test_reasoning_of_another_model_is_refused_by_the_simulator_and_left_out_by_the_gateway(talk: Talk, simulator: Simulator) -> None:
    await talk.answer_to(user("[[sim reasoning=3 text=Hm.]]"))
    talk.route = Route(provider=talk.route.provider, model="other")
    assert (await talk.answer_to(user("[[sim text=Fine.]]"))).text == "Fine."
    assert [record.problems for record in simulator.requests] == [(), ()]
    assert simulator.requests[-1].ending is RequestEnd.COMPLETED


async def test_reasoning_that_is_not_accepted_is_named_so(talk: Talk) -> None:
    reply = await talk.answer_to(user("[[sim reasoning=3 text=Hm.]]"))
    forged = tuple({**item, "encrypted_content": "forged", "signature": "forged"} for item in reply.replay)
    if not forged:
        return  # nothing goes back in this mode
    talk.messages[-1] = msgspec.structs.replace(talk.messages[-1], replay=Replay(origin=talk.route.origin, items=forged))
    outcome = (await talk.hear(user("[[sim text=Fine.]]"))).outcome
    assert isinstance(outcome, Failure)
    assert outcome.reason is FailureReason.INVALID_REPLAY
