import msgspec
import pytest

from app.agent.machine import CLOSING_TEXT, CallModel, Finish, RunTools, after_failure, after_reply, after_tools, charge, count_reply
from app.domain.messages import Message, Role, ToolCall
from app.domain.model import FailureReason, FinishReason, ModelReply, RouteRef, Usage
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState

ROUTE = RouteRef(provider="p1", model="m-test")
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
}


REFUSED = {
    FailureReason.CONTEXT_OVERFLOW,
    FailureReason.PAYLOAD_TOO_LARGE,
    FailureReason.CONTENT_FILTERED,
    FailureReason.INVALID_REQUEST,
}
"""What would be refused again: the turn's messages must not be sent with the next one."""


@pytest.mark.parametrize("reason", list(FailureReason), ids=str)
def test_an_impossible_model_call_ends_the_turn_with_a_type(reason: FailureReason) -> None:
    expected, retryable = FAILURES[reason]
    assert after_failure(reason, "It is so.") == Finish(
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
    )


def test_a_call_without_a_reply_is_charged_as_well() -> None:
    used = Usage(input_tokens=10)
    assert charge(MachineState(attempts=2, route=ROUTE), used, 0.5) == MachineState(attempts=2, route=ROUTE, usage=used, cost_usd=0.5)


@pytest.mark.parametrize(
    ("before", "added", "after"), [(None, None, None), (None, 0.5, 0.5), (0.25, 0.5, 0.75), (0.25, None, 0.25), (None, 0.0, 0.0)]
)
def test_cost_is_the_sum_of_what_is_known(before: float | None, added: float | None, after: float | None) -> None:
    assert count_reply(MachineState(cost_usd=before), reply(FinishReason.STOP, "x", cost_usd=added)).cost_usd == after
