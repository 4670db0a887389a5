"""Tenants as rows: the statements that read them and what their rows mean."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Row, Select, and_, bindparam, select

from app.domain.ids import KeyId, ProviderId
from app.domain.model import ApiMode
from app.domain.tenants import KeyInfo, Prices, Provider, ProviderSpec, Purpose, Route, RouteSpec, TenantSettings
from app.store.mcp_rows import HAS_MCP_SERVERS
from app.store.tables import api_keys, providers, routes, tenants
from app.store.tool_rows import HAS_TOOLS

Rows = Sequence[Row[Any]]
_Limited = TypeVar("_Limited", "StoredProvider", Provider, ProviderSpec)

# A newer replica may have written chains and modes that this one does not know: it does without them.
_PURPOSES = tuple(purpose.value for purpose in Purpose)
_API_MODES = tuple(mode.value for mode in ApiMode)

LIMIT_COLUMNS = (
    "context_window",
    "output_tokens",
    "max_output_tokens",
    "connect_timeout_s",
    "first_token_timeout_s",
    "stale_timeout_s",
    "max_attempts",
    "patience_s",
    "rpm",
    "tpm",
)
"""Columns of a route that are fields of :class:`Route` and :class:`RouteSpec` of the same name."""

_ROUTE_LABELS = {"rpm": "route_rpm", "tpm": "route_tpm"}
"""Names in a row that has columns of the same name from the provider."""

_PROVIDER_COLUMNS = (
    providers.c.id.label("provider_id"),
    providers.c.name.label("provider_name"),
    providers.c.api_mode,
    providers.c.base_url,
    providers.c.api_key_env,
    providers.c.api_key_sealed,
    providers.c.headers_sealed,
    providers.c.rpm,
    providers.c.tpm,
)
_ROUTE_COLUMNS = (
    routes.c.purpose,
    routes.c.model,
    *(routes.c[name].label(_ROUTE_LABELS.get(name, name)) for name in LIMIT_COLUMNS),
    routes.c.prices,
)
_KNOWN_PROVIDERS = providers.c.api_mode.in_(_API_MODES)
_KNOWN_ROUTES = routes.c.purpose.in_(_PURPOSES)

_RESOLVED = (
    tenants.outerjoin(
        routes.join(providers, and_(providers.c.id == routes.c.provider_id, _KNOWN_PROVIDERS)),
        and_(routes.c.tenant_id == tenants.c.id, _KNOWN_ROUTES),
    ),
    (tenants.c.id, tenants.c.name, tenants.c.revision, tenants.c.settings, HAS_TOOLS, HAS_MCP_SERVERS, *_PROVIDER_COLUMNS, *_ROUTE_COLUMNS),
)

BY_KEY: Select[Any] = (
    select(api_keys.c.id.label("key_id"), *_RESOLVED[1])
    .select_from(_RESOLVED[0].join(api_keys, api_keys.c.tenant_id == tenants.c.id))
    .where(api_keys.c.hash == bindparam("hash"), ~api_keys.c.disabled, ~tenants.c.disabled)
    .order_by(routes.c.purpose, routes.c.position)
)
"""One row per route (one without a route when there is none) of the tenant that owns the key; none when it is unknown or disabled."""

BY_TENANT_ID: Select[Any] = (
    select(*_RESOLVED[1])
    .select_from(_RESOLVED[0])
    .where(tenants.c.id == bindparam("tenant_id"), ~tenants.c.disabled)
    .order_by(routes.c.purpose, routes.c.position)
)

_TENANT_COLUMNS = (tenants.c.id, tenants.c.name, tenants.c.disabled, tenants.c.revision, tenants.c.settings, tenants.c.created_at)
TENANTS: Select[Any] = select(*_TENANT_COLUMNS).order_by(tenants.c.name)
TENANTS_PAGE: Select[Any] = (
    select(*_TENANT_COLUMNS).where(tenants.c.name > bindparam("after")).order_by(tenants.c.name).limit(bindparam("most"))
)
TENANT: Select[Any] = select(*_TENANT_COLUMNS).where(tenants.c.name == bindparam("name"))
PROVIDERS: Select[Any] = (
    select(providers.c.tenant_id, *_PROVIDER_COLUMNS)
    .where(providers.c.tenant_id.in_(bindparam("tenant_ids", expanding=True)), _KNOWN_PROVIDERS)
    .order_by(providers.c.name)
)
ROUTES: Select[Any] = (
    select(routes.c.tenant_id, providers.c.name.label("provider_name"), *_ROUTE_COLUMNS)
    .select_from(routes.join(providers, providers.c.id == routes.c.provider_id))
    .where(routes.c.tenant_id.in_(bindparam("tenant_ids", expanding=True)), _KNOWN_ROUTES, _KNOWN_PROVIDERS)
    .order_by(routes.c.purpose, routes.c.position)
)
KEY_COLUMNS = (api_keys.c.id, api_keys.c.tenant_id, api_keys.c.name, api_keys.c.hint, api_keys.c.disabled, api_keys.c.created_at)
KEYS: Select[Any] = select(*KEY_COLUMNS).where(api_keys.c.tenant_id.in_(bindparam("tenant_ids", expanding=True))).order_by(api_keys.c.id)


class StoredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as its row has it. Headers are sealed JSON."""

    id: ProviderId
    name: str
    api_mode: ApiMode
    base_url: str
    api_key_env: str | None
    api_key_sealed: bytes | None
    headers_sealed: bytes | None
    rpm: int | None = None
    tpm: int | None = None


def stored_provider(row: Row[Any]) -> StoredProvider:
    """Of a row with the columns of a provider."""
    return StoredProvider(
        id=ProviderId(row.provider_id),
        name=row.provider_name,
        api_mode=ApiMode(row.api_mode),
        base_url=row.base_url,
        api_key_env=row.api_key_env,
        api_key_sealed=row.api_key_sealed,
        headers_sealed=row.headers_sealed,
        rpm=row.rpm,
        tpm=row.tpm,
    )


def with_limits(provider: _Limited, source: StoredProvider | ProviderSpec) -> _Limited:
    """``provider`` with ``rpm`` and ``tpm`` of ``source``: :class:`app.store.credentials.Credentials` knows only what is secret."""
    return msgspec.structs.replace(provider, rpm=source.rpm, tpm=source.tpm)


def route_spec(row: Row[Any]) -> RouteSpec:
    """Of a row with the columns of a route and ``provider_name``."""
    return RouteSpec(provider=row.provider_name, model=row.model, prices=_prices(row), **_limits(row))


def route(row: Row[Any], provider: Provider) -> Route:
    """Of a row with the columns of a route."""
    return Route(provider=provider, model=row.model, prices=_prices(row), **_limits(row))


def chains_of(rows: Iterable[Row[Any]]) -> dict[Purpose, tuple[RouteSpec, ...]]:
    """The chains of one tenant, from rows in order of purpose and position."""
    chains: dict[Purpose, tuple[RouteSpec, ...]] = {}
    for row in rows:
        purpose = Purpose(row.purpose)
        chains[purpose] = (*chains.get(purpose, ()), route_spec(row))
    return chains


def key_info(row: Row[Any]) -> KeyInfo:
    """Of a row with :data:`KEY_COLUMNS`."""
    return KeyInfo(id=KeyId(row.id), name=row.name, hint=row.hint, disabled=row.disabled, created_at_ms=unix_ms(row.created_at))


def settings_of(row: Row[Any]) -> TenantSettings:
    """A tenant's settings. What a newer replica wrote and this one does not know is left out."""
    stored: dict[str, Any] = msgspec.json.decode(row.settings)
    return msgspec.convert({name: stored[name] for name in TenantSettings.__struct_fields__ if name in stored}, TenantSettings)


def unix_ms(moment: datetime) -> int:
    """Unix milliseconds."""
    return round(moment.timestamp() * 1_000)


def _limits(row: Row[Any]) -> dict[str, Any]:
    return {name: getattr(row, _ROUTE_LABELS.get(name, name)) for name in LIMIT_COLUMNS}


def _prices(row: Row[Any]) -> Prices | None:
    return None if row.prices is None else msgspec.json.decode(row.prices, type=Prices)
