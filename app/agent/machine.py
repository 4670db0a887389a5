"""The turn's decisions as pure functions: state and outcome in, next step out. No clock, no I/O.

::

    reply                      │ step
    ───────────────────────────┼──────────────────────────────────────────────────────────
    tool calls                 │ RunTools, then the next iteration while one is left
    text                       │ Finish completed: answer
    refusal                    │ Finish completed: refusal
    cut by length              │ Finish failed: output_truncated (never shown as success)
    cut by the content filter  │ Finish failed: content_filtered
    model call impossible      │ Finish failed: context_exhausted | content_filtered | invalid_response | provider_unavailable
    request itself refused     │ the same, and what the turn added leaves the context
    no iteration left          │ Finish completed: budget_exhausted, with a fixed closing text
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

import msgspec

from app.domain.errors import ModelError
from app.domain.messages import Message, Role, ToolCall
from app.domain.model import AttemptFailed, FailureReason, FinishReason, ModelReply
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState, RouteUse

CLOSING_TEXT = "I stopped here: the limit of {limit} iterations was reached before the work was finished."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Store ``message`` (the calls' intent), run the calls, then ask :func:`after_tools`."""

    message: Message
    calls: tuple[ToolCall, ...]
    bad_arguments: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallModel:
    """The next iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The turn is over; ``message`` is its answer, to be stored with the end, or ``None``.

    ``forget``: the provider refused the request itself, so what the turn added leaves the model's context (not the transcript): sent
    again it would be refused again, in every turn to come.
    """

    outcome: Completed | Failed
    message: Message | None
    forget: bool = False


AfterReply: TypeAlias = RunTools | Finish
AfterTools: TypeAlias = CallModel | Finish


def count_reply(state: MachineState, reply: ModelReply) -> MachineState:
    """Add the attempt that answered to the turn's use and to its route's."""
    state = msgspec.structs.replace(state, attempts=reply.attempt, route=reply.route)
    return _charge(state, RouteUse(route=reply.route, attempts=1, usage=reply.usage, cost_usd=reply.cost_usd))


def count_failure(state: MachineState, failed: AttemptFailed) -> MachineState:
    """Add a failed attempt and what it used all the same."""
    state = msgspec.structs.replace(state, attempts=failed.attempt, route=failed.route)
    return _charge(state, RouteUse(route=failed.route, attempts=1, failed=1, usage=failed.usage, cost_usd=failed.cost_usd))


def _charge(state: MachineState, use: RouteUse) -> MachineState:
    known = next((one for one in state.routes if one.route == use.route), None)
    if known is None:
        routes = (*state.routes, use)
    else:
        total = RouteUse(
            route=use.route,
            attempts=known.attempts + use.attempts,
            failed=known.failed + use.failed,
            usage=known.usage + use.usage,
            cost_usd=_sum(known.cost_usd, use.cost_usd),
        )
        routes = tuple(total if one is known else one for one in state.routes)
    return msgspec.structs.replace(state, usage=state.usage + use.usage, cost_usd=_sum(state.cost_usd, use.cost_usd), routes=routes)


def _sum(total: float | None, more: float | None) -> float | None:
    """A sum of costs, unknown only when no part of it is known."""
    return total if more is None else (total or 0.0) + more


def after_reply(reply: ModelReply) -> AfterReply:
    """Judge a complete reply. Content decides: calls run whatever the label says, unless the reply was cut."""
    match reply.finish:
        case FinishReason.LENGTH:
            detail = "The model's output was cut at its length limit."
            return _failed(FailedReason.OUTPUT_TRUNCATED, detail, output=reply.text)
        case FinishReason.CONTENT_FILTER:
            return _failed(FailedReason.CONTENT_FILTERED, "The provider's content filter stopped the answer.", output=reply.text)
        case FinishReason.REFUSAL:
            return _answer(CompletedReason.REFUSAL, reply)
        case FinishReason.STOP | FinishReason.TOOL_CALLS:
            if not reply.tool_calls:
                return _answer(CompletedReason.ANSWER, reply)
            message = _assistant(reply, reply.tool_calls)
            return RunTools(message=message, calls=reply.tool_calls, bad_arguments=reply.bad_arguments)
    assert_never(reply.finish)


def after_tools(state: MachineState, max_iterations: int) -> tuple[MachineState, AfterTools]:
    """Go on with the next iteration, or end when the budget is used up."""
    if state.iteration < max_iterations:
        return msgspec.structs.replace(state, iteration=state.iteration + 1), CallModel()
    text = CLOSING_TEXT.format(limit=max_iterations)
    outcome = Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=text)
    return state, Finish(outcome=outcome, message=Message(role=Role.ASSISTANT, content=text))


def after_failure(error: ModelError) -> Finish:
    """End the turn when its model call cannot succeed."""
    reason, detail = error.reason, error.detail
    match reason:
        case FailureReason.CONTEXT_OVERFLOW | FailureReason.PAYLOAD_TOO_LARGE:
            return _refused(FailedReason.CONTEXT_EXHAUSTED, detail)
        case FailureReason.CONTENT_FILTERED:
            return _refused(FailedReason.CONTENT_FILTERED, detail)
        case FailureReason.INVALID_REQUEST | FailureReason.UNSUPPORTED | FailureReason.BAD_UNICODE:
            return _refused(FailedReason.PROVIDER_UNAVAILABLE, detail)
        case FailureReason.INVALID_RESPONSE | FailureReason.INCOMPLETE_STREAM:
            return _failed(FailedReason.INVALID_RESPONSE, detail, retryable=True)
        case _:
            outcome = Failed(
                reason=FailedReason.PROVIDER_UNAVAILABLE,
                detail=detail,
                retryable=reason not in _PERMANENT,
                retry_after_s=error.retry_after_s,
            )
            return Finish(outcome=outcome, message=None)


_PERMANENT = frozenset(
    {
        FailureReason.AUTH,
        FailureReason.BILLING,
        FailureReason.FORBIDDEN,
        FailureReason.MODEL_NOT_FOUND,
        FailureReason.INVALID_REPLAY,
    }
)
"""Failures that the same request meets again until somebody changes the configuration."""


def _failed(reason: FailedReason, detail: str, *, retryable: bool = False, output: str = "") -> Finish:
    return Finish(outcome=Failed(reason=reason, detail=detail, retryable=retryable, output=output), message=None)


def _refused(reason: FailedReason, detail: str) -> Finish:
    return Finish(outcome=Failed(reason=reason, detail=detail, retryable=False), message=None, forget=True)


def _answer(reason: CompletedReason, reply: ModelReply) -> Finish:
    return Finish(outcome=Completed(reason=reason, output=reply.text), message=_assistant(reply, ()))


def _assistant(reply: ModelReply, calls: tuple[ToolCall, ...]) -> Message:
    return Message(role=Role.ASSISTANT, content=reply.text, tool_calls=calls, reasoning=reply.reasoning or None, replay=reply.replay)
