"""The loop as a stream of facts, over a scripted model and scripted tools."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

import msgspec
import pytest
from typing_extensions import override

from app.agent.facts import End, LoopFact, Record, Show
from app.agent.loop import AgentLoop
from app.agent.run import LoopParts
from app.clock import SystemClock
from app.domain.errors import ContextOverflowError, ModelError, ModelUnavailableError
from app.domain.events import AttemptFailedEvent, IterationStarted, MessageCompleted, ToolCompleted, ToolStarted
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message, Role, StoredMessage, ToolCall, ToolSpec
from app.domain.model import (
    NO_OPTIONS,
    AttemptAccepted,
    AttemptFailed,
    FailureReason,
    FinishReason,
    MessageDelta,
    ModelChunk,
    ModelOptions,
    ModelReply,
    RouteRef,
    RouteUse,
    Usage,
)
from app.domain.openings import NOTHING_KEPT, OpenTurn
from app.domain.tenants import TenantSettings
from app.domain.tools import INTERRUPTED_OUTPUT, ToolContext, ToolOutcome
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, Fence, MachineState, TurnRequest
from app.ports import Toolbox
from tests.fakes.memories import InMemoryMemories
from tests.fakes.scripted_model import PRIMARY, USAGE, Script, ScriptedModel, reply
from tests.fakes.sessions import InMemorySessions
from tests.fakes.tooling.todo_store import MemoryTodoStore
from tests.unit.agent.scenes import share_of

SESSION = SessionId("sess_1")
TURN = TurnId("turn_1")
TOOLS = (ToolSpec(name="lookup", description="Looks up.", parameters={"type": "object"}),)
FIRST_SEQ = 8
"""The first free place: behind seven earlier messages, the input included."""


class Tools(Toolbox):
    """One function for every call; remembers the calls in the order in which they began."""

    def __init__(self, run: Callable[[ToolCall], Awaitable[str]] | None = None) -> None:
        self._run = run
        self.begun: list[str] = []
        self.contexts: list[ToolContext] = []
        self.cancelled: list[str] = []

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return ()

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        return ()

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        self.begun.append(call.id)
        self.contexts.append(context)
        try:
            return ToolOutcome(output=f"{call.id} done" if self._run is None else await self._run(call))
        except asyncio.CancelledError:
            self.cancelled.append(call.id)
            raise


def stored(seq: int, message: Message) -> StoredMessage:
    return StoredMessage(
        id=MessageId(f"msg_{seq}"), session_id=SESSION, seq=seq, turn_id=None, message=message, archived=False, created_at_ms=0
    )


INPUT = [stored(FIRST_SEQ - 1, Message(role=Role.USER, content="go"))]


def opened(
    *,
    max_iterations: int = 90,
    state: MachineState | None = None,
    next_seq: int = FIRST_SEQ,
    options: ModelOptions = NO_OPTIONS,
) -> OpenTurn:
    return OpenTurn(
        fence=Fence(turn_id=TURN, session_id=SESSION, owner=ReplicaId("rep_1"), generation=1),
        tenant_id=TenantId("ten_1"),
        request=TurnRequest(input="go", max_iterations=max_iterations, options=options),
        state=state or MachineState(),
        last_seq=2,
        next_message_seq=next_seq,
        system_prompt="Be kind.",
        tools=msgspec.json.encode(TOOLS),
        model=None,
        kept=NOTHING_KEPT,
        keep_interrupted_text=False,
        cancel_reason=None,
        resumed=False,
    )


def calls(*ids: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call_id, "lookup", "{}") for call_id in ids)


def loop_of(model: ScriptedModel, tools: Tools, turn: OpenTurn) -> AgentLoop:
    clock = SystemClock()
    parts = LoopParts(
        model=model,
        summariser=model,
        toolbox=tools,
        clock=clock,
        settings=TenantSettings(),
        todos=MemoryTodoStore(),
        memory=InMemoryMemories(InMemorySessions(clock)),
        share=share_of(turn),
    )
    return AgentLoop(parts)


async def facts_of(
    *scripts: Script, tools: Tools | None = None, turn: OpenTurn | None = None, history: list[StoredMessage] = INPUT
) -> tuple[list[LoopFact], ScriptedModel]:
    """All facts of a turn, and the model with the requests that it got."""
    model = ScriptedModel(*scripts)
    facts = [fact async for fact in loop_of(model, tools or Tools(), turn or opened()).run(turn or opened(), history)]
    return facts, model


def end_of(facts: list[LoopFact]) -> End:
    end = facts[-1]
    assert isinstance(end, End)
    assert not any(isinstance(fact, End) for fact in facts[:-1])
    return end


def records(facts: list[LoopFact]) -> list[Record]:
    return [fact for fact in facts if isinstance(fact, Record)]


def failed(attempt: int, *, shown: bool) -> AttemptFailed:
    return AttemptFailed(
        attempt=attempt,
        route=PRIMARY,
        reason=FailureReason.STALE,
        status=None,
        message="The provider stopped sending.",
        text_shown=shown,
        next_route=PRIMARY,
        delay_s=0.0,
        usage=USAGE,
        cost_usd=0.5,
    )


async def test_a_plain_answer_is_deltas_and_an_end() -> None:
    facts, model = await facts_of([[MessageDelta(1, "Hel"), MessageDelta(1, "lo")], [MessageDelta(1, ".")], [reply("Hello.")]])
    assert facts[:-1] == [
        Show([MessageDelta(attempt=1, text="Hel"), MessageDelta(attempt=1, text="lo")]),
        Show([MessageDelta(attempt=1, text=".")]),
    ]
    end = end_of(facts)
    assert end.outcome == Completed(reason=CompletedReason.ANSWER, output="Hello.")
    assert [(message.seq, message.message) for message in end.messages] == [(FIRST_SEQ, Message(role=Role.ASSISTANT, content="Hello."))]
    assert [type(event) for event in end.events] == [MessageCompleted]
    use = RouteUse(route=PRIMARY, attempts=1, usage=USAGE)
    assert end.state == MachineState(iteration=1, attempts=1, usage=USAGE, route=PRIMARY, routes=(use,), last_call_tokens=12)
    assert model.closed == 1


async def test_the_model_is_asked_with_prompt_tools_and_the_repaired_history() -> None:
    rows = [
        stored(1, Message(role=Role.ASSISTANT, content="", tool_calls=calls("old"))),
        stored(FIRST_SEQ - 2, Message(role=Role.USER, content="")),
        *INPUT,
    ]
    _, model = await facts_of([[reply("x")]], history=rows)
    (request,) = model.requests
    assert (request.system, request.tools, request.first_attempt) == ("Be kind.", TOOLS, 1)
    assert [(message.role, message.content) for message in request.messages] == [
        (Role.ASSISTANT, ""),
        (Role.TOOL, INTERRUPTED_OUTPUT),
        (Role.USER, "go"),
    ]


async def test_a_round_of_calls_is_recorded_as_intent_results_and_boundary() -> None:
    facts, model = await facts_of([[reply("Let me see.", *calls("a", "b"))]], [[reply("Done.", attempt=2)]])
    intent, results = records(facts)

    assert [(message.seq, message.message.role) for message in intent.messages] == [(FIRST_SEQ, Role.ASSISTANT)]
    assert intent.messages[0].message.tool_calls == calls("a", "b")
    assert [type(event) for event in intent.events] == [MessageCompleted, ToolStarted, ToolStarted]
    assert not intent.boundary, "the calls have no results yet: nobody can go on from here"

    assert [(message.seq, message.message.tool_call_id) for message in results.messages] == [(FIRST_SEQ + 1, "a"), (FIRST_SEQ + 2, "b")]
    assert [type(event) for event in results.events] == [ToolCompleted, ToolCompleted, IterationStarted]
    assert results.events[-1] == IterationStarted(iteration=2, max_iterations=90)
    assert results.boundary
    assert results.state.iteration == 2

    end = end_of(facts)
    assert [message.seq for message in end.messages] == [FIRST_SEQ + 3]
    assert end.state.usage == USAGE + USAGE
    assert end.state.attempts == 2
    assert model.requests[1].first_attempt == 2
    assert model.requests[1].messages[: len(model.requests[0].messages)] == model.requests[0].messages


async def test_no_call_starts_before_its_intent_was_taken() -> None:
    tools = Tools()
    model = ScriptedModel([[reply("", *calls("a"))]], [[reply("Done.")]])
    async with aclosing(loop_of(model, tools, opened()).run(opened(), INPUT)) as facts:
        intent = await anext(facts)
        assert isinstance(intent, Record)
        assert tools.begun == []
        await anext(facts)
        assert tools.begun == ["a"]
        assert len(model.requests) == 1, "the next model call waits until the results were taken"


async def test_results_are_recorded_as_they_come_at_the_places_of_their_calls() -> None:
    release = asyncio.Event()

    async def run(call: ToolCall) -> str:
        if call.id == "a":
            await release.wait()
        return call.id

    tools = Tools(run)
    model = ScriptedModel([[reply("", *calls("a", "b", "c"))]], [[reply("Done.")]])
    async with aclosing(loop_of(model, tools, opened()).run(opened(), INPUT)) as facts:
        await anext(facts)
        early = await anext(facts)
        assert isinstance(early, Record)
        assert [(message.seq, message.message.content) for message in early.messages] == [(FIRST_SEQ + 2, "b"), (FIRST_SEQ + 3, "c")]
        assert not early.boundary
        assert early.state.iteration == 1
        release.set()
        late = await anext(facts)
        assert isinstance(late, Record)
        assert [(message.seq, message.message.content) for message in late.messages] == [(FIRST_SEQ + 1, "a")]
        assert late.boundary
        async for _ in facts:
            pass
    assert [message.tool_call_id for message in model.requests[1].messages[-3:]] == ["a", "b", "c"]


async def test_calls_with_unreadable_arguments_are_answered_unrun() -> None:
    tools = Tools()
    facts, model = await facts_of([[reply("", *calls("a", "b"), bad_arguments={"a": "cut off"})]], [[reply("Done.")]], tools=tools)
    assert tools.begun == ["b"]
    answered = {message.tool_call_id: message for message in model.requests[1].messages if message.role is Role.TOOL}
    assert answered["a"].is_error
    assert "cut off" in str(answered["a"].content)
    assert answered["b"].content == "b done"
    assert end_of(facts).outcome == Completed(reason=CompletedReason.ANSWER, output="Done.")


async def test_tools_are_told_whose_call_it_is_and_what_is_enabled() -> None:
    tools = Tools()
    await facts_of([[reply("", *calls("a"))]], [[reply("Done.")]], tools=tools)
    assert tools.contexts == [ToolContext(tenant_id=TenantId("ten_1"), session_id=SESSION, turn_id=TURN, enabled=frozenset({"lookup"}))]


async def test_failed_attempts_are_facts_between_the_deltas_and_count_once() -> None:
    facts, model = await facts_of(
        [
            [MessageDelta(1, "ha"), failed(1, shown=True)],
            [failed(2, shown=False)],
            [MessageDelta(3, "ok")],
            [reply("ok", *calls("a"), attempt=3)],
        ],
        [[reply("Done.", attempt=4)]],
    )
    assert [type(fact) for fact in facts] == [Show, Record, Record, Show, Record, Record, End]
    assert [type(record.events[0]) for record in records(facts)[:2]] == [AttemptFailedEvent, AttemptFailedEvent]
    assert [record.state.attempts for record in records(facts)] == [1, 2, 3, 3]
    assert model.requests[1].first_attempt == 4
    assert end_of(facts).state.iteration == 2, "attempts cost no iteration"


FAILURES = {
    "unavailable": (
        ModelUnavailableError(FailureReason.OVERLOADED, "It is overloaded."),
        Failed(reason=FailedReason.PROVIDER_UNAVAILABLE, detail="It is overloaded.", retryable=True),
    ),
    "overflow": (
        ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "It does not fit."),
        Failed(reason=FailedReason.CONTEXT_EXHAUSTED, detail="It does not fit.", retryable=False),
    ),
}


@pytest.mark.parametrize(("error", "outcome"), FAILURES.values(), ids=FAILURES)
async def test_a_failed_model_call_ends_the_turn_without_a_message(error: ModelError, outcome: Failed) -> None:
    facts, _ = await facts_of([[MessageDelta(1, "ha")], [failed(1, shown=True)], error])
    end = end_of(facts)
    assert (end.outcome, end.messages, end.events) == (outcome, (), ())
    assert end.state.attempts == 1
    assert (end.state.usage, end.state.cost_usd) == (USAGE, 0.5), "a failed call is paid for as far as providers said"


async def test_a_failure_after_tools_keeps_what_was_recorded() -> None:
    facts, _ = await facts_of([[reply("", *calls("a"))]], [ModelUnavailableError(FailureReason.STALE, "Stale.")])
    end = end_of(facts)
    assert isinstance(end.outcome, Failed)
    assert (end.state.iteration, end.state.usage, end.state.route) == (2, USAGE, PRIMARY)
    assert end.messages == ()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("Half", finish=FinishReason.LENGTH), FailedReason.OUTPUT_TRUNCATED),
        (reply("Half", *calls("a"), finish=FinishReason.LENGTH), FailedReason.OUTPUT_TRUNCATED),
        (reply("Half", finish=FinishReason.CONTENT_FILTER), FailedReason.CONTENT_FILTERED),
    ],
    ids=["length", "length with a call", "filter"],
)
async def test_a_cut_reply_runs_nothing_and_leaves_no_message(answer: ModelReply, reason: FailedReason) -> None:
    tools = Tools()
    facts, _ = await facts_of([[answer]], tools=tools, turn=opened(options=ModelOptions(max_output_tokens=5)))
    end = end_of(facts)
    assert isinstance(end.outcome, Failed)
    assert (end.outcome.reason, end.outcome.output) == (reason, "Half")
    assert (end.messages, tools.begun) == ((), [])
    assert end.state.usage == USAGE, "what was cut is paid for all the same"


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_the_limit_ends_the_turn_after_as_many_model_calls_and_a_closing_one(limit: int) -> None:
    scripts: list[Script] = [[[reply("", *calls(f"c{number}"), attempt=number + 1)]] for number in range(limit)]
    facts, model = await facts_of(*scripts, [[reply("All in all.", attempt=limit + 1)]], turn=opened(max_iterations=limit))
    assert len(model.requests) == limit + 1
    closing = model.requests[-1]
    assert (closing.options.tool_choice, closing.tools) == ("none", model.requests[0].tools)
    assert "[BUDGET EXHAUSTED: " in str(closing.messages[-1].content)
    end = end_of(facts)
    assert end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="All in all.")
    assert [type(event) for event in end.events] == [MessageCompleted]
    [answer] = end.messages
    assert (answer.message, answer.seq) == (Message(role=Role.ASSISTANT, content="All in all."), FIRST_SEQ + 2 * limit)
    assert end.state.iteration == limit
    assert sum(record.boundary for record in records(facts)) == limit


async def test_a_resumed_turn_goes_on_from_its_state() -> None:
    rows = [
        *INPUT,
        stored(FIRST_SEQ, Message(role=Role.ASSISTANT, content="", tool_calls=calls("a"))),
        stored(FIRST_SEQ + 1, Message(role=Role.TOOL, content="a done", tool_call_id="a", tool_name="lookup")),
    ]
    state = MachineState(iteration=2, attempts=3, usage=USAGE, route=PRIMARY)
    turn = opened(max_iterations=2, state=state, next_seq=FIRST_SEQ + 2)
    facts, model = await facts_of([[reply("", *calls("b"), attempt=4)]], [[reply("So.", attempt=5)]], turn=turn, history=rows)
    assert model.requests[0].first_attempt == 4
    assert [message.role for message in model.requests[0].messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    end = end_of(facts)
    assert isinstance(end.outcome, Completed)
    assert end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED
    assert [message.seq for message in end.messages] == [FIRST_SEQ + 4]
    assert end.state.usage == USAGE + USAGE + USAGE


async def test_every_place_is_given_once_and_in_order() -> None:
    facts, _ = await facts_of(
        [[reply("", *calls("a", "b"))]], [[reply("", *calls("c"))]], [[reply("", *calls("d", "e", "f"))]], [[reply("Done.")]]
    )
    placed = [message for fact in facts if isinstance(fact, Record | End) for message in fact.messages]
    assert sorted(message.seq for message in placed) == list(range(FIRST_SEQ, FIRST_SEQ + 10))
    assert len({message.id for message in placed}) == len(placed)
    assert {(message.session_id, message.turn_id) for message in placed} == {(SESSION, TURN)}


async def cancelled_while(facts: AsyncGenerator[LoopFact, None], reached: asyncio.Event) -> None:
    """Pull facts in a task of its own and cancel it once ``reached`` is set."""

    async def pull() -> None:
        async with aclosing(facts):
            async for _ in facts:
                pass

    task = asyncio.create_task(pull())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_closes_the_model_stream() -> None:
    model = ScriptedModel([[MessageDelta(1, "ha")], asyncio.Event()])
    await cancelled_while(loop_of(model, Tools(), opened()).run(opened(), INPUT), model.waiting)
    assert model.closed == 1


ELSEWHERE = RouteRef(provider="p2", model="m-test")
INTERRUPTED: dict[str, tuple[Sequence[ModelChunk], int, dict[RouteRef, Usage]]] = {
    "before anything": ((), 0, {}),
    "between attempts": ((failed(1, shown=False),), 0, {PRIMARY: USAGE}),
    "accepted, silent": ((AttemptAccepted(1, ELSEWHERE),), 0, {ELSEWHERE: Usage(input_tokens=-1)}),
    "writing": ((AttemptAccepted(1, ELSEWHERE), MessageDelta(1, "Hello")), 5, {ELSEWHERE: Usage(input_tokens=-1, output_tokens=2)}),
    "behind a broken one": ((AttemptAccepted(1, PRIMARY), MessageDelta(1, "Hel"), failed(1, shown=True)), 0, {PRIMARY: USAGE}),
    "in the next attempt": (
        (failed(1, shown=False), AttemptAccepted(2, ELSEWHERE)),
        0,
        {PRIMARY: USAGE, ELSEWHERE: Usage(input_tokens=-1)},
    ),
}


@pytest.mark.parametrize(("chunks", "shown", "used"), INTERRUPTED.values(), ids=INTERRUPTED)
async def test_what_was_used_until_an_interrupt_is_in_the_state(
    chunks: Sequence[ModelChunk], shown: int, used: dict[RouteRef, Usage]
) -> None:
    model = ScriptedModel([*((chunk,) for chunk in chunks), asyncio.Event()])
    loop = loop_of(model, Tools(), opened())
    await cancelled_while(loop.run(opened(), INPUT), model.waiting)
    state = loop.interrupted_state(shown)
    assert state is not None
    sent = model.requests[0].input_tokens
    assert sent > 0
    expected = {
        route: msgspec.structs.replace(usage, input_tokens=sent) if usage.input_tokens < 0 else usage for route, usage in used.items()
    }
    assert {use.route: use.usage for use in state.routes} == expected
    assert state.usage == sum(expected.values(), Usage())
    assert state.attempts == len(expected)


async def test_a_cancellation_reaches_every_running_tool() -> None:
    running = asyncio.Event()

    async def run(call: ToolCall) -> str:
        if call.id == "c":
            running.set()
        await asyncio.Event().wait()
        return "never"

    tools = Tools(run)
    model = ScriptedModel([[reply("", *calls("a", "b", "c"))]])
    await cancelled_while(loop_of(model, tools, opened()).run(opened(), INPUT), running)
    assert sorted(tools.cancelled) == ["a", "b", "c"]
    assert len(model.requests) == 1
