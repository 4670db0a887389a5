"""How a turn's end reads in OpenAI's words.

::

    turn                              │ chat finish_reason │ response          │ without any text
    ──────────────────────────────────┼────────────────────┼───────────────────┼─────────────────
    completed answer, refusal, …      │ stop               │ completed         │ the same
    completed tool_calls              │ tool_calls         │ completed         │ the same
    failed output_truncated           │ length             │ incomplete        │ the same
    failed content_filtered           │ content_filter     │ incomplete        │ the same
    failed context_exhausted          │ error              │ failed            │ 400
    failed provider_unavailable, …    │ error              │ failed            │ 503, 502, 500
    interrupted shutdown, worker_lost │ error              │ failed            │ 503
    interrupted otherwise             │ error              │ failed            │ 409
"""

from http import HTTPStatus

from app.api.facades.narration import Diverged, Ended, Terminal
from app.api.openai_errors import CallError
from app.domain.turns import CompletedReason, FailedReason, InterruptReason, TurnState

_CUT = {FailedReason.OUTPUT_TRUNCATED: "length", FailedReason.CONTENT_FILTERED: "content_filter"}
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""``incomplete_details.reason`` of a response by the finish reason that a chat completion has."""
_PASSING = (InterruptReason.SHUTDOWN, InterruptReason.WORKER_LOST)


def finish_of(ended: Ended) -> str | None:
    """The finish reason; ``None`` when the turn ended with an error."""
    reason = ended.event.reason
    if ended.state == TurnState.COMPLETED:
        return "tool_calls" if reason == CompletedReason.TOOL_CALLS else "stop"
    return _CUT.get(FailedReason(reason)) if ended.state == TurnState.FAILED else None


def refused(end: Terminal | None) -> bool:
    """Whether the answer is a refusal, which OpenAI's clients read apart from content."""
    return end is not None and end.reason == CompletedReason.REFUSAL


def failure_of(ended: Ended) -> CallError:
    """The error of a turn that has no finish reason."""
    problem, reason = ended.event.error, ended.event.reason
    if problem is None:
        return _interrupted(InterruptReason(reason))
    if reason == FailedReason.CONTEXT_EXHAUSTED:
        return CallError(HTTPStatus.BAD_REQUEST, problem.detail, code="context_length_exceeded", retryable=False)
    return CallError(problem.status, problem.detail, code=problem.code, retryable=problem.retryable, retry_after_s=problem.retry_after_s)


def diverged(piece: Diverged) -> CallError:
    """The error of an answer that cannot be gone on with."""
    if piece.pruned:
        return CallError(HTTPStatus.GONE, "The text of this answer is too long to have been kept.", code="answer_pruned", retryable=False)
    text = "The provider failed after this text was sent, and the next attempt's answer begins differently. Send the request again."
    return CallError(HTTPStatus.SERVICE_UNAVAILABLE, text, code="answer_diverged")


def cut_off() -> CallError:
    """The error of a stream whose replica leaves before the turn's end."""
    text = "This replica is shutting down. The turn goes on: read it at the address that Location names."
    return CallError(HTTPStatus.SERVICE_UNAVAILABLE, text, code="draining", retry_after_s=1, retryable=False)


def _interrupted(reason: InterruptReason) -> CallError:
    if reason in _PASSING:
        return CallError(HTTPStatus.SERVICE_UNAVAILABLE, "The turn was interrupted by the service.", code=reason.value, retry_after_s=1)
    return CallError(HTTPStatus.CONFLICT, "The turn was interrupted.", code=f"turn_interrupted_{reason.value}", retryable=False)
