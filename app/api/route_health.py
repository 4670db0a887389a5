"""The health of routes as the admin API and the command line show it: cool-downs, last failures, use of rate windows. No secrets."""

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from app.domain.delivery import Cooldown, CooldownScope, Limit, WindowUse
from app.domain.events import rfc3339
from app.domain.ids import TenantId
from app.domain.model import FailureReason
from app.domain.targets import rate_limits, target_keys
from app.domain.tenants import Purpose, Route, Tenant, TenantInfo
from app.ports import Clock, HealthStore, RateWindowStore, TenantStore

MAX_FAILURES = 5
"""Last failures shown of a route."""

Place = tuple[TenantId, Purpose, int]
"""Where a route stands: its tenant, its chain, its position from 0."""


class RouteState(enum.StrEnum):
    """How a route stands."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    """Left alone for a while."""
    PROBATION = "probation"
    """Its cool-down is over, and no call has shown yet that it answers again."""


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """A failure; ``at`` is RFC 3339 in UTC, ``status`` the HTTP status if there was one."""

    at: str
    reason: FailureReason
    status: int | None


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the route's credential (``scope`` ``key``) or of the model through it (``key_model``), and its use in the last 60 s.

    ``calls`` and ``tokens`` are those of everybody who shares the credential, bookings ahead included.
    """

    scope: CooldownScope
    rpm: int | None
    tpm: int | None
    calls: int
    tokens: int


class RouteHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A route's health: what all replicas know. ``scope`` says how far the failure reaches.

    ``failures`` counts those in a row, ``last_failures`` are the newest first.
    """

    state: RouteState
    scope: CooldownScope | None = None
    reason: FailureReason | None = None
    cool_down_until: str | None = None
    remaining_s: float | None = None
    failures: int = 0
    last_failures: tuple[FailureView, ...] = ()
    windows: tuple[WindowView, ...] = ()


class HealthReader:
    """Reads the health of the routes of tenants."""

    def __init__(self, tenants: TenantStore, health: HealthStore, windows: RateWindowStore, clock: Clock) -> None:
        self._tenants = tenants
        self._health = health
        self._windows = windows
        self._clock = clock

    async def read(self, infos: Iterable[TenantInfo]) -> dict[Place, RouteHealth]:
        """The health of every route of these tenants; those of disabled ones are left out, since nobody calls them.

        One statement per tenant and two more.
        """
        tenants = [tenant for info in infos if not info.disabled and (tenant := await self._tenants.tenant(info.id)) is not None]
        cooldowns = {one.key: one for one in await self._health.read()}
        placed = [(place, route) for tenant in tenants for place, route in _routes(tenant)]
        keys = {limit.key for (tenant_id, _, _), route in placed for limit in rate_limits(tenant_id, route)}
        used = await self._windows.use(sorted(keys)) if keys else {}
        now_ms = self._clock.unix_ms()
        return {place: _health(place[0], route, cooldowns, used=used, now_ms=now_ms) for place, route in placed}


def _routes(tenant: Tenant) -> list[tuple[Place, Route]]:
    return [((tenant.id, purpose, index), route) for purpose, chain in tenant.chains.items() for index, route in enumerate(chain)]


def _health(
    tenant_id: TenantId, route: Route, cooldowns: Mapping[str, Cooldown], *, used: Mapping[str, WindowUse], now_ms: int
) -> RouteHealth:
    known = [one for key in target_keys(tenant_id, route).all if (one := cooldowns.get(key)) is not None]
    windows = tuple(_window(limit, used) for limit in rate_limits(tenant_id, route))
    if not known:
        return RouteHealth(state=RouteState.HEALTHY, windows=windows)
    worst = max(known, key=lambda one: (max(one.remaining_s, 0.0), one.failures))
    cooling = worst.remaining_s > 0.0
    state = RouteState.COOLING if cooling else RouteState.PROBATION if worst.failures else RouteState.HEALTHY
    return RouteHealth(
        state=state,
        scope=worst.scope,
        reason=worst.reason,
        cool_down_until=rfc3339(now_ms + round(worst.remaining_s * 1_000)) if cooling else None,
        remaining_s=round(worst.remaining_s, 3) if cooling else None,
        failures=max(one.failures for one in known),
        last_failures=_failures(known),
        windows=windows,
    )


def _failures(known: Sequence[Cooldown]) -> tuple[FailureView, ...]:
    notes = sorted((note for one in known for note in one.recent), key=lambda note: note.at_ms, reverse=True)
    return tuple(FailureView(at=rfc3339(note.at_ms), reason=note.reason, status=note.status) for note in notes[:MAX_FAILURES])


def _window(limit: Limit, used: Mapping[str, WindowUse]) -> WindowView:
    use = used.get(limit.key, WindowUse(calls=0, tokens=0))
    scope = CooldownScope.KEY if limit.key.startswith("w:") else CooldownScope.KEY_MODEL
    return WindowView(scope=scope, rpm=limit.rpm, tpm=limit.tpm, calls=use.calls, tokens=use.tokens)
