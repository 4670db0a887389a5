"""The one event that ends a turn, from its outcome."""

import math

from app.domain.events import MAX_EVENT_TEXT, Problem, TerminalEvent, TurnCompleted, TurnFailed, TurnInterrupted
from app.domain.ids import SessionId, TurnId
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, Interrupted, MachineState, Outcome, TurnState

_FAILURES: dict[FailedReason, tuple[int, str]] = {
    FailedReason.OUTPUT_TRUNCATED: (502, "The model's output was cut"),
    FailedReason.CONTENT_FILTERED: (502, "The content filter stopped the answer"),
    FailedReason.CONTEXT_EXHAUSTED: (502, "The conversation does not fit the model"),
    FailedReason.PROVIDER_UNAVAILABLE: (503, "The model call failed"),
    FailedReason.INVALID_RESPONSE: (502, "The model's response was not usable"),
    FailedReason.INTERNAL_ERROR: (500, "Internal error"),
}


REQUEST_REFUSED = "request_refused"
"""Code of the problem of a turn whose request its provider called invalid."""


def turn_problem(turn_id: TurnId, failed: Failed) -> Problem:
    """The problem document of a failed turn: the same object in ``turn.failed`` and in a JSON answer."""
    status, title = (400, "The provider refused the request as invalid") if failed.refused else _FAILURES[failed.reason]
    code = REQUEST_REFUSED if failed.refused else failed.reason.value
    return Problem(
        type=f"/problems/{code}",
        title=title,
        status=status,
        code=code,
        detail=failed.detail,
        retryable=failed.retryable,
        retry_after_s=None if failed.retry_after_s is None else math.ceil(failed.retry_after_s),
        turn_id=turn_id,
    )


def terminal_event(turn_id: TurnId, session_id: SessionId | None, outcome: Outcome, state: MachineState) -> TerminalEvent:
    """The one event that ends a turn."""
    output = outcome.output[:MAX_EVENT_TEXT]
    match outcome:
        case Completed(reason=reason):
            return TurnCompleted(
                session_id=session_id,
                reason=reason.value,
                output=output,
                iterations=state.iteration,
                attempts=state.attempts,
                usage=state.usage,
                cost_usd=state.cost_usd,
                route=state.route,
                routes=state.routes,
                children=state.children,
            )
        case Interrupted(reason=reason):
            return TurnInterrupted(
                session_id=session_id,
                reason=reason.value,
                output=output,
                iterations=state.iteration,
                attempts=state.attempts,
                usage=state.usage,
                cost_usd=state.cost_usd,
                route=state.route,
                routes=state.routes,
                children=state.children,
            )
        case Failed(reason=reason):
            return TurnFailed(
                session_id=session_id,
                reason=reason.value,
                error=turn_problem(turn_id, outcome),
                output=output,
                iterations=state.iteration,
                attempts=state.attempts,
                usage=state.usage,
                cost_usd=state.cost_usd,
                route=state.route,
                routes=state.routes,
                children=state.children,
            )


def terminal_state(outcome: Outcome) -> TurnState:
    """The state of a turn with this outcome."""
    match outcome:
        case Completed():
            return TurnState.COMPLETED
        case Interrupted():
            return TurnState.INTERRUPTED
        case Failed():
            return TurnState.FAILED


def leaves_calls(outcome: Outcome) -> bool:
    """Whether the turn ends with calls that its client answers."""
    return isinstance(outcome, Completed) and outcome.reason is CompletedReason.TOOL_CALLS
