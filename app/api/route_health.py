"""The health of routes as the admin API and the command line show it: cool-downs, last failures, use of rate windows. No secrets.

And the operator's word that a route is well again.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from app.domain.delivery import Cooldown, CooldownScope, Limit, WindowUse
from app.domain.events import rfc3339
from app.domain.ids import TenantId
from app.domain.model import FailureReason
from app.domain.targets import rate_limits, target_keys
from app.domain.tenants import CredentialState, Purpose, Route, Tenant, TenantInfo
from app.ports import Clock, HealthStore, RateWindowStore, TenantStore

MAX_FAILURES = 5
"""Last failures shown of a route."""

Place = tuple[TenantId, Purpose, int]
"""Where a route stands: its tenant, its chain, its position from 0."""


Learnt: TypeAlias = Callable[[TenantId, Route], Limit | None]
"""The limits of a route's model that its provider told of lately; ``None`` when it told of none. No I/O."""


class RouteState(enum.StrEnum):
    """How a route stands."""

    HEALTHY = "healthy"
    COOLING = "cooling"
    """Left alone for a while."""
    PROBATION = "probation"
    """Its cool-down is over, and no call has shown yet that it answers again."""
    NO_CREDENTIAL = "no_credential"
    """Its credential is missing or cannot be decrypted: its calls go without one, and are refused."""


class LimitSource(enum.StrEnum):
    """Where a limit is known from."""

    CONFIGURED = "configured"
    LEARNT = "learnt"
    """The provider told of it lately; the lower of the two is kept. Each replica knows what it was told itself."""


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """A failure; ``at`` is RFC 3339 in UTC, ``status`` the HTTP status if there was one."""

    at: str
    reason: FailureReason
    status: int | None


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the route's credential (``scope`` ``key``) or of the model through it (``key_model``), and its use in the last 60 s.

    ``source`` is ``configured``, or ``learnt`` from what the provider told. ``calls`` and ``tokens`` are those of everybody who shares the
    credential, bookings ahead included.
    """

    scope: CooldownScope
    source: LimitSource
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


class HealthDesk:
    """Shows the health of the routes of tenants, and resets it. Without ``learnt`` no limits are shown but configured ones."""

    def __init__(
        self, tenants: TenantStore, health: HealthStore, windows: RateWindowStore, clock: Clock, *, learnt: Learnt | None = None
    ) -> None:
        self._tenants = tenants
        self._health = health
        self._windows = windows
        self._clock = clock
        self._learnt = learnt

    async def read(self, infos: Iterable[TenantInfo]) -> dict[Place, RouteHealth]:
        """The health of every route of these tenants; those of disabled ones are left out, since nobody calls them.

        One statement per tenant and two more.
        """
        enabled = {info.id: info for info in infos if not info.disabled}
        tenants = [tenant for tenant_id in enabled if (tenant := await self._tenants.tenant(tenant_id)) is not None]
        cooldowns = {one.key: one for one in await self._health.read()}
        placed = {place: route for tenant in tenants for place, route in _routes(tenant)}
        limits = {place: self._limits(place[0], route) for place, route in placed.items()}
        keys = {limit.key for of_route in limits.values() for _, limit in of_route}
        used = await self._windows.use(sorted(keys)) if keys else {}
        now_ms = self._clock.unix_ms()
        found = {}
        for place, route in placed.items():
            windows = tuple(_window(source, limit, used) for source, limit in limits[place])
            known = [one for key in target_keys(place[0], route).all if (one := cooldowns.get(key)) is not None]
            health = _health(known, windows, now_ms)
            if enabled[place[0]].credentials.get(route.provider.name) in _USELESS:
                health = msgspec.structs.replace(health, state=RouteState.NO_CREDENTIAL)
            found[place] = health
        return found

    async def reset(self, info: TenantInfo, provider: str, model: str | None) -> bool:
        """Forget whatever failed with a provider's routes, or with those to ``model``, cool-downs that it asked for included.

        False when the tenant has no such route. Every replica knows within about a second. What is known against the credential goes
        with each of its models: else a reset would not let anything be called.
        """
        tenant = await self._tenants.tenant(info.id)
        routes = [] if tenant is None else [route for _, route in _routes(tenant) if route.provider.name == provider]
        chosen = [route for route in routes if model is None or route.model == model]
        if chosen:
            await self._health.reset(sorted({key for route in chosen for key in target_keys(info.id, route).all}))
        return bool(chosen)

    def _limits(self, tenant_id: TenantId, route: Route) -> list[tuple[LimitSource, Limit]]:
        limits = [(LimitSource.CONFIGURED, limit) for limit in rate_limits(tenant_id, route)]
        told = None if self._learnt is None else self._learnt(tenant_id, route)
        return limits if told is None else [*limits, (LimitSource.LEARNT, told)]


_USELESS = frozenset({CredentialState.MISSING, CredentialState.UNREADABLE})


def _routes(tenant: Tenant) -> list[tuple[Place, Route]]:
    return [((tenant.id, purpose, index), route) for purpose, chain in tenant.chains.items() for index, route in enumerate(chain)]


def _health(known: Sequence[Cooldown], windows: tuple[WindowView, ...], now_ms: int) -> RouteHealth:
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


def _window(source: LimitSource, limit: Limit, used: Mapping[str, WindowUse]) -> WindowView:
    use = used.get(limit.key, WindowUse(calls=0, tokens=0))
    scope = CooldownScope.KEY if limit.key.startswith("w:") else CooldownScope.KEY_MODEL
    return WindowView(scope=scope, source=source, rpm=limit.rpm, tpm=limit.tpm, calls=use.calls, tokens=use.tokens)
