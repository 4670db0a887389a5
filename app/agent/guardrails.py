"""Tool guardrails as pure functions: which calls are not run, which results carry a warning, and when the turn ends.

Ask :func:`before_calls` before the calls of a reply are run and :func:`after_calls` when they are answered. Calls of one reply
count in their order in it. For one call a halt comes before any warning; of warnings the first of: the same call failing, the same tool
failing, no progress, cycle. Thresholds and codes: :mod:`app.domain.guardrails`.

Cycles are seen in the calls alone, whether they went well or not, so a loop with changing results is warned of too; it ends the turn only
when the results go round with the calls, so honest polling is not stopped. One call again and again is no cycle: the counters of
failures and of progress see it. The shortest cycle counts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from app.domain.guardrails import (
    MAX_HISTORY,
    MAX_PERIOD,
    MAX_TRACKED,
    GuardrailCode,
    GuardrailState,
    GuardrailThresholds,
    HardStopAfter,
    PastCall,
    Streak,
    ToolFailures,
    ToolTraits,
    digest_of,
)
from app.domain.messages import ToolCall, canonical_json, clean_text

MAX_INVALID_REPLIES = 3
"""Replies in a row whose calls are all invalid (an unknown tool, or arguments that cannot be read), before the turn is given up."""

_MIN_PERIOD = 2
_NAME_CHARACTERS = 64
_UNKNOWN_TOOL = ToolTraits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A call with what came of it.

    ``result`` is the :func:`app.domain.guardrails.digest_of` of its whole output; ``blocked``: it was not run, as
    :func:`before_calls` said.
    """

    call: ToolCall
    result: str
    is_error: bool = False
    blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The call is not to be run; ``message`` is its result, an error."""

    code: GuardrailCode
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """``message`` is a note in brackets, to be appended to the call's result.

    ``count`` of a cycle stops rising at what is remembered of the calls.
    """

    code: GuardrailCode
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The turn ends with :func:`closing_text`. ``index`` is the call that brought it; ``message`` a note in brackets for its result."""

    code: GuardrailCode
    count: int
    index: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows a reply's calls: warnings by the call's position, at most one each, and at most one halt, the first."""

    warnings: dict[int, Warn]
    halt: Halt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    tools: tuple[str, ...]
    rounds: int

    @property
    def path(self) -> str:
        return " -> ".join(self.tools)


def signature_of(call: ToolCall) -> str:
    """The tool's name (cut) and a digest of name and canonical arguments: equal for calls that ask for the same.

    Arguments that are no JSON count as the text they are.
    """
    digest = digest_of(f"{call.name}\x00{_canonical(call.arguments)}")
    return f"{_tool_key(call.name)}:{digest}"


def before_calls(
    state: GuardrailState, calls: Sequence[ToolCall], thresholds: GuardrailThresholds, *, hard_stop: bool
) -> dict[int, Blocked]:
    """The calls of a reply that are not to be run, by position; none without ``hard_stop``."""
    if not hard_stop:
        return {}
    found = ((index, _block(state, call, thresholds)) for index, call in enumerate(calls))
    return {index: block for index, block in found if block is not None}


def after_calls(
    state: GuardrailState,
    answered: Sequence[Answered],
    traits: Mapping[str, ToolTraits],
    thresholds: GuardrailThresholds,
    *,
    hard_stop: bool,
) -> tuple[GuardrailState, Verdict]:
    """Count the answered calls of a reply in call order and judge each. No halt without ``hard_stop``.

    A reply may be given in parts, the first of its calls first: what is found is the same, with positions that count from the part's
    first call. ``traits`` are by tool name. A blocked call counts as a failure of its tool, so a model that insists on it is stopped in
    the end.
    """
    warnings: dict[int, Warn] = {}
    halt: Halt | None = None
    for index, one in enumerate(answered):
        signature = signature_of(one.call)
        state = _count(state, signature, one, traits.get(one.call.name, _UNKNOWN_TOOL))
        state = _remember(state, signature, one, thresholds)
        stopped = _halt(state, index, one, traits, most=thresholds.hard_stop_after) if hard_stop else None
        warned = None if one.blocked else _warning(state, signature, one, thresholds)
        if stopped is not None:
            halt = halt or stopped
        elif warned is not None:
            warnings[index] = warned
    return state, Verdict(warnings=warnings, halt=halt)


def after_invalid(state: GuardrailState, *, all_invalid: bool) -> tuple[GuardrailState, bool]:
    """Count a reply with calls of which none (``all_invalid``) or at least one could be run. True: the turn is to be given up."""
    count = state.invalid_replies + 1 if all_invalid else 0
    return msgspec.structs.replace(state, invalid_replies=count), count >= MAX_INVALID_REPLIES


def closing_text(halt: Halt) -> str:
    """The answer of a turn that was stopped."""
    return f"I stopped here: {halt.reason} Going on in the same way would not have helped. The work may be unfinished."


def _canonical(arguments: str) -> str:
    try:
        return canonical_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _tool_key(name: str) -> str:
    """Models invent names of any length and content; legal ones have at most 64 characters."""
    return clean_text(name)[:_NAME_CHARACTERS]


def _tool_of(signature: str) -> str:
    return signature.rpartition(":")[0]


def _block(state: GuardrailState, call: ToolCall, thresholds: GuardrailThresholds) -> Blocked | None:
    streak = _streak(state, signature_of(call))
    if streak is None:
        return None
    count, most = streak.count, thresholds.hard_stop_after
    if streak.result is None and count >= most.exact_failure:
        code = GuardrailCode.REPEATED_EXACT_FAILURE_BLOCK
        why = f"failed {count} times with these arguments. Change them, try something else, or say what is in the way."
    elif streak.result is not None and count >= most.idempotent_no_progress:
        code = GuardrailCode.IDEMPOTENT_NO_PROGRESS_BLOCK
        why = f"gave the same result {count} times. Use that result, or ask for something else."
    else:
        return None
    error = f"Not run: this call of {_tool_key(call.name)} {why}"
    message = canonical_json({"error": error, "guardrail": {"code": code.value, "count": count}})
    return Blocked(code=code, count=count, message=message)


def _count(state: GuardrailState, signature: str, one: Answered, traits: ToolTraits) -> GuardrailState:
    """Carry on the call's streak and its tool's failures. Success ends both, but for a result that repeats."""
    tool = _tool_key(one.call.name)
    failures = tuple(known for known in state.failures if known.tool != tool)
    if one.is_error or one.blocked:
        failures = (*failures, ToolFailures(tool, _failures(state, tool) + 1))
    known = _streak(state, signature)
    streak = known if one.blocked else _next_streak(known, signature, one, traits)
    streaks = tuple(other for other in state.streaks if other.signature != signature)
    if streak is not None:
        streaks = (*streaks, streak)
    return msgspec.structs.replace(state, streaks=streaks[-MAX_TRACKED:], failures=failures[-MAX_TRACKED:])


def _next_streak(known: Streak | None, signature: str, one: Answered, traits: ToolTraits) -> Streak | None:
    if not one.is_error and (traits.polling or not traits.read_only):
        return None
    result = None if one.is_error else one.result
    goes_on = known is not None and known.result == result
    return Streak(signature, known.count + 1 if known is not None and goes_on else 1, result)


def _remember(state: GuardrailState, signature: str, one: Answered, thresholds: GuardrailThresholds) -> GuardrailState:
    rounds = max(thresholds.warn_after.cycle, thresholds.hard_stop_after.cycle)
    past = PastCall(signature, one.result)
    return msgspec.structs.replace(state, history=(*state.history, past)[-min(MAX_HISTORY, MAX_PERIOD * rounds) :])


def _streak(state: GuardrailState, signature: str) -> Streak | None:
    return next((known for known in state.streaks if known.signature == signature), None)


def _failures(state: GuardrailState, tool: str) -> int:
    return next((known.count for known in state.failures if known.tool == tool), 0)


def _halt(state: GuardrailState, index: int, one: Answered, traits: Mapping[str, ToolTraits], *, most: HardStopAfter) -> Halt | None:
    tool = _tool_key(one.call.name)
    failed = _failures(state, tool)
    if failed >= most.same_tool_failure:
        reason = f"calls of {tool} failed or were blocked {failed} times without a success in between."
        return _stop(GuardrailCode.SAME_TOOL_FAILURE_HALT, failed, index, reason)
    cycle = _cycle(state.history, state.history, most.cycle)
    if cycle is None or any(traits.get(name, _UNKNOWN_TOOL).polling for name in cycle.tools):
        return None
    reason = f"the calls {cycle.path} went round {cycle.rounds} times with the same results."
    return _stop(GuardrailCode.TOOL_CALL_CYCLE_HALT, cycle.rounds, index, reason)


def _stop(code: GuardrailCode, count: int, index: int, reason: str) -> Halt:
    return Halt(code=code, count=count, index=index, reason=reason, message=f"[Tool loop stopped: {code.value}; count={count}; {reason}]")


def _warning(state: GuardrailState, signature: str, one: Answered, thresholds: GuardrailThresholds) -> Warn | None:
    least, tool = thresholds.warn_after, _tool_key(one.call.name)
    streak, failed = _streak(state, signature), _failures(state, tool)
    if streak is not None and streak.result is None and streak.count >= least.exact_failure:
        advice = f"{tool} failed {streak.count} times with these arguments; change them or try something else"
        return _warn(GuardrailCode.REPEATED_EXACT_FAILURE_WARNING, streak.count, advice)
    if failed >= least.same_tool_failure:
        advice = f"calls of {tool} failed {failed} times without a success in between; find out why before the next"
        return _warn(GuardrailCode.SAME_TOOL_FAILURE_WARNING, failed, advice)
    if streak is not None and streak.result is not None and streak.count >= least.idempotent_no_progress:
        advice = f"{tool} gave this same result {streak.count} times; use it, or ask for something else"
        return _warn(GuardrailCode.IDEMPOTENT_NO_PROGRESS_WARNING, streak.count, advice)
    cycle = _cycle([past.signature for past in state.history], state.history, least.cycle)
    if cycle is None:
        return None
    advice = f"the calls {cycle.path} went round {cycle.rounds} times; if they bring nothing new, do something else or answer"
    return _warn(GuardrailCode.TOOL_CALL_CYCLE_WARNING, cycle.rounds, advice)


def _warn(code: GuardrailCode, count: int, advice: str) -> Warn:
    return Warn(code=code, count=count, message=f"[Tool loop warning: {code.value}; count={count}; {advice}]")


def _cycle(marks: Sequence[object], history: Sequence[PastCall], least: int) -> _Cycle | None:
    """The shortest run of different calls that stands ``least`` times or more at the end, its ``marks`` the same in every round."""
    for period in range(_MIN_PERIOD, min(MAX_PERIOD, len(history)) + 1):
        calls = [past.signature for past in history[-period:]]
        rounds = _rounds(marks, period)
        if rounds >= least and len(set(calls)) > 1:
            return _Cycle(tools=tuple(map(_tool_of, calls)), rounds=rounds)
    return None


def _rounds(marks: Sequence[object], period: int) -> int:
    """How many times the last ``period`` marks stand back to back at the end, the last time included."""
    equal = takewhile(lambda at: marks[at] == marks[at - period], range(len(marks) - 1, period - 1, -1))
    return sum(1 for _ in equal) // period + 1
