"""How long what failed is left alone: a pure function of the failure and of how often it failed in a row."""

from typing import Final

import msgspec

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason
from app.providers.classify import Failure

STALLS_TO_OPEN: Final = 2
"""Stalls in a row from which a target is left alone for long: trying it costs a caller a whole deadline."""

_MAX_DOUBLINGS: Final = 16


class Pause(msgspec.Struct, frozen=True):
    """Leave it alone for ``duration_s``. ``promised``: the provider named the time, so it is not asked before."""

    duration_s: float
    promised: bool


class _Growth(msgspec.Struct, frozen=True):
    """``first_s``, doubled by every further failure in a row, up to ``cap_s``."""

    first_s: float
    cap_s: float

    def after(self, failures: int) -> float:
        doublings = min(max(failures - 1, 0), _MAX_DOUBLINGS)
        return min(self.first_s * 2.0**doublings, self.cap_s)


# What a minute's outage does is over soon after it; what an operator has to repair is not asked for every few seconds.
_OUTAGE: Final = _Growth(5.0, 30.0)
_FIXED: Final = _Growth(600.0, 600.0)
_STALLED: Final = _Growth(60.0, 300.0)
_FIRST_STALL_S: Final = 10.0
_STALLS: Final = frozenset({FailureReason.FIRST_TOKEN_TIMEOUT, FailureReason.STALE})
_GROWTHS: Final[dict[FailureReason, _Growth]] = {
    FailureReason.BILLING: _Growth(600.0, 3_600.0),
    FailureReason.AUTH: _FIXED,
    FailureReason.MODEL_NOT_FOUND: _FIXED,
    FailureReason.FORBIDDEN: _FIXED,
    FailureReason.RATE_LIMIT: _Growth(10.0, 60.0),
    FailureReason.OVERLOADED: _OUTAGE,
    FailureReason.SERVER_ERROR: _OUTAGE,
    FailureReason.CONNECT_FAILED: _OUTAGE,
    FailureReason.CONNECTION_BROKEN: _OUTAGE,
    FailureReason.INCOMPLETE_STREAM: _OUTAGE,
}


def pause_after(failure: Failure, failures: int) -> Pause | None:
    """How long what the scope of ``failure`` names is left alone; ``None`` for not at all.

    ``failures`` counts those in a row, this one included. A time that the provider named is kept exactly, zero included.
    """
    if failure.scope is CooldownScope.NONE:
        return None
    if failure.retry_after_s is not None:
        return Pause(max(failure.retry_after_s, 0.0), promised=failure.promised)
    if failure.reason in _STALLS:
        return Pause(_FIRST_STALL_S if failures < STALLS_TO_OPEN else _STALLED.after(failures - STALLS_TO_OPEN + 1), promised=False)
    growth = _GROWTHS.get(failure.reason)
    return None if growth is None else Pause(growth.after(failures), promised=False)
