"""What to do after a failed attempt, as pure functions: the random number is an argument.

::

    failure                         │ another route can answer           │ it is the last one
    ────────────────────────────────┼────────────────────────────────────┼───────────────────────────────────────────
    the request's own fault         │ give up                            │ give up
    request too long                │ next route that may take it        │ give up: the conversation has to become shorter
    replay or Unicode refused       │ repeat at once, amended (bounded)  │ the same
    the provider names a time       │ wait within patience_s, else next  │ wait within the longest wait, else give up
    empty or malformed reply        │ next route at once, cooling or not │ repeat after a growing delay
    5xx, broken connection          │ one repeat at once, then next      │ repeat, after a growing delay (broken: first at once)
    any other that may pass         │ next route at once                 │ repeat after a growing delay
    credential, account, model, …   │ next route at once                 │ give up

A route is asked ``max_attempts`` times at most in one call, and none again once the call has moved on; the growing delays of a call add up
to ``LONGEST_BACKOFF_S`` at most. Both bound the call.
"""

from typing import Final, TypeAlias

import msgspec

from app.domain.model import FailureReason
from app.providers.amend import Amendment
from app.providers.classify import Failure

BACKOFF_BASE_S: Final = 5.0
BACKOFF_CAP_S: Final = 120.0
BACKOFF_SPREAD: Final = 0.25
LONGEST_BACKOFF_S: Final = 300.0
"""Growing delays of one call, all together."""

_SERVER_ERRORS: Final = 500


class Repeat(msgspec.Struct, frozen=True):
    """Ask the same route again after ``delay_s``, the request amended if an amendment is named."""

    delay_s: float
    amendment: Amendment | None = None


class NextRoute(msgspec.Struct, frozen=True):
    """Ask the next route."""


class GiveUp(msgspec.Struct, frozen=True):
    """No attempt follows."""


Step: TypeAlias = Repeat | NextRoute | GiveUp


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call stands when an attempt has failed.

    ``tries`` counts the attempts made on the route, this one included. ``others``: another route can answer now; ``untried``: there is
    one that was not asked yet, healthy or not; ``fitting``: one that is likely to take the request as it is. ``arrived``: the provider had
    sent something. ``longest_wait_s`` is what may be waited at most where no other route can answer, ``backed_off_s`` what growing delays
    of the call took so far.
    """

    tries: int
    max_attempts: int
    patience_s: float
    longest_wait_s: float
    others: bool
    untried: bool
    fitting: bool
    arrived: bool
    backed_off_s: float = 0.0
    amended: tuple[Amendment, ...] = ()


def backoff_s(attempt: int, random: float) -> float:
    """Delay behind attempt number ``attempt`` (from 1): 5 s, 10 s, … up to 120 s, times 0.75 to 1.25 by ``random`` in [0, 1)."""
    exponent = min(max(attempt - 1, 0), 16)
    delay = min(BACKOFF_BASE_S * 2.0**exponent, BACKOFF_CAP_S)
    return delay * (1.0 - BACKOFF_SPREAD + 2.0 * BACKOFF_SPREAD * random)


def next_step(failure: Failure, at: Situation, *, random: float) -> Step:
    """Decide what follows ``failure``."""
    amendment = _amendment(failure, at.amended)
    if amendment is not None:
        return Repeat(0.0, amendment)
    if at.fitting and (failure.compact or failure.reason is FailureReason.INVALID_RESPONSE):
        return NextRoute()
    if not failure.next_route:
        return GiveUp()
    may_repeat = at.tries < at.max_attempts
    if at.others:
        delay_s = _quick_delay_s(failure, at) if may_repeat else None
        return NextRoute() if delay_s is None else Repeat(delay_s)
    if may_repeat and failure.retryable:
        delay_s = _full_delay_s(failure, at, random)
        if delay_s is not None:
            return Repeat(delay_s)
    return NextRoute() if at.untried else GiveUp()


def _amendment(failure: Failure, amended: tuple[Amendment, ...]) -> Amendment | None:
    match failure.reason:
        case FailureReason.INVALID_REPLAY if Amendment.WITHOUT_REPLAY not in amended:
            return Amendment.WITHOUT_REPLAY
        case FailureReason.BAD_UNICODE if Amendment.PLAIN_TEXT not in amended:
            return Amendment.PLAIN_TEXT
        case FailureReason.BAD_UNICODE if Amendment.ASCII not in amended:
            return Amendment.ASCII
        case _:
            return None


def _quick_delay_s(failure: Failure, at: Situation) -> float | None:
    if failure.retry_after_s is not None:
        return failure.retry_after_s if failure.retryable and failure.retry_after_s <= at.patience_s else None
    again = failure.reason is FailureReason.CONNECTION_BROKEN or (failure.status is not None and failure.status >= _SERVER_ERRORS)
    return 0.0 if again and at.tries == 1 else None


def _full_delay_s(failure: Failure, at: Situation, random: float) -> float | None:
    if failure.retry_after_s is not None:
        return failure.retry_after_s if failure.retry_after_s <= at.longest_wait_s else None
    if at.tries == 1 and failure.reason is FailureReason.CONNECTION_BROKEN and not at.arrived:
        return 0.0  # a kept-alive connection that the provider closed just then
    delay_s = backoff_s(at.tries, random)
    return delay_s if at.backed_off_s + delay_s <= LONGEST_BACKOFF_S else None
