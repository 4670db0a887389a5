"""What the admin API takes and returns beside the configuration itself (:mod:`app.domain.tenants`), and the JSON schemas of both."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from app.api.route_health import Place, RouteHealth
from app.domain.ids import KeyId, TenantId
from app.domain.mcp_servers import McpServerSpec
from app.domain.model import ApiMode
from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import (
    CredentialState,
    KeyInfo,
    ProviderSpec,
    Purpose,
    RouteSpec,
    TenantInfo,
    TenantSettings,
)
from app.domain.tools import MAX_TOOL_POOL


class KeyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An API key. ``api_key`` is the key itself, shown when it is made and never again. Times are RFC 3339 in UTC."""

    id: KeyId
    name: str
    hint: str
    disabled: bool
    created_at: str
    api_key: str | None = None


class TenantView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant. ``api_key`` is a key that was generated just now, shown this once. ``credentials`` is by provider name, ``tool_secrets``
    by tool name, ``mcp_credentials`` by server name."""

    id: TenantId
    name: str
    disabled: bool
    created_at: str
    providers: tuple[ProviderSpec, ...]
    chains: dict[Purpose, tuple[RouteSpec, ...]]
    settings: TenantSettings
    tools: tuple[WebhookToolSpec, ...]
    keys: tuple[KeyView, ...]
    credentials: dict[str, CredentialState]
    tool_secrets: dict[str, CredentialState]
    mcp_servers: tuple[McpServerSpec, ...]
    mcp_credentials: dict[str, CredentialState]
    api_key: str | None = None


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make; ``name`` is the operator's note of what it is for."""

    name: str = ""


class ProvidersBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All providers of a tenant."""

    providers: tuple[ProviderSpec, ...]


class ChainsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All chains of a tenant."""

    chains: dict[Purpose, tuple[RouteSpec, ...]]


class ToolsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tools of a tenant."""

    tools: tuple[WebhookToolSpec, ...]


class McpServersBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All MCP servers of a tenant."""

    mcp_servers: tuple[McpServerSpec, ...]


class RoutePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider stands in a chain; ``position`` counts from 0, the route asked first. ``health`` is null when not asked for."""

    purpose: Purpose
    position: int
    model: str
    health: RouteHealth | None = None


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """A provider of a tenant with its routes. ``credential`` is as the replica that answers finds it."""

    tenant: str
    name: str
    api_mode: ApiMode
    base_url: str
    credential: CredentialState
    routes: tuple[RoutePlace, ...]


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tenants, by name."""

    data: tuple[TenantView, ...]
    has_more: bool = False
    next_cursor: str | None = None


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a tenant's keys, oldest first."""

    data: tuple[KeyView, ...]
    has_more: bool = False
    next_cursor: str | None = None


class ProviderList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of providers, by tenant and name."""

    data: tuple[ProviderView, ...]
    has_more: bool = False
    next_cursor: str | None = None


class DisabledKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens nothing any more."""

    id: KeyId
    disabled: bool = True


def key_view(info: KeyInfo, api_key: str | None = None) -> KeyView:
    """``info`` on the wire."""
    return KeyView(
        id=info.id, name=info.name, hint=info.hint, disabled=info.disabled, created_at=_rfc3339(info.created_at_ms), api_key=api_key
    )


def tenant_view(info: TenantInfo, api_key: str | None = None) -> TenantView:
    """``info`` on the wire."""
    return TenantView(
        id=info.id,
        name=info.name,
        disabled=info.disabled,
        created_at=_rfc3339(info.created_at_ms),
        providers=info.providers,
        chains=info.chains,
        settings=info.settings,
        tools=info.tools,
        keys=tuple(key_view(key) for key in info.keys),
        credentials=info.credentials,
        tool_secrets=info.tool_secrets,
        mcp_servers=info.mcp_servers,
        mcp_credentials=info.mcp_credentials,
        api_key=api_key,
    )


class ToolPoolBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tool calls a process may run at once."""

    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOOL_POOL)]


class ToolPoolView(msgspec.Struct, frozen=True, kw_only=True):
    """Tool calls of the process that answers: how many may run at once, and how many run, or wait for a place, now."""

    size: int
    running: int
    waiting: int


def provider_views(info: TenantInfo, health: Mapping[Place, RouteHealth] | None = None) -> list[ProviderView]:
    """A tenant's providers with the routes that use them, and how these stand."""
    known = health or {}
    return [
        ProviderView(
            tenant=info.name,
            name=provider.name,
            api_mode=provider.api_mode,
            base_url=provider.base_url,
            credential=info.credentials[provider.name],
            routes=tuple(
                RoutePlace(purpose=purpose, position=position, model=route.model, health=known.get((info.id, purpose, position)))
                for purpose, chain in info.chains.items()
                for position, route in enumerate(chain)
                if route.provider == provider.name
            ),
        )
        for provider in info.providers
    ]


def request_body(shape: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route that takes ``shape`` as JSON."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema_of(shape)}}}}


def answer(status: int, shape: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that answers ``status`` with ``shape`` as JSON."""
    return {status: {"description": _sentence(shape), "content": {"application/json": {"schema": schema_of(shape)}}}}


def schema_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of ``shape`` in one piece: references would have to be entered in the document's components."""
    schemas, components = msgspec.json.schema_components((shape,), ref_template="{name}")
    whole: dict[str, Any] = _inlined(schemas[0], components)
    return whole


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    match schema:
        case {"$ref": str(name)}:
            return _inlined(components[name], components)
        case dict():
            return {key: _inlined(value, components) for key, value in schema.items()}
        case list() | tuple():
            return [_inlined(item, components) for item in schema]
        case _:
            return schema


def _sentence(shape: type[msgspec.Struct]) -> str:
    return (shape.__doc__ or "").partition("\n")[0]


def _rfc3339(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
