"""Keeps the limits of credentials: books every call before it is made, in windows that all replicas share.

While the store is away calls are not refused: each process then keeps the limits by itself, with what it booked lately counted in. So
no process exceeds a limit, but several together may until the store is back, and for a minute after.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from app.domain.delivery import Booked, Booking, Limit
from app.domain.errors import UnavailableError
from app.domain.ids import TenantId
from app.domain.targets import TargetKeys, model_window, rate_limits, target_keys
from app.domain.tenants import Route
from app.ports import Clock, RateWindowStore
from app.providers.health import HealthBoard
from app.providers.local_windows import LocalWindows
from app.providers.rate_headers import RateHeaders

logger = logging.getLogger(__name__)

NEWS_S: Final = 600.0
"""What a provider told of its limits is believed for so long."""
MAX_LEARNT: Final = 10_000

_LOCAL: Final = "local:"
"""Before the keys of a booking that only this process knows."""


class _Learnt(msgspec.Struct, frozen=True):
    """Limits of a minute as a provider told them; ``until`` on our monotonic clock."""

    rpm: int | None
    tpm: int | None
    until: float


class Limiter:
    """Books calls. ``board`` hears of limits that a provider says are used up."""

    def __init__(self, store: RateWindowStore, board: HealthBoard, clock: Clock) -> None:
        self._store = store
        self._board = board
        self._clock = clock
        self._local = LocalWindows(clock)
        self._learnt: dict[str, _Learnt] = {}
        self._away = False

    def limits_for(self, tenant_id: TenantId, route: Route, keys: TargetKeys) -> tuple[Limit, ...]:
        """What a call of ``route`` must keep: configured limits, and lower ones that the provider told of. Empty: nothing to book."""
        configured = rate_limits(tenant_id, route)
        learnt = self._told(keys)
        if learnt is None:
            return configured
        model = Limit(key=model_window(tenant_id, route), rpm=_lower(route.rpm, learnt.rpm), tpm=_lower(route.tpm, learnt.tpm))
        return (*(limit for limit in configured if limit.key != model.key), model)

    def learnt(self, tenant_id: TenantId, route: Route) -> Limit | None:
        """What the provider told lately of the limits of the route's model; ``None`` when it told of none."""
        told = self._told(target_keys(tenant_id, route))
        return None if told is None else Limit(key=model_window(tenant_id, route), rpm=told.rpm, tpm=told.tpm)

    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        """Take a place for one call of about ``tokens``, or be refused; see :class:`app.ports.RateWindowStore`.

        Tokens are counted only where one of ``limits`` is one of tokens, so that other calls need no settling. Never fails.
        """
        counted = tokens if any(limit.tpm is not None for limit in limits) else 0
        try:
            booking = await self._store.book(limits, counted, patience_s)
        except UnavailableError:
            self._lost()
            return await self._local.book([msgspec.structs.replace(limit, key=_LOCAL + limit.key) for limit in limits], counted, patience_s)
        self._back()
        if isinstance(booking, Booked):
            self._local.note([_LOCAL + key for key in booking.keys], booking.delay_s, booking.tokens)
        return booking

    async def give_back(self, booking: Booked) -> None:
        """The call was not made: its place is free again. Never fails: what cannot be given back is free a minute later."""
        try:
            await self._home(booking).give_back(booking)
        except UnavailableError:
            self._lost()

    async def settle(self, booking: Booked, tokens: int) -> None:
        """The call used ``tokens``, in and out. Never fails; nothing is written when that is what was booked, or none were counted."""
        if tokens == booking.tokens or not booking.tokens:
            return
        try:
            await self._home(booking).settle(booking, tokens)
        except UnavailableError:
            self._lost()

    async def learn(self, keys: TargetKeys, headers: RateHeaders) -> None:
        """Take note of what a provider told of its limits with a response that went well. Never fails.

        What is used up is left alone until the provider has some again; a limit that surely is one of a minute is kept from now on.
        """
        if headers.rpm is not None or headers.tpm is not None:
            self._learnt.pop(keys.key_model, None)  # the newest last
            self._learnt[keys.key_model] = _Learnt(headers.rpm, headers.tpm, self._clock.monotonic() + NEWS_S)
            if len(self._learnt) > MAX_LEARNT:
                del self._learnt[next(iter(self._learnt))]
        if headers.away_s is not None:
            await self._board.used_up(keys, headers.away_s)

    def _told(self, keys: TargetKeys) -> _Learnt | None:
        told = self._learnt.get(keys.key_model)
        return None if told is None or told.until <= self._clock.monotonic() else told

    def _home(self, booking: Booked) -> RateWindowStore:
        return self._local if booking.keys[0].startswith(_LOCAL) else self._store

    def _lost(self) -> None:
        if not self._away:
            self._away = True
            logger.warning("rate windows cannot be shared while the database is away: this process keeps the limits by itself")

    def _back(self) -> None:
        if self._away:
            self._away = False
            logger.info("rate windows are shared again")


def _lower(configured: int | None, learnt: int | None) -> int | None:
    known = [limit for limit in (configured, learnt) if limit]
    return min(known, default=None)
