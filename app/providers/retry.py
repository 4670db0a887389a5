"""What to do after a failed attempt, as pure functions: the random number is an argument.

While another route remains, the chain moves on at once, except for one immediate repeat where that usually helps. On the last route
retryable failures are repeated, after what the provider asked for or a growing delay. What is the request's own fault is never tried again.
"""

from typing import Final, TypeAlias

import msgspec

from app.domain.model import FailureReason
from app.providers.classify import Failure

BACKOFF_BASE_S: Final = 5.0
BACKOFF_CAP_S: Final = 120.0
BACKOFF_SPREAD: Final = 0.25
MAX_ASKED_WAIT_S: Final = 60.0
"""A provider that asks for more is not waited for within a turn."""

_SERVER_ERRORS: Final = 500
_FATAL: Final = frozenset({FailureReason.CONTEXT_OVERFLOW, FailureReason.CONTENT_FILTERED, FailureReason.INVALID_REQUEST})
"""The request's own fault: any other route would be asked in vain, or asked for what must be decided elsewhere (compaction)."""


class Repeat(msgspec.Struct, frozen=True):
    """Ask the same route again after ``delay_s``."""

    delay_s: float


class NextRoute(msgspec.Struct, frozen=True):
    """Ask the next route at once."""


class GiveUp(msgspec.Struct, frozen=True):
    """No attempt follows."""


Step: TypeAlias = Repeat | NextRoute | GiveUp


def backoff_s(attempt: int, random: float) -> float:
    """Delay behind attempt number ``attempt`` (from 1): 5 s, 10 s, … up to 120 s, times 0.75 to 1.25 by ``random`` in [0, 1)."""
    exponent = min(max(attempt - 1, 0), 16)
    delay = min(BACKOFF_BASE_S * 2.0**exponent, BACKOFF_CAP_S)
    return delay * (1.0 - BACKOFF_SPREAD + 2.0 * BACKOFF_SPREAD * random)


def next_step(failure: Failure, *, tries: int, max_attempts: int, more_routes: bool, arrived: bool, random: float) -> Step:
    """Decide what follows ``failure``.

    ``tries`` counts the attempts made on the route, this one included; ``more_routes`` says whether another one remains; ``arrived``
    whether the provider had sent anything.
    """
    if failure.reason in _FATAL:
        return GiveUp()
    if more_routes:
        return Repeat(0.0) if tries == 1 < max_attempts and _worth_repeating(failure, arrived=arrived) else NextRoute()
    if not failure.retryable or tries >= max_attempts:
        return GiveUp()
    if failure.retry_after_s is not None:
        return GiveUp() if failure.retry_after_s > MAX_ASKED_WAIT_S else Repeat(failure.retry_after_s)
    if tries == 1 and failure.reason is FailureReason.CONNECTION_BROKEN and not arrived:
        return Repeat(0.0)
    return Repeat(backoff_s(tries, random))


def _worth_repeating(failure: Failure, *, arrived: bool) -> bool:
    """A kept-alive connection that the provider closed just then, or a server error, which is often gone with the next request."""
    if failure.retry_after_s is not None:
        return False
    if failure.reason is FailureReason.CONNECTION_BROKEN:
        return not arrived
    return failure.status is not None and failure.status >= _SERVER_ERRORS
