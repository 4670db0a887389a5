import msgspec
import pytest

from app.agent import machine
from app.agent.budget import Budget
from app.agent.machine import AfterReply, CallAgain, CallModel, Finish, RunTools, after_tools, count_failure, count_reply
from app.domain.errors import ModelUnavailableError
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.model import AttemptFailed, FailureReason, FinishReason, ModelReply, RouteRef, Usage
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState, PressureLevel, RouteUse

ROUTE = RouteRef(provider="p1", model="m-test")
BUDGET = Budget(iterations=90)
BEGUN = MachineState()
OTHER = RouteRef(provider="p2", model="m-test")
CALLS = (ToolCall("c1", "lookup", '{"q":"a"}'), ToolCall("c2", "lookup", "{}"))


def reply(finish: FinishReason, text: str = "", calls: tuple[ToolCall, ...] = (), **more: object) -> ModelReply:
    plain = ModelReply(
        attempt=1,
        route=ROUTE,
        text=text,
        reasoning="",
        tool_calls=calls,
        bad_arguments={},
        finish=finish,
        usage=Usage(),
        cost_usd=None,
    )
    return msgspec.structs.replace(plain, **more)


def failure(attempt: int, route: RouteRef, usage: Usage, cost_usd: float | None) -> AttemptFailed:
    return AttemptFailed(
        attempt=attempt,
        route=route,
        reason=FailureReason.STALE,
        status=None,
        message="The provider stopped sending.",
        text_shown=False,
        next_route=None,
        delay_s=0.0,
        usage=usage,
        cost_usd=cost_usd,
    )


def after_reply(reply: ModelReply, state: MachineState = BEGUN, *, may_continue: bool = True) -> AfterReply:
    return machine.after_reply(state, reply, BUDGET, may_continue=may_continue)[1]


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.TOOL_CALLS])
def test_calls_run_whatever_the_label_says(finish: FinishReason) -> None:
    step = after_reply(reply(finish, "Let me see.", CALLS, reasoning="hm", bad_arguments={"c2": "broken"}))
    assert step == RunTools(
        message=Message(role=Role.ASSISTANT, content="Let me see.", tool_calls=CALLS, reasoning="hm"),
        calls=CALLS,
        bad_arguments={"c2": "broken"},
    )


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.TOOL_CALLS])
def test_text_without_calls_is_the_answer(finish: FinishReason) -> None:
    step = after_reply(reply(finish, "Four."))
    assert step == Finish(
        outcome=Completed(reason=CompletedReason.ANSWER, output="Four."), message=Message(role=Role.ASSISTANT, content="Four.")
    )


def test_a_refusal_to_go_on_is_no_answer() -> None:
    begun = msgspec.structs.replace(BEGUN, parts=("Once upon ",))
    step = after_reply(reply(FinishReason.REFUSAL, "I will not."), begun)
    assert isinstance(step, Finish)
    assert isinstance(step.outcome, Failed)
    assert (step.outcome.reason, step.outcome.output) == (FailedReason.CONTENT_FILTERED, "Once upon I will not.")


def test_a_refusal_completes_the_turn_as_one() -> None:
    step = after_reply(reply(FinishReason.REFUSAL, "I will not."))
    assert step == Finish(
        outcome=Completed(reason=CompletedReason.REFUSAL, output="I will not."),
        message=Message(role=Role.ASSISTANT, content="I will not."),
    )


@pytest.mark.parametrize("calls", [(), CALLS], ids=["text", "calls"])
@pytest.mark.parametrize(
    ("finish", "reason"),
    [(FinishReason.LENGTH, FailedReason.OUTPUT_TRUNCATED), (FinishReason.CONTENT_FILTER, FailedReason.CONTENT_FILTERED)],
    ids=["length", "content filter"],
)
def test_a_cut_reply_fails_and_leaves_no_message(finish: FinishReason, reason: FailedReason, calls: tuple[ToolCall, ...]) -> None:
    step = after_reply(reply(finish, "Half", calls), may_continue=False)
    assert isinstance(step, Finish)
    assert step.message is None
    assert isinstance(step.outcome, Failed)
    assert (step.outcome.reason, step.outcome.output, step.outcome.retryable) == (reason, "Half", False)
    assert step.outcome.detail


FAILURES = {
    FailureReason.AUTH: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.BILLING: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.RATE_LIMIT: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.FORBIDDEN: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.MODEL_NOT_FOUND: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.CONTEXT_OVERFLOW: (FailedReason.CONTEXT_EXHAUSTED, False),
    FailureReason.PAYLOAD_TOO_LARGE: (FailedReason.CONTEXT_EXHAUSTED, False),
    FailureReason.CONTENT_FILTERED: (FailedReason.CONTENT_FILTERED, False),
    FailureReason.INVALID_REQUEST: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.OVERLOADED: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.SERVER_ERROR: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.CONNECT_FAILED: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.CONNECTION_BROKEN: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.FIRST_TOKEN_TIMEOUT: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.STALE: (FailedReason.PROVIDER_UNAVAILABLE, True),
    FailureReason.INCOMPLETE_STREAM: (FailedReason.INVALID_RESPONSE, True),
    FailureReason.INVALID_RESPONSE: (FailedReason.INVALID_RESPONSE, True),
    FailureReason.UNSUPPORTED: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.INVALID_REPLAY: (FailedReason.PROVIDER_UNAVAILABLE, False),
    FailureReason.BAD_UNICODE: (FailedReason.PROVIDER_UNAVAILABLE, False),
}


REFUSED = {
    FailureReason.CONTEXT_OVERFLOW,
    FailureReason.PAYLOAD_TOO_LARGE,
    FailureReason.CONTENT_FILTERED,
    FailureReason.INVALID_REQUEST,
    FailureReason.UNSUPPORTED,
    FailureReason.BAD_UNICODE,
}
"""What would be refused again: the turn's messages must not be sent with the next one."""


@pytest.mark.parametrize("reason", list(FailureReason), ids=str)
def test_an_impossible_model_call_ends_the_turn_with_a_type(reason: FailureReason) -> None:
    expected, retryable = FAILURES[reason]
    mendable = reason in (FailureReason.INVALID_REQUEST, FailureReason.UNSUPPORTED, FailureReason.BAD_UNICODE)
    assert machine.after_failure(BEGUN, ModelUnavailableError(reason, "It is so."), BUDGET) == Finish(
        outcome=Failed(reason=expected, detail="It is so.", retryable=retryable, refused=mendable), message=None, forget=reason in REFUSED
    )


@pytest.mark.parametrize(("iteration", "limit"), [(1, 2), (1, 90), (62, 90)])
def test_tools_are_followed_by_the_next_iteration_while_one_is_left(iteration: int, limit: int) -> None:
    state = MachineState(iteration=iteration, attempts=4)
    assert after_tools(state, Budget(iterations=limit)) == (MachineState(iteration=iteration + 1, attempts=4), CallModel())


@pytest.mark.parametrize(("iteration", "limit"), [(1, 1), (90, 90), (5, 3)], ids=["first", "last", "beyond"])
def test_the_last_iterations_tools_are_followed_by_the_closing_call(iteration: int, limit: int) -> None:
    state, step = after_tools(MachineState(iteration=iteration), Budget(iterations=limit))
    assert state == MachineState(iteration=iteration, pressure=PressureLevel.EXHAUSTED)
    assert step.told is not None
    assert (step.told.level, step.told.text.startswith("[BUDGET EXHAUSTED: ")) == (PressureLevel.EXHAUSTED, True)


def test_pressure_is_told_once_a_level() -> None:
    state, told = MachineState(), []
    for _ in range(89):
        state, step = after_tools(state, BUDGET)
        if step.told is not None:
            told.append((state.iteration - 1, step.told.text.split(" left.")[0]))
    assert told == [(63, "[BUDGET: Iteration 63/90. 27"), (81, "[BUDGET WARNING: Iteration 81/90. Only 9")]


CLOSING = MachineState(iteration=3, pressure=PressureLevel.EXHAUSTED, last_text="I looked at a.")


@pytest.mark.parametrize(
    ("closing", "said"),
    [
        (reply(FinishReason.STOP, "All in all."), "All in all."),
        (reply(FinishReason.TOOL_CALLS, "One last look.", CALLS), "One last look."),
        (reply(FinishReason.LENGTH, "All in"), "All in"),
        (reply(FinishReason.TOOL_CALLS, "", CALLS), "I looked at a."),
        (reply(FinishReason.CONTENT_FILTER, "Bad"), "I looked at a."),
    ],
    ids=["text", "text and calls", "cut", "calls only", "filtered"],
)
def test_whatever_comes_of_the_closing_call_the_turn_has_an_answer(closing: ModelReply, said: str) -> None:
    step = after_reply(closing, CLOSING)
    assert isinstance(step, Finish)
    assert isinstance(step.outcome, Completed)
    assert step.outcome.reason is CompletedReason.BUDGET_EXHAUSTED
    assert step.outcome.output.startswith(said)
    assert step.message is not None
    assert (step.message.content, step.message.tool_calls) == (step.outcome.output, ())


def test_a_closing_call_that_fails_costs_no_answer() -> None:
    error = ModelUnavailableError(FailureReason.SERVER_ERROR, "It failed.")
    bare = msgspec.structs.replace(CLOSING, last_text="")
    for state, said in ((CLOSING, "I looked at a."), (bare, "I stopped here: ")):
        step = machine.after_failure(state, error, BUDGET)
        assert isinstance(step.outcome, Completed)
        assert step.outcome.output.startswith(said)


def test_cut_text_is_continued_three_times_and_then_fails_whole() -> None:
    state = MachineState()
    for number in range(3):
        state, step = machine.after_reply(state, reply(FinishReason.LENGTH, f"{number} "), BUDGET, may_continue=True)
        assert isinstance(step, CallAgain)
        assert [message.role for message in step.messages] == [Role.ASSISTANT, Role.USER]
        assert {message.kind for message in step.messages} == {MessageKind.NOTE}
    assert (state.iteration, state.continuations, state.parts) == (4, 3, ("0 ", "1 ", "2 "))
    _, end = machine.after_reply(state, reply(FinishReason.STOP, "end"), BUDGET, may_continue=True)
    assert isinstance(end, Finish)
    assert end.outcome == Completed(reason=CompletedReason.ANSWER, output="0 1 2 end")
    assert end.part == Message(role=Role.ASSISTANT, content="end", kind=MessageKind.NOTE)
    _, fourth = machine.after_reply(state, reply(FinishReason.LENGTH, "3 "), BUDGET, may_continue=True)
    assert isinstance(fourth, Finish)
    assert isinstance(fourth.outcome, Failed)
    assert (fourth.outcome.reason, fourth.outcome.output) == (FailedReason.OUTPUT_TRUNCATED, "0 1 2 3 ")


def test_a_cut_call_is_asked_for_again_with_more_room_and_never_run() -> None:
    state = MachineState()
    cut = reply(FinishReason.LENGTH, "Let me", calls_cut=True, may_grow=True)
    for number in range(1, 4):
        state, step = machine.after_reply(state, cut, BUDGET, may_continue=True)
        assert step == CallAgain(messages=(), void=True)
        assert (state.retries, state.iteration) == (number, number + 1)
    assert isinstance(machine.after_reply(state, cut, BUDGET, may_continue=True)[1], Finish)
    no_room = msgspec.structs.replace(cut, may_grow=False)
    assert isinstance(after_reply(no_room), Finish)


def test_calls_behind_a_continued_text_leave_the_text_to_the_transcript() -> None:
    state = MachineState(iteration=2, continuations=1, parts=("I will ",))
    state, step = machine.after_reply(state, reply(FinishReason.TOOL_CALLS, "look.", CALLS), BUDGET, may_continue=True)
    assert isinstance(step, RunTools)
    assert step.unshown == Message(role=Role.ASSISTANT, content="I will ")
    assert (state.parts, state.continuations, state.last_text) == ((), 0, "I will look.")


def test_usage_attempts_and_route_are_counted_over_the_turn() -> None:
    state = MachineState(iteration=3, attempts=1, usage=Usage(input_tokens=1, output_tokens=2))
    used = Usage(input_tokens=10, output_tokens=20, cached_input_tokens=3, reasoning_tokens=4)
    counted = count_reply(state, reply(FinishReason.STOP, "x", attempt=4, usage=used))
    assert counted == MachineState(
        iteration=3,
        attempts=4,
        usage=Usage(input_tokens=11, output_tokens=22, cached_input_tokens=3, reasoning_tokens=4),
        cost_usd=None,
        route=ROUTE,
        last_call_tokens=30,
        routes=(RouteUse(route=ROUTE, attempts=1, usage=used),),
    )


def test_a_failed_attempt_is_charged_to_its_route_as_well() -> None:
    used = Usage(input_tokens=10)
    assert count_failure(MachineState(attempts=1), failure(2, ROUTE, used, 0.5)) == MachineState(
        attempts=2, route=ROUTE, usage=used, cost_usd=0.5, routes=(RouteUse(route=ROUTE, attempts=1, failed=1, usage=used, cost_usd=0.5),)
    )


def test_each_route_has_its_own_use_and_the_sums_are_the_turns() -> None:
    state = MachineState()
    state = count_failure(state, failure(1, ROUTE, Usage(input_tokens=1), None))
    state = count_failure(state, failure(2, ROUTE, Usage(), 0.25))
    state = count_reply(state, reply(FinishReason.TOOL_CALLS, attempt=3, route=OTHER, usage=Usage(output_tokens=2), cost_usd=0.5))
    state = count_reply(state, reply(FinishReason.STOP, "x", attempt=4, usage=Usage(output_tokens=4), cost_usd=0.125))
    state = count_reply(state, reply(FinishReason.STOP, "x", attempt=5, route=OTHER, usage=Usage(output_tokens=8)))
    assert state.routes == (
        RouteUse(route=ROUTE, attempts=3, failed=2, usage=Usage(input_tokens=1, output_tokens=4), cost_usd=0.375),
        RouteUse(route=OTHER, attempts=2, failed=0, usage=Usage(output_tokens=10), cost_usd=0.5),
    )
    assert (state.attempts, state.route, state.usage, state.cost_usd) == (5, OTHER, Usage(input_tokens=1, output_tokens=14), 0.875)


@pytest.mark.parametrize(
    ("before", "added", "after"), [(None, None, None), (None, 0.5, 0.5), (0.25, 0.5, 0.75), (0.25, None, 0.25), (None, 0.0, 0.0)]
)
def test_cost_is_the_sum_of_what_is_known(before: float | None, added: float | None, after: float | None) -> None:
    assert count_reply(MachineState(cost_usd=before), reply(FinishReason.STOP, "x", cost_usd=added)).cost_usd == after
