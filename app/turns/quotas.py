"""A tenant's own quotas, checked where a turn is started. A tenant without any never gets here.

What is exact, over all replicas and under concurrency: turns started per minute (booked in a rate window, given back when no turn comes
of it) and turns open at the same time (counted by the opening itself, under the tenant's lock).

Tokens and money of a day count as turns use them. A turn gets no more than what is left when it starts (its own budget is lowered to
that), and what is left then goes on to bound it: see :mod:`app.turns.day_shares`.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from app.domain.delivery import Booked, Limit, Refused
from app.domain.errors import QuotaExceededError, UnavailableError
from app.domain.quotas import DAY_S, MINUTE_S, QuotaPolicy, QuotaState
from app.domain.tenants import Tenant, TenantSettings
from app.domain.turns import TurnRequest
from app.ports import Clock, RateWindowStore, UsageStore
from app.turns.day_shares import DayShares

logger = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

SOON_S = 2.0
"""A place in the minute that is so near is waited for: windows count in whole seconds and keep a margin, so a place that is a minute old
to its caller may need as long to be free. Whoever comes back after a minute is never refused for that."""
CONCURRENT_RETRY_S = 1.0
"""When to ask again while too many turns are open: nobody knows when one ends."""
_MICRO = 1_000_000


def within(request: TurnRequest, *, tokens: int | None, cost_usd: float | None) -> TurnRequest:
    """The request with its turn's budget lowered to these limits; ``None`` is none."""
    limits = (_lower(request.max_tokens, tokens), _lower(request.max_cost_usd, cost_usd))
    if limits == (request.max_tokens, request.max_cost_usd):
        return request
    return msgspec.structs.replace(request, max_tokens=limits[0], max_cost_usd=limits[1])


def _lower(first: Number | None, second: Number | None) -> Number | None:
    return second if first is None else first if second is None else min(first, second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A turn may be started as far as its tenant's quotas go. ``states`` is how they stand with it; ``booking`` its place in the minute."""

    states: tuple[QuotaState, ...] = ()
    booking: Booked | None = None

    @property
    def tokens_left(self) -> int | None:
        """Tokens that are left of the day: the turn gets no more."""
        return self._left(QuotaPolicy.TOKENS)

    @property
    def cost_usd_left(self) -> float | None:
        """Money that is left of the day: the turn gets no more."""
        left = self._left(QuotaPolicy.COST)
        return None if left is None else left / _MICRO

    def _left(self, policy: QuotaPolicy) -> int | None:
        return next((state.remaining for state in self.states if state.policy is policy), None)


class Quotas:
    """The quotas of all tenants."""

    def __init__(self, windows: RateWindowStore, usage: UsageStore, clock: Clock, shares: DayShares) -> None:
        self._windows = windows
        self._usage = usage
        self._shares = shares
        self._clock = clock

    async def admit(self, tenant: Tenant) -> Admission:
        """Take a place for one more turn; returns when it is there, at most ``SOON_S`` later.

        Raises QuotaExceededError, having taken none; UnavailableError when the database is away.
        """
        settings = tenant.settings
        states = await self._day(tenant)
        used_up = tuple(state for state in states if state.remaining == 0)
        if used_up:
            raise _refused(used_up)
        if settings.max_concurrent_turns is not None:
            states.append(_concurrent(settings.max_concurrent_turns, remaining=None))
        booking = None
        if settings.requests_per_minute is not None:
            booking, state = await self._book(tenant, settings.requests_per_minute)
            states.insert(0, state)
        return Admission(states=tuple(states), booking=booking)

    async def give_back(self, admission: Admission) -> None:
        """No turn came of it. Never raises: a place that cannot be given back is free again after a minute."""
        if admission.booking is not None:
            await self._give_back(admission.booking)

    async def _give_back(self, booking: Booked) -> None:
        try:
            await self._windows.give_back(booking)
        except UnavailableError:
            logger.warning("a turn's place in its tenant's minute could not be given back")

    async def _day(self, tenant: Tenant) -> list[QuotaState]:
        tokens, cost_usd = tenant.settings.tokens_per_day, tenant.settings.cost_usd_per_day
        if not tenant.settings.limits_day:
            return []
        use = await self._usage.today(tenant.id)
        self._shares.learn(tenant.id, use)
        states = []
        if tokens is not None:
            states.append(_of_day(QuotaPolicy.TOKENS, tokens, use.tokens, use.ends_in_s))
        if cost_usd is not None:
            limit = max(1, round(cost_usd * _MICRO))
            states.append(_of_day(QuotaPolicy.COST, limit, round(use.cost_usd * _MICRO), use.ends_in_s))
        return states

    async def _book(self, tenant: Tenant, per_minute: int) -> tuple[Booked, QuotaState]:
        limit = Limit(key=f"tenant:{tenant.id}", rpm=per_minute, tpm=None)
        booking = await self._windows.book((limit,), 0, SOON_S)
        if isinstance(booking, Refused):
            raise _refused((_requests(per_minute, 0, min(booking.delay_s, float(MINUTE_S))),))
        if booking.delay_s > 0.0:
            await self._wait(booking)
        use = (await self._windows.use((limit.key,))).get(limit.key)
        remaining = per_minute - (use.calls if use else 1)
        return booking, _requests(per_minute, max(0, remaining), float(MINUTE_S))

    async def _wait(self, booking: Booked) -> None:
        try:
            await self._clock.sleep(booking.delay_s)
        except asyncio.CancelledError:
            await self._give_back(booking)
            raise


def too_many_open(settings: TenantSettings) -> QuotaExceededError:
    """The error of an opening that found as many turns open as there may be."""
    return _refused((_concurrent(settings.max_concurrent_turns or 0, remaining=0),))


def _refused(violated: tuple[QuotaState, ...]) -> QuotaExceededError:
    return QuotaExceededError("; ".join(_SENTENCES[state.policy] for state in violated) + ".", violated)


_SENTENCES = {
    QuotaPolicy.REQUESTS: "As many turns were started in the last minute as the tenant may",
    QuotaPolicy.CONCURRENT_TURNS: "As many turns are running or waiting as the tenant may have at the same time",
    QuotaPolicy.TOKENS: "The tenant's tokens of the day are used up",
    QuotaPolicy.COST: "The tenant's money of the day is used up",
}


def _requests(limit: int, remaining: int, reset_s: float) -> QuotaState:
    return QuotaState(policy=QuotaPolicy.REQUESTS, limit=limit, window_s=MINUTE_S, remaining=remaining, reset_s=reset_s)


def _concurrent(limit: int, *, remaining: int | None) -> QuotaState:
    reset_s = None if remaining is None else CONCURRENT_RETRY_S
    return QuotaState(policy=QuotaPolicy.CONCURRENT_TURNS, limit=limit, window_s=None, remaining=remaining, reset_s=reset_s)


def _of_day(policy: QuotaPolicy, limit: int, used: int, ends_in_s: float) -> QuotaState:
    return QuotaState(policy=policy, limit=limit, window_s=DAY_S, remaining=max(0, limit - used), reset_s=ends_in_s)
