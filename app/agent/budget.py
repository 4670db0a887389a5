"""What a turn may use, how it is told that this runs out, and when its last call is due. Pure.

The budget counts iterations, and tokens and money where the turn has a limit of them. At 70 % and at 90 % of whichever is used most the
model is told once each, inside the result of a tool call; when the next iteration would not leave enough for the closing one, the turn
gets exactly one more call, in which it may not call tools and is to sum up.

Each call's output is limited so that the call, and behind an ordinary one the closing call, fit into what is left: what exceeds a limit
of tokens is only what a provider counts beyond the estimated input and the output that it was allowed. Money is kept in the same way, its
rest taken as tokens at the turn's average price so far; before the first call of a turn and of those that share its budget nothing is
known of it.
"""

from typing import Final, Protocol

import msgspec

from app.domain.quotas import DayShare
from app.domain.turns import MachineState, PressureLevel

CAUTION: Final = 0.7
WARNING: Final = 0.9
MIN_OUTPUT: Final = 16
"""Tokens of output below which a call is not worth making, and which is the lowest limit that OpenAI takes."""
_LEAST_USD: Final = 1e-9
_TOLD: Final = 64
"""Tokens of what the model is told with the closing call."""

_CAUTION_TEXT = "Begin to consolidate: finish what is under way and do not start anything new."
_WARNING_TEXT = "Answer now with what you have, and say what is left to do."
_GRACE_TEXT = (
    "[BUDGET EXHAUSTED: {used}. No more tool calls are possible: answer now. Sum up what was done, what was found, and what is left to do.]"
)
_LAST_PART_TEXT = "[BUDGET EXHAUSTED: {used}. This is the last part of your answer: bring it to an end.]"
CLOSING_TEXT = "I stopped here: the budget of this turn ({used}) was used up before the work was finished."
"""The answer where the model gives none."""
CLOSING_NOTE = "[The budget of this turn ({used}) was used up before the work was finished.]"
"""Behind an answer that still asked for tools, or that was given before the end."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn may use in all, its closing call aside. ``None`` is no limit. A child has no ``closing_call`` of its own.

    ``token_usd``: what a token has cost the turns that share it, 0 when that is unknown; for a turn that has not paid for any itself.
    """

    iterations: int
    tokens: int | None = None
    cost_usd: float | None = None
    token_usd: float = 0.0
    closing_call: bool = True


def within_day(budget: Budget, share: DayShare) -> Budget:
    """``budget`` lowered to the turn's share of its tenant's day; what is used up already leaves the least there is, never nothing."""
    tokens = budget.tokens if share.tokens is None else max(1, min(share.tokens, share.tokens if budget.tokens is None else budget.tokens))
    cost_usd = budget.cost_usd
    if share.cost_usd is not None:
        cost_usd = max(_LEAST_USD, share.cost_usd if cost_usd is None else min(share.cost_usd, cost_usd))
    return msgspec.structs.replace(budget, tokens=tokens, cost_usd=cost_usd)


class DayAllowance(Protocol):
    """What a turn may use yet of its tenant's day. No I/O, and next to free: it is asked at every step."""

    def share(self) -> DayShare:
        """The most that the turn may use in all, as far as is known now. It changes with what the tenant's other turns use."""

    def hold(self, tokens: int) -> None:
        """A call begins that may use so many tokens: other turns leave them to it until the turn's use is counted."""


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """What the model and the client are told of a budget that runs out."""

    level: PressureLevel
    text: str
    """For the end of a tool's result."""


def pressure(state: MachineState, budget: Budget) -> Pressure | None:
    """What is to be told after the tools of ``state.iteration``, once per level; ``None`` when nothing is new."""
    part = max(used / limit if limit > 0 else 1.0 for used, limit in _parts(state, budget))
    level = PressureLevel.WARNING if part >= WARNING else PressureLevel.CAUTION if part >= CAUTION else None
    if level is None or state.pressure is level or state.pressure is PressureLevel.WARNING:
        return None
    left = budget.iterations - state.iteration
    place = f"Iteration {state.iteration}/{budget.iterations}."
    other = "".join(f" {used} used." for used in _others(state, budget))
    if level is PressureLevel.WARNING:
        return Pressure(level=level, text=f"[BUDGET WARNING: {place} Only {left} left.{other} {_WARNING_TEXT}]")
    return Pressure(level=level, text=f"[BUDGET: {place} {left} left.{other} {_CAUTION_TEXT}]")


def is_used_up(state: MachineState, budget: Budget, input_tokens: int) -> bool:
    """Whether no ordinary iteration may follow: none is left, or it would leave too little for the closing one.

    ``input_tokens`` is what the next call has to read. The closing one has to read that and what came of the next.
    """
    return state.iteration >= budget.iterations or not affords_two(state, budget, input_tokens)


def affords_two(state: MachineState, budget: Budget, input_tokens: int) -> bool:
    """Whether a call that reads ``input_tokens`` fits into what is left, and a closing one behind it."""
    return _is_left(state, budget, 2 * input_tokens + 3 * MIN_OUTPUT + _TOLD)


def affords(state: MachineState, budget: Budget, input_tokens: int) -> bool:
    """Whether a call that reads ``input_tokens`` fits into the tokens and the money that are left."""
    return _is_left(state, budget, input_tokens + MIN_OUTPUT)


def output_limit(state: MachineState, budget: Budget, input_tokens: int, *, reserve: bool) -> int | None:
    """Tokens that the next reply may have at most; ``None`` when neither tokens nor money limit it.

    ``reserve``: a closing call may follow, which has to read what this one reads and says.
    """
    left = _tokens_left(state, budget)
    if left is None:
        return None
    return max(MIN_OUTPUT, (left - 2 * input_tokens - MIN_OUTPUT - _TOLD) // 2 if reserve else left - input_tokens)


def _is_left(state: MachineState, budget: Budget, tokens: int) -> bool:
    left = _tokens_left(state, budget)
    return left is None or left >= tokens


def _tokens_left(state: MachineState, budget: Budget) -> int | None:
    """What is left of tokens, and of money at the price that they had so far."""
    used = _used_tokens(state)
    left = None if budget.tokens is None else budget.tokens - used
    paid, tokens = (state.cost_usd, max(used, 1)) if state.cost_usd else (budget.token_usd, 1)
    if budget.cost_usd is None or not paid:
        return left
    bought = int((budget.cost_usd - (state.cost_usd or 0.0)) * tokens / paid)
    return bought if left is None else min(left, bought)


def _used_tokens(state: MachineState) -> int:
    return state.usage.input_tokens + state.usage.output_tokens


def grace(state: MachineState, budget: Budget, *, in_parts: bool = False) -> Pressure:
    """What is told with the closing call; ``in_parts``: it brings an answer to its end that is given in parts."""
    text = _LAST_PART_TEXT if in_parts else _GRACE_TEXT
    return Pressure(level=PressureLevel.EXHAUSTED, text=text.format(used=used_text(state, budget)))


def used_text(state: MachineState, budget: Budget) -> str:
    """The budget in words."""
    return ", ".join((f"{state.iteration} of {budget.iterations} iterations", *_others(state, budget)))


def _parts(state: MachineState, budget: Budget) -> list[tuple[float, float]]:
    parts: list[tuple[float, float]] = [(state.iteration, budget.iterations)]
    if budget.tokens is not None:
        parts.append((_used_tokens(state), budget.tokens))
    if budget.cost_usd is not None:
        parts.append((state.cost_usd or 0.0, budget.cost_usd))
    return parts


def _others(state: MachineState, budget: Budget) -> list[str]:
    others = []
    if budget.tokens is not None:
        others.append(f"{_used_tokens(state)} of {budget.tokens} tokens")
    if budget.cost_usd is not None:
        others.append(f"{state.cost_usd or 0.0:.4f} of {budget.cost_usd:.4f} US dollars")
    return others
