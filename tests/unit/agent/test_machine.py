import msgspec
import pytest

from app.agent.machine import CLOSING_TEXT, CallModel, Finish, RunTools, after_failure, after_reply, after_tools, count_failure, count_reply
from app.domain.errors import ModelUnavailableError
from app.domain.messages import Message, Role, ToolCall
from app.domain.model import AttemptFailed, FailureReason, FinishReason, ModelReply, RouteRef, Usage
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState, RouteUse

ROUTE = RouteRef(provider="p1", model="m-test")
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
    step = after_reply(reply(finish, "Half", calls))
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
    assert after_failure(ModelUnavailableError(reason, "It is so.")) == Finish(
        outcome=Failed(reason=expected, detail="It is so.", retryable=retryable), message=None, forget=reason in REFUSED
    )


@pytest.mark.parametrize(("iteration", "limit"), [(1, 2), (1, 90), (89, 90)])
def test_tools_are_followed_by_the_next_iteration_while_one_is_left(iteration: int, limit: int) -> None:
    state = MachineState(iteration=iteration, attempts=4)
    assert after_tools(state, limit) == (MachineState(iteration=iteration + 1, attempts=4), CallModel())


@pytest.mark.parametrize(("iteration", "limit"), [(1, 1), (90, 90), (5, 3)], ids=["first", "last", "beyond"])
def test_the_last_iterations_tools_are_followed_by_a_closing_text(iteration: int, limit: int) -> None:
    state = MachineState(iteration=iteration)
    text = CLOSING_TEXT.format(limit=limit)
    assert after_tools(state, limit) == (
        state,
        Finish(outcome=Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=text), message=Message(role=Role.ASSISTANT, content=text)),
    )


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
