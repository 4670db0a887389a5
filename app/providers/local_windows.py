"""Rate windows in this process's memory, by the rule of the shared ones: what limits are kept by while those are away.

A call booked for second ``s`` counts until second ``s`` + 62: 60 seconds, the rest of its own, and a margin of 0.5 s for the way to the
provider, in whole seconds. Its second is the earliest one that keeps the limits and is not before the last booking.
"""

import math
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from app.domain.delivery import Booked, Booking, Limit, Refused, WindowUse
from app.ports import Clock, RateWindowStore

COUNTS_S: Final = 62
MAX_WINDOWS: Final = 10_000

_USE_S: Final = 60


class _Bucket:
    """One second."""

    __slots__ = ("calls", "tokens")

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0


_Window = dict[int, _Bucket]


class LocalWindows(RateWindowStore):
    """:class:`app.ports.RateWindowStore` for one process, on seconds of its monotonic clock; at most ``MAX_WINDOWS`` keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    @override
    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        """Take the earliest place; without a wait, so nothing comes in between."""
        now = self._clock.monotonic()
        second = math.floor(now)
        calls_until = tokens_until = 0
        for limit in limits:
            window = self._current(limit.key, now)
            calls, used = _in_the_way(window, limit, tokens)
            calls_until, tokens_until = max(calls_until, calls), max(tokens_until, used)
            second = max(second, max(window, default=second))
        second = max(second, calls_until, tokens_until)
        delay_s = max(second - now, 0.0)
        of_tokens = tokens_until > calls_until or all(limit.rpm is None for limit in limits)
        short = "tpm" if of_tokens else "rpm"
        if delay_s > patience_s:
            return Refused(limit=short, delay_s=delay_s)
        keys = tuple(limit.key for limit in limits)
        self._add(keys, second, tokens)
        return Booked(keys=keys, second=second, tokens=tokens, delay_s=delay_s, limit=short)

    def note(self, keys: Sequence[str], delay_s: float, tokens: int) -> None:
        """Count a call that was booked elsewhere, ``delay_s`` from now."""
        self._add(keys, math.floor(self._clock.monotonic() + delay_s), tokens)

    @override
    async def give_back(self, booking: Booked) -> None:
        """The call was not made."""
        for key in booking.keys:
            window = self._windows.get(key, {})
            bucket = window.get(booking.second)
            if bucket is None:
                continue
            bucket.calls -= 1
            bucket.tokens = max(bucket.tokens - booking.tokens, 0)
            if bucket.calls <= 0:
                del window[booking.second]

    @override
    async def settle(self, booking: Booked, tokens: int) -> None:
        """The call used ``tokens`` in place of those booked."""
        for key in booking.keys:
            bucket = self._windows.get(key, {}).get(booking.second)
            if bucket is not None:
                bucket.tokens = max(bucket.tokens + tokens - booking.tokens, 0)

    @override
    async def use(self, keys: Sequence[str]) -> dict[str, WindowUse]:
        """What is used of these limits."""
        after = self._clock.monotonic() - _USE_S
        found = {}
        for key in keys:
            if key in self._windows:
                buckets = [bucket for second, bucket in self._windows[key].items() if second > after]
                found[key] = WindowUse(calls=sum(bucket.calls for bucket in buckets), tokens=sum(bucket.tokens for bucket in buckets))
        return found

    @override
    async def prune(self) -> int:
        """Drop windows that hold nothing."""
        before = math.floor(self._clock.monotonic()) - COUNTS_S
        idle = [key for key, window in self._windows.items() if max(window, default=before) <= before]
        for key in idle:
            del self._windows[key]
        return len(idle)

    def _current(self, key: str, now: float) -> _Window:
        """The window's seconds that still count."""
        before = math.floor(now) - COUNTS_S
        window = self._windows.get(key, {})
        return {second: bucket for second, bucket in window.items() if second > before}

    def _add(self, keys: Sequence[str], second: int, tokens: int) -> None:
        now = self._clock.monotonic()
        for key in keys:
            window = self._current(key, now)
            bucket = window.setdefault(second, _Bucket())
            bucket.calls += 1
            bucket.tokens += tokens
            self._windows.pop(key, None)  # the one used last stands last
            self._windows[key] = window
        while len(self._windows) > MAX_WINDOWS:
            del self._windows[next(iter(self._windows))]


def _in_the_way(window: _Window, limit: Limit, tokens: int) -> tuple[int, int]:
    """From which second on there is room for one more call, and for ``tokens``; 0 for at once."""
    calls_until = tokens_until = 0
    calls, used = 1, 0 if limit.tpm is None else min(tokens, limit.tpm)
    for second in sorted(window, reverse=True):
        calls += window[second].calls
        used += window[second].tokens
        if limit.rpm is not None and calls > limit.rpm and not calls_until:
            calls_until = second + COUNTS_S
        if limit.tpm is not None and used > limit.tpm and not tokens_until:
            tokens_until = second + COUNTS_S
    return calls_until, tokens_until
