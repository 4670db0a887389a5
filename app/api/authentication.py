"""Who is calling: API keys of tenants, and the admin key.

A key is looked up by its hash and remembered for a few seconds, so a disabled key may work that much longer. While the database is away
a key that was good shortly before stays good for half a minute: a restart of the database must not fail every request.
"""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request
from fastapi.openapi.models import HTTPBearer as BearerModel
from fastapi.security.base import SecurityBase

from app.domain.errors import ForbiddenError, UnauthorizedError, UnavailableError
from app.domain.tenant_rules import MAX_KEY_CHARACTERS
from app.domain.tenants import Principal
from app.ports import Clock

STALE_S = 30.0
"""How long after its time an entry is used while the database cannot be reached."""

MIN_ADMIN_KEY_CHARACTERS = 8

_NEGATIVE_TTL_S = 1.0
_RETRY_S = 1.0
"""Between looks at a database that was away, as far as stale entries are concerned."""
_UNAUTHORIZED = "A valid API key is needed: Authorization: Bearer <key>, or x-api-key."
_ADMIN_UNAUTHORIZED = "The admin key is needed: Authorization: Bearer <key>, or x-api-key."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What the store said. Times on the monotonic clock, in seconds."""

    principal: Principal | None
    fresh_until: float
    stale_until: float


class KeyOwners(Protocol):
    """The part of :class:`app.ports.TenantStore` that is asked here."""

    async def authenticate(self, key_hash: bytes) -> Principal | None:
        """Who owns the key with this SHA-256. Raises UnavailableError."""


class Authenticator:
    """Finds the tenant of an API key. Requests with one key that come at once cause one query.

    Known and unknown keys are remembered apart, ``max_entries`` of each, so that guessing keys displaces no good one.
    """

    def __init__(self, store: KeyOwners, clock: Clock, *, ttl_s: float = 5.0, max_entries: int = 10_000) -> None:
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._known: dict[bytes, _Entry] = {}
        self._unknown: dict[bytes, _Entry] = {}
        self._loading: dict[bytes, asyncio.Task[_Entry | UnavailableError]] = {}

    async def authenticate(self, authorization: str | None, x_api_key: str | None) -> Principal:
        """The caller. Raises UnauthorizedError, and UnavailableError when the database is away and the key not remembered."""
        key = presented_key(authorization, x_api_key)
        if key is None or len(key) > MAX_KEY_CHARACTERS:
            raise UnauthorizedError(_UNAUTHORIZED)
        key_hash = hashlib.sha256(key.encode()).digest()
        entry = self._known.get(key_hash) or self._unknown.get(key_hash)
        if entry is None or entry.fresh_until <= self._clock.monotonic():
            entry = await self._load_once(key_hash)
        if entry.principal is None:
            raise UnauthorizedError(_UNAUTHORIZED)
        return entry.principal

    async def _load_once(self, key_hash: bytes) -> _Entry:
        task = self._loading.get(key_hash)
        if task is None:
            task = asyncio.create_task(self._load(key_hash), name="authenticate")
            self._loading[key_hash] = task
            task.add_done_callback(lambda _: self._loading.pop(key_hash, None))
        # Shielded: a request that goes away must not take the lookup from those who wait for it too.
        match await asyncio.shield(task):
            case UnavailableError() as error:
                raise UnavailableError(error.code, error.detail, retry_after_s=error.retry_after_s) from error
            case entry:
                return entry

    async def _load(self, key_hash: bytes) -> _Entry | UnavailableError:
        asked_at = self._clock.monotonic()
        try:
            principal = await self._store.authenticate(key_hash)
        except UnavailableError as error:
            return self._stale(key_hash) or error  # a value: with every waiter gone nobody would fetch the exception
        ttl_s = _NEGATIVE_TTL_S if principal is None else self._ttl_s
        entry = _Entry(principal=principal, fresh_until=asked_at + ttl_s, stale_until=asked_at + ttl_s + STALE_S)
        home, other = (self._unknown, self._known) if principal is None else (self._known, self._unknown)
        other.pop(key_hash, None)
        self._remember(home, key_hash, entry)
        return entry

    def _stale(self, key_hash: bytes) -> _Entry | None:
        """The entry that is still good while the database is away, put off for a moment so that not every request waits for it."""
        entry = self._known.get(key_hash)
        now = self._clock.monotonic()
        if entry is None or entry.stale_until <= now:
            return None
        entry = _Entry(principal=entry.principal, fresh_until=min(now + _RETRY_S, entry.stale_until), stale_until=entry.stale_until)
        self._remember(self._known, key_hash, entry)
        return entry

    def _remember(self, entries: dict[bytes, _Entry], key_hash: bytes, entry: _Entry) -> None:
        entries.pop(key_hash, None)
        entries[key_hash] = entry
        if len(entries) > self._max_entries:
            del entries[next(iter(entries))]  # the one that was looked up longest ago


def presented_key(authorization: str | None, x_api_key: str | None) -> str | None:
    """The key of ``Authorization: Bearer`` (the scheme in any case), else of ``x-api-key``; ``None`` when there is none."""
    scheme, _, credentials = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return (x_api_key or "").strip() or None


def check_admin(admin_key: str | None, authorization: str | None, x_api_key: str | None) -> None:
    """Return when the caller has the admin key. Raises UnauthorizedError, and ForbiddenError (``admin_disabled``) when none is configured.

    A configured key that is blank or too short to be a secret is none: closed, never open.
    """
    expected = (admin_key or "").strip()
    if len(expected) < MIN_ADMIN_KEY_CHARACTERS:
        detail = f"No admin key is configured: set GATEWAY_ADMIN_KEY to at least {MIN_ADMIN_KEY_CHARACTERS} characters."
        raise ForbiddenError("admin_disabled", detail)
    presented = presented_key(authorization, x_api_key) or ""
    if not hmac.compare_digest(presented.encode(), expected.encode()):
        raise UnauthorizedError(_ADMIN_UNAUTHORIZED)


class _TenantKey(SecurityBase):
    """The dependency of every route of a tenant; being a security scheme it documents itself."""

    def __init__(self) -> None:
        self.model = BearerModel(description="An API key of a tenant: Authorization: Bearer agw_..., or x-api-key.")
        self.scheme_name = "tenantKey"

    async def __call__(self, request: Request) -> Principal:
        authenticator: Authenticator = request.app.state.services.authenticator
        caller = await authenticator.authenticate(request.headers.get("authorization"), request.headers.get("x-api-key"))
        request.state.tenant_id = caller.tenant.id  # for the access log
        return caller


class _AdminKey(SecurityBase):
    """The dependency of everything that is the operator's."""

    def __init__(self) -> None:
        self.model = BearerModel(description="The admin key: Authorization: Bearer <key>, or x-api-key.")
        self.scheme_name = "adminKey"

    async def __call__(self, request: Request) -> None:
        admin_key: str | None = request.app.state.services.admin_key
        check_admin(admin_key, request.headers.get("authorization"), request.headers.get("x-api-key"))


principal = _TenantKey()
"""Dependency: the caller. ``caller: Annotated[Principal, Depends(principal)]``."""

admin = _AdminKey()
"""Dependency: lets the admin key pass and nobody else. ``dependencies=[Depends(admin)]``."""
