"""The turn's decisions as pure functions: state and outcome in, next step out. No clock, no I/O.

::

    reply                      │ step
    ───────────────────────────┼──────────────────────────────────────────────────────────────────────────────
    tool calls                 │ RunTools, then the next iteration while the budget allows one
    text                       │ Finish completed: answer
    refusal                    │ Finish completed: refusal; behind parts of an answer, failed: content_filtered
    cut by length              │ CallAgain (truncation.py), in the end Finish failed: output_truncated
    cut by the content filter  │ Finish failed: content_filtered
    model call impossible      │ Finish failed: context_exhausted | content_filtered | invalid_response | provider_unavailable
    request itself refused     │ the same, and what the turn added leaves the context
    budget used up (budget.py) │ one closing call that may not call tools; whatever comes of it, Finish completed: budget_exhausted
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import msgspec

from app.agent import budget as budgets
from app.agent import truncation
from app.agent.budget import Budget, Pressure
from app.domain.children import ChildrenUse
from app.domain.errors import ModelError
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.model import AttemptFailed, FailureReason, FinishReason, ModelReply, RouteUse, Usage
from app.domain.tools import FinishedCall
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState, PressureLevel

MAX_LAST_TEXT = 8_000
"""Characters of a text beside tool calls that are kept for the case that no answer comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Store ``message`` (the calls' intent), run the calls, then ask :func:`after_tools`.

    ``unshown``: text that came before it in parts, for the transcript alone.
    """

    message: Message
    calls: tuple[ToolCall, ...]
    bad_arguments: dict[str, str]
    unshown: Message | None = None

    @property
    def said(self) -> str:
        """The whole text, the parts before it included."""
        return _text(self.unshown) + _text(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAgain:
    """Call the model once more at once. ``messages`` are added for the model alone; ``void``: what was shown of this reply is.

    ``told``: it is the closing call, as the client is told.
    """

    messages: tuple[Message, ...]
    void: bool
    told: Pressure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallModel:
    """The next model call. ``told``: what the model is told at the end of the last result, and the client by an event."""

    told: Pressure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The turn is over; ``message`` is its answer, to be stored with the end, or ``None``.

    ``part``: the answer's last part as the model is shown it, when it was given in parts; ``message`` is then for the transcript alone.
    ``unshown``: text that came before it in parts, for the transcript alone. ``forget``: the provider refused the request itself, so what
    the turn added leaves the model's context (not the transcript): sent again it would be refused again, in every turn to come.
    """

    outcome: Completed | Failed
    message: Message | None
    part: Message | None = None
    unshown: Message | None = None
    forget: bool = False


AfterReply: TypeAlias = RunTools | CallAgain | Finish
BeforeCall: TypeAlias = CallModel | Finish


def count_reply(state: MachineState, reply: ModelReply) -> MachineState:
    """Add the attempt that answered to the turn's use and to its route's."""
    tokens = reply.usage.input_tokens + reply.usage.output_tokens
    state = msgspec.structs.replace(state, attempts=reply.attempt, route=reply.route, last_call_tokens=tokens)
    return _charge(state, RouteUse(route=reply.route, attempts=1, usage=reply.usage, cost_usd=reply.cost_usd))


def count_failure(state: MachineState, failed: AttemptFailed) -> MachineState:
    """Add a failed attempt and what it used all the same."""
    state = msgspec.structs.replace(state, attempts=failed.attempt, route=failed.route)
    return _charge(state, RouteUse(route=failed.route, attempts=1, failed=1, usage=failed.usage, cost_usd=failed.cost_usd))


def count_interrupted(state: MachineState, use: RouteUse) -> MachineState:
    """Add what an attempt used that was stopped before its reply was there."""
    return _charge(msgspec.structs.replace(state, attempts=state.attempts + 1, route=use.route), use)


def count_auxiliary(before: MachineState, after: MachineState) -> MachineState:
    """Take over what a call used that was made for the turn beside its own, such as one for a summary. It stands in for none of them."""
    return msgspec.structs.replace(after, route=before.route, last_call_tokens=before.last_call_tokens)


def count_children(state: MachineState, used: ChildrenUse) -> MachineState:
    """Add what child turns used."""
    return msgspec.structs.replace(state, children=(state.children or ChildrenUse()) + used) if used.turns else state


def count_tools(state: MachineState, finished: Sequence[FinishedCall]) -> MachineState:
    """Add what model calls of these tools used."""
    for use in (use for one in finished for use in one.outcome.uses):
        state = _charge(state, use)
    return state


def used_since(before: MachineState, after: MachineState) -> tuple[Usage, float | None]:
    """Usage and cost of what happened in between; a cost is unknown when none of it is known."""
    usage = Usage(
        input_tokens=after.usage.input_tokens - before.usage.input_tokens,
        output_tokens=after.usage.output_tokens - before.usage.output_tokens,
        cached_input_tokens=after.usage.cached_input_tokens - before.usage.cached_input_tokens,
        cache_write_tokens=after.usage.cache_write_tokens - before.usage.cache_write_tokens,
        reasoning_tokens=after.usage.reasoning_tokens - before.usage.reasoning_tokens,
    )
    return usage, None if after.cost_usd is None else after.cost_usd - (before.cost_usd or 0.0)


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


def after_reply(state: MachineState, reply: ModelReply, budget: Budget, *, may_continue: bool) -> tuple[MachineState, AfterReply]:
    """Judge a complete reply. Content decides: calls run whatever the label says, unless the reply was cut.

    ``may_continue``: a reply cut by length may be continued; not where the caller set the limit itself.
    """
    if state.pressure is PressureLevel.EXHAUSTED:
        return state, _closed(state, reply, budget)
    match reply.finish:
        case FinishReason.LENGTH:
            return _after_cut(state, reply, budget, may_continue=may_continue)
        case FinishReason.CONTENT_FILTER:
            detail = "The provider's content filter stopped the answer."
            return state, _failed(FailedReason.CONTENT_FILTERED, detail, output=_whole(state, reply.text))
        case FinishReason.REFUSAL:
            return state, _refusal(state, reply)
        case FinishReason.STOP | FinishReason.TOOL_CALLS:
            if not reply.tool_calls:
                return state, _answer(state, CompletedReason.ANSWER, reply)
            return _run_tools(state, reply)
    assert_never(reply.finish)


def after_tools(state: MachineState, budget: Budget, *, result_tokens: int = 0) -> tuple[MachineState, CallModel]:
    """Go on with the next iteration, or with the closing call when the budget is used up. ``result_tokens``: what the results add."""
    if budgets.is_used_up(state, budget, state.last_call_tokens + result_tokens):
        return _exhausted(state), CallModel(told=budgets.grace(state, budget))
    told = budgets.pressure(state, budget)
    level = state.pressure if told is None else told.level
    return msgspec.structs.replace(state, iteration=state.iteration + 1, pressure=level), CallModel(told=told)


def before_call(state: MachineState, budget: Budget, input_tokens: int, *, offers_tools: bool) -> tuple[MachineState, BeforeCall]:
    """The last look at tokens and money, when the request is made and its size is known."""
    spent = state.pressure is PressureLevel.EXHAUSTED and not budget.closing_call
    if spent or not budgets.affords(state, budget, input_tokens):
        return _exhausted(state), _closed(state, None, budget)
    if not offers_tools or state.pressure is PressureLevel.EXHAUSTED or budgets.affords_two(state, budget, input_tokens):
        return state, CallModel()
    return _exhausted(state), CallModel(told=budgets.grace(state, budget))


def after_failure(state: MachineState, error: ModelError, budget: Budget) -> Finish:
    """End the turn when its model call cannot succeed. A closing call that fails costs no answer."""
    reason = error.reason
    forget = reason in _REFUSED
    if state.pressure is PressureLevel.EXHAUSTED:
        return _closed(state, None, budget, forget=forget)
    outcome = Failed(
        reason=_REFUSED.get(reason) or _BROKEN.get(reason, FailedReason.PROVIDER_UNAVAILABLE),
        detail=error.detail,
        retryable=not forget and reason not in _PERMANENT,
        output=_whole(state, ""),
        retry_after_s=None if forget or reason in _BROKEN else error.retry_after_s,
        refused=reason in _CALLERS,
    )
    return Finish(outcome=outcome, message=None, forget=forget)


_REFUSED = {
    FailureReason.CONTEXT_OVERFLOW: FailedReason.CONTEXT_EXHAUSTED,
    FailureReason.PAYLOAD_TOO_LARGE: FailedReason.CONTEXT_EXHAUSTED,
    FailureReason.CONTENT_FILTERED: FailedReason.CONTENT_FILTERED,
    FailureReason.INVALID_REQUEST: FailedReason.PROVIDER_UNAVAILABLE,
    FailureReason.UNSUPPORTED: FailedReason.PROVIDER_UNAVAILABLE,
    FailureReason.BAD_UNICODE: FailedReason.PROVIDER_UNAVAILABLE,
}
"""Failures for what is in the request: it would be refused again."""
_CALLERS = frozenset({FailureReason.INVALID_REQUEST, FailureReason.UNSUPPORTED, FailureReason.BAD_UNICODE})
"""Of those: what the caller asked for, and can ask for differently."""
_BROKEN = {FailureReason.INVALID_RESPONSE: FailedReason.INVALID_RESPONSE, FailureReason.INCOMPLETE_STREAM: FailedReason.INVALID_RESPONSE}


def does_not_fit(state: MachineState, budget: Budget, unsummarised: str | None = None) -> Finish:
    """End the turn when its conversation fits the model's window no more. ``unsummarised``: why it could not be made shorter yet."""
    if state.pressure is PressureLevel.EXHAUSTED:
        return _closed(state, None, budget, forget=True)
    detail = "The conversation does not fit the model's context window, even after shortening."
    if unsummarised is not None:
        detail = f"The conversation does not fit the model's context window, and there is no summary of it yet: {unsummarised}"
    outcome = Failed(reason=FailedReason.CONTEXT_EXHAUSTED, detail=detail, retryable=unsummarised is not None, output=_whole(state, ""))
    return Finish(outcome=outcome, message=None, forget=True)


def after_compaction(uncompacted: Completed | Failed | None, summary: str) -> Finish:
    """The end of a turn that only compacts: its output is the summary. ``uncompacted``: the end when nothing came of it."""
    return Finish(outcome=uncompacted or Completed(reason=CompletedReason.ANSWER, output=summary), message=None)


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


def _run_tools(state: MachineState, reply: ModelReply) -> tuple[MachineState, RunTools]:
    unshown = Message(role=Role.ASSISTANT, content="".join(state.parts)) if state.parts else None
    text = _whole(state, reply.text).strip()[:MAX_LAST_TEXT]
    state = msgspec.structs.replace(state, parts=(), continuations=0, retries=0, last_text=text or state.last_text)
    message = _assistant(reply, reply.tool_calls)
    return state, RunTools(message=message, calls=reply.tool_calls, bad_arguments=reply.bad_arguments, unshown=unshown)


def _after_cut(state: MachineState, reply: ModelReply, budget: Budget, *, may_continue: bool) -> tuple[MachineState, AfterReply]:
    step = truncation.after_cut(state, reply) if may_continue else truncation.GiveUp()
    match step:
        case truncation.Continue(messages=(part, prompt)):
            state = msgspec.structs.replace(state, continuations=state.continuations + 1, parts=(*state.parts, reply.text))
            state, told = _next_iteration(state, budget)
            if told is not None:
                prompt = msgspec.structs.replace(prompt, content=f"{prompt.content}\n\n{told.text}")
            return state, CallAgain(messages=(part, prompt), void=False, told=told)
        case truncation.Retry():
            state, told = _next_iteration(msgspec.structs.replace(state, retries=state.retries + 1), budget)
            return state, CallAgain(messages=(), void=True, told=told)
        case truncation.GiveUp():
            detail = "The model's output was cut at its length limit."
            return state, _failed(FailedReason.OUTPUT_TRUNCATED, detail, output=_whole(state, reply.text))
        case _:
            assert_never(step)


def _next_iteration(state: MachineState, budget: Budget) -> tuple[MachineState, Pressure | None]:
    """Count an iteration for the repeated call, or make it the closing one."""
    if budgets.is_used_up(state, budget, state.last_call_tokens):
        return _exhausted(state), budgets.grace(state, budget, in_parts=bool(state.parts))
    return msgspec.structs.replace(state, iteration=state.iteration + 1), None


def _exhausted(state: MachineState) -> MachineState:
    return msgspec.structs.replace(state, pressure=PressureLevel.EXHAUSTED)


def _closed(state: MachineState, reply: ModelReply | None, budget: Budget, *, forget: bool = False) -> Finish:
    """The end of a turn whose budget is used up: the closing call's text, else the turn's last, else a fixed one.

    What the closing call asks for in spite of all is not run and not stored: nobody would answer it.
    """
    text = "" if reply is None or reply.finish is FinishReason.CONTENT_FILTER or not reply.text.strip() else reply.text
    if reply is not None and text and not reply.tool_calls and reply.finish in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return _answer(state, CompletedReason.BUDGET_EXHAUSTED, reply)
    used = budgets.used_text(state, budget)
    text = text or ("" if state.parts else state.last_text)
    said = bool(text or state.parts)
    text = f"{text}\n\n{budgets.CLOSING_NOTE.format(used=used)}" if said else budgets.CLOSING_TEXT.format(used=used)
    answer = _whole(state, text)
    part = Message(role=Role.ASSISTANT, content=text.lstrip(), kind=MessageKind.NOTE) if state.parts and not forget else None
    outcome = Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=answer)
    return Finish(outcome=outcome, message=Message(role=Role.ASSISTANT, content=answer), part=part, forget=forget)


def _failed(reason: FailedReason, detail: str, *, output: str) -> Finish:
    return Finish(outcome=Failed(reason=reason, detail=detail, retryable=False, output=output), message=None)


def _refusal(state: MachineState, reply: ModelReply) -> Finish:
    if state.parts:
        detail = "The model refused to go on with its answer."
        return _failed(FailedReason.CONTENT_FILTERED, detail, output=_whole(state, reply.text))
    return _answer(state, CompletedReason.REFUSAL, reply)


def _answer(state: MachineState, reason: CompletedReason, reply: ModelReply) -> Finish:
    text = _whole(state, reply.text)
    if not state.parts:
        return Finish(outcome=Completed(reason=reason, output=text), message=_assistant(reply, ()))
    whole = Message(role=Role.ASSISTANT, content=text, reasoning=reply.reasoning or None)
    return Finish(outcome=Completed(reason=reason, output=text), message=whole, part=truncation.part(reply))


def _text(message: Message | None) -> str:
    return message.content if message is not None and isinstance(message.content, str) else ""


def _whole(state: MachineState, text: str) -> str:
    """An answer with the parts before it, in order."""
    return "".join((*state.parts, text))


def _assistant(reply: ModelReply, calls: tuple[ToolCall, ...]) -> Message:
    return Message(role=Role.ASSISTANT, content=reply.text, tool_calls=calls, reasoning=reply.reasoning or None, replay=reply.replay)
