"""The load of the soak: turns of many tenants, one after the other on each, and beside them one neighbour at a fixed rate."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import aiohttp

from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSpec

TURNS_OF_A_SESSION = 10
"""Then it is deleted, with all that belongs to it: the database stays small, and so do histories."""
NEIGHBOUR_EVERY_S = 0.1
FIRST_TOKEN_TIMEOUT_S = 1.0
"""Of every primary: so long a silent one is waited for."""
_SHOWN = 5
_READ_TIMEOUT_S = 60.0
_BODY = b'{"input": "Say a few words."}'
_TOKEN = b"event: message.delta\n"
_GOOD_END = b"event: turn.completed\n"
_MODEL = "tokens=4"


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A tenant and its present session. ``fault`` is what the model of its primary does."""

    name: str
    key: str
    fault: str | None = None
    session_id: str = ""
    turns: int = 0

    def spec(self, base_url: str) -> TenantSpec:
        """Two providers with credentials of their own, and a chain of two routes."""
        primary, fallback = f"{self.name}-primary", f"{self.name}-fallback"
        providers = tuple(
            ProviderSpec(name=name, base_url=base_url, api_key=f"sk-soak-{secrets.token_hex(8)}") for name in (primary, fallback)
        )
        routes = (
            RouteSpec(provider=primary, model=f"primary:{self.fault or _MODEL}", first_token_timeout_s=FIRST_TOKEN_TIMEOUT_S),
            RouteSpec(provider=fallback, model=f"fallback:{_MODEL}"),
        )
        return TenantSpec(name=self.name, api_keys=(self.key,), providers=providers, chains={Purpose.CHAT: routes})

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}


def tenant(name: str, fault: str | None = None) -> Tenant:
    """A tenant with a fresh key."""
    return Tenant(name=name, key=f"agw_soak0{secrets.token_hex(12)}", fault=fault)


@dataclass(slots=True)
class Seen:
    """What the load of one phase saw."""

    first_token_s: list[float] = field(default_factory=list)
    """Of the tenants, without the neighbour."""
    neighbour_s: list[float] = field(default_factory=list)
    """Of the neighbour."""
    errors: int = 0
    messages: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def fail(self, message: str) -> None:
        """A turn did not complete."""
        self.errors += 1
        if len(self.messages) < _SHOWN:
            self.messages.append(message)


class Load:
    """Posts turns to the gateway at ``url``."""

    def __init__(self, http: aiohttp.ClientSession, url: str, tenants: Sequence[Tenant], streams: int) -> None:
        self._http = http
        self._url = url
        # A stream has tenants of its own, so that none of them ever runs two turns; the cycle is the worst order for a cache.
        self._rounds = [itertools.cycle(tenants[place::streams]) for place in range(streams)]
        self.turns = 0

    async def phase(self, turns: int, at_least_s: float, neighbour: Tenant) -> Seen:
        """Run ``turns`` turns, and more until ``at_least_s`` is over; then wait for all that began."""
        seen = Seen()
        began_at = time.perf_counter()
        wanted = self.turns + turns
        beside = asyncio.ensure_future(self._beside(neighbour, seen))

        async def stream(tenants: "itertools.cycle[Tenant]") -> None:
            while self.turns < wanted or time.perf_counter() < began_at + at_least_s:
                self.turns += 1
                await _noted(self._next_turn(next(tenants), seen), seen)

        try:
            await asyncio.gather(*map(stream, self._rounds))
            seen.wall_s = time.perf_counter() - began_at
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        return seen

    async def _next_turn(self, tenant: Tenant, seen: Seen) -> None:
        if tenant.turns % TURNS_OF_A_SESSION == 0:
            if tenant.session_id:
                await self._delete(tenant, tenant.session_id)
            tenant.session_id = await self._session(tenant)
        tenant.turns += 1
        await self._turn(tenant, tenant.session_id, seen, seen.first_token_s)

    async def _beside(self, neighbour: Tenant, seen: Seen) -> None:
        """Start a turn of the neighbour at each beat, however long the ones before take."""
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                turn = asyncio.ensure_future(_noted(self._lone_turn(neighbour, seen), seen))
                running.add(turn)
                turn.add_done_callback(running.discard)
                await asyncio.sleep(NEIGHBOUR_EVERY_S)
        finally:
            await asyncio.gather(*running)

    async def _lone_turn(self, neighbour: Tenant, seen: Seen) -> None:
        session_id = await self._session(neighbour)
        await self._turn(neighbour, session_id, seen, seen.neighbour_s)
        await self._delete(neighbour, session_id)

    async def _turn(self, tenant: Tenant, session_id: str, seen: Seen, times: list[float]) -> None:
        began_at = time.perf_counter()
        token_at, body = 0.0, b""
        async with self._http.post(f"{self._url}/sessions/{session_id}/turns", data=_BODY, headers=tenant.headers) as response:
            async for chunk in response.content.iter_any():
                body += chunk
                if not token_at and _TOKEN in body:
                    token_at = time.perf_counter()
        if token_at and _GOOD_END in body:
            times.append(token_at - began_at)
        else:
            seen.fail(f"{tenant.name}: status {response.status}, {body[-300:]!r}")

    async def _session(self, tenant: Tenant) -> str:
        async with self._http.post(f"{self._url}/sessions", data=b'{"toolsets": []}', headers=tenant.headers) as response:
            response.raise_for_status()
            return str((await response.json())["id"])

    async def _delete(self, tenant: Tenant, session_id: str) -> None:
        async with self._http.delete(f"{self._url}/sessions/{session_id}", headers=tenant.headers) as response:
            response.raise_for_status()


async def _noted(turn: Awaitable[None], seen: Seen) -> None:
    try:
        await turn
    except (aiohttp.ClientError, TimeoutError) as error:
        seen.fail(repr(error))


def new_http() -> aiohttp.ClientSession:
    """A client without limits but for a stream that has even no heartbeats."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=_READ_TIMEOUT_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
