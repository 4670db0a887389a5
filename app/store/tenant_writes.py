"""Writes a tenant's configuration: what differs from the stored one, and nothing else."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, exists, insert, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import ConflictError, InvalidRequestError
from app.domain.ids import ENTROPY_BYTES, KeyId, ProviderId, TenantId, make_id
from app.domain.spec_rules import env_name
from app.domain.tenant_rules import KEY_RULE, check_spec, is_strong_key
from app.domain.tenant_tools import EditTools
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantChange, TenantSettings, TenantSpec
from app.ports import Clock, ToolRules
from app.store.credentials import Credentials
from app.store.mcp_rows import MCP_SERVERS, McpSecrets, StoredMcpServer, stored_mcp_servers, write_mcp_servers
from app.store.tables import api_keys, providers, routes, tenants
from app.store.tenant_rows import (
    LIMIT_COLUMNS,
    PROVIDERS,
    ROUTES,
    TENANT,
    StoredProvider,
    chains_of,
    settings_of,
    stored_provider,
    with_limits,
)
from app.store.tool_rows import TOOLS, StoredTool, ToolSecrets, stored_tools, write_tools

KEY_PREFIX = "agw_"
_KEY_BYTES = 32
_HINT_CHARACTERS = 4

_CREATE = postgresql.insert(tenants).on_conflict_do_nothing(index_elements=["name"]).returning(tenants.c.id)
# Weaker than FOR UPDATE: new sessions and keys of the tenant, which only refer to its row, need not wait.
_LOCK = TENANT.with_for_update(key_share=True)
_ADD_KEY = postgresql.insert(api_keys).on_conflict_do_nothing(index_elements=["hash"])
_OWNER = select(api_keys.c.tenant_id).where(api_keys.c.hash == bindparam("hash"))
_HAS_KEY = select(exists().where(api_keys.c.tenant_id == bindparam("tenant_id")))


class _Current(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as it is stored, its row locked."""

    id: TenantId
    settings: TenantSettings
    providers: dict[str, StoredProvider]
    chains: dict[Purpose, tuple[RouteSpec, ...]]
    tools: dict[str, StoredTool]
    mcp_servers: dict[str, StoredMcpServer]


def hash_key(key: str) -> bytes:
    """What is stored of an API key."""
    return hashlib.sha256(key.encode()).digest()


class TenantWriter:
    """Writes inside a transaction of the caller. The tenant's row is locked first, so two writes of one tenant come one after the other."""

    def __init__(
        self, clock: Clock, credentials: Credentials, tools: ToolSecrets, mcp: McpSecrets, *, tool_rules: ToolRules | None
    ) -> None:
        self._clock = clock
        self._credentials = credentials
        self._tools = tools
        self._mcp = mcp
        self._tool_rules = tool_rules

    async def create(self, connection: AsyncConnection, name: str) -> bool:
        """Make an empty tenant; false when there is one of this name, also one that another replica is just making."""
        row = {"id": self._new_id("ten"), "name": name, "settings": msgspec.json.encode(TenantSettings())}
        return (await connection.execute(_CREATE, row)).first() is not None

    async def change(
        self, connection: AsyncConnection, name: str, change: TenantChange, *, edit_tools: EditTools | None = None
    ) -> TenantId | None:
        """Replace the given parts of a tenant; ``None`` when unknown. The revision rises if anything changed.

        ``edit_tools`` makes the tools out of the present ones.
        """
        current = await _load(connection, name)
        if current is None:
            return None
        if edit_tools is not None:
            present = tuple(self._tools.spec(tool) for tool in current.tools.values())
            change = msgspec.structs.replace(change, tools=edit_tools(present))
        spec = self._merged(name, current, change)
        check_spec(spec)
        if change.tools is not None and self._tool_rules is not None:
            self._tool_rules.check(change.tools)
        # What is kept is not read and stored again: what cannot be decrypted now has to survive.
        desired = current.providers if change.providers is None else self._desired(change.providers, current)
        tools = current.tools if change.tools is None else self._tools.store(change.tools, current.tools)
        servers = current.mcp_servers if change.mcp_servers is None else self._mcp.store(change.mcp_servers, current.mcp_servers)
        chains = {purpose: chain for purpose, chain in spec.chains.items() if chain}
        wanted = (desired, chains, spec.settings, tools, servers)
        if wanted == (current.providers, current.chains, current.settings, current.tools, current.mcp_servers):
            return current.id
        if chains != current.chains:
            await connection.execute(delete(routes).where(routes.c.tenant_id == current.id))
        await _write_providers(connection, current, desired)
        if chains != current.chains:
            await _insert_routes(connection, current.id, chains, desired)
        await write_tools(connection, current.id, current.tools, tools)
        await write_mcp_servers(connection, current.id, current.mcp_servers, servers)
        values = {"settings": msgspec.json.encode(spec.settings), "revision": tenants.c.revision + 1}
        await connection.execute(update(tenants).where(tenants.c.id == current.id).values(values))
        return current.id

    async def add_keys(self, connection: AsyncConnection, tenant_id: TenantId, keys: Sequence[str]) -> None:
        """Store keys as configured (``env:NAME`` or literal); known ones stay as they are, disabled ones disabled.

        Raises InvalidRequestError for an unset variable, ConflictError (``key_taken``) for a key of another tenant.
        """
        for index, configured in enumerate(keys):
            key = self._literal(configured, f"/api_keys/{index}")
            row = self.key_row(tenant_id, configured if env_name(configured) else "configured", key)
            await connection.execute(_ADD_KEY, row)
            if (await connection.execute(_OWNER, {"hash": row["hash"]})).scalar_one() != tenant_id:
                raise ConflictError("key_taken", f"The API key at /api_keys/{index} belongs to another tenant.")

    async def generate_key(self, connection: AsyncConnection, tenant_id: TenantId, name: str) -> str | None:
        """Make a key for a tenant that has none, not even a disabled one; ``None`` when it has."""
        if (await connection.execute(_HAS_KEY, {"tenant_id": tenant_id})).scalar_one():
            return None
        key = new_key()
        await connection.execute(insert(api_keys), self.key_row(tenant_id, name, key))
        return key

    def key_row(self, tenant_id: TenantId, name: str, key: str) -> dict[str, Any]:
        """A row of ``api_keys``."""
        return {
            "id": KeyId(self._new_id("key")),
            "tenant_id": tenant_id,
            "name": name,
            "hash": hash_key(key),
            "hint": key[-_HINT_CHARACTERS:],
        }

    def _merged(self, name: str, current: _Current, change: TenantChange) -> TenantSpec:
        kept = tuple(with_limits(self._credentials.spec(stored), stored) for stored in current.providers.values())
        return TenantSpec(
            name=name,
            providers=kept if change.providers is None else change.providers,
            chains=current.chains if change.chains is None else change.chains,
            settings=current.settings if change.settings is None else change.settings,
            tools=() if change.tools is None else change.tools,
            mcp_servers=() if change.mcp_servers is None else change.mcp_servers,
        )

    def _desired(self, specs: Sequence[ProviderSpec], current: _Current) -> dict[str, StoredProvider]:
        desired = {}
        for index, spec in enumerate(specs):
            new_id = ProviderId(self._new_id("prov"))
            stored = self._credentials.store(spec, current.providers.get(spec.name), new_id, f"/providers/{index}")
            desired[spec.name] = with_limits(stored, spec)
        return desired

    def _literal(self, configured: str, pointer: str) -> str:
        name = env_name(configured)
        if name is None:
            return configured
        key = self._credentials.variable(name)
        if not key:
            raise InvalidRequestError(f"The environment variable {name} is not set.", pointer=pointer)
        if not is_strong_key(key):
            raise InvalidRequestError(f"The environment variable {name} must hold {KEY_RULE}.", pointer=pointer)
        return key

    def _new_id(self, prefix: str) -> str:
        return make_id(prefix, self._clock.unix_ms(), secrets.token_bytes(ENTROPY_BYTES))


def new_key() -> str:
    """A random API key."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


async def _load(connection: AsyncConnection, name: str) -> _Current | None:
    row = (await connection.execute(_LOCK, {"name": name})).first()
    if row is None:
        return None
    ids = {"tenant_ids": [row.id]}
    stored = [stored_provider(found) for found in await connection.execute(PROVIDERS, ids)]
    return _Current(
        id=TenantId(row.id),
        settings=settings_of(row),
        providers={provider.name: provider for provider in stored},
        chains=chains_of(await connection.execute(ROUTES, ids)),
        tools=stored_tools(await connection.execute(TOOLS, ids)),
        mcp_servers=stored_mcp_servers(await connection.execute(MCP_SERVERS, ids)),
    )


async def _write_providers(connection: AsyncConnection, current: _Current, desired: Mapping[str, StoredProvider]) -> None:
    gone = [provider.id for name, provider in current.providers.items() if name not in desired]
    if gone:
        await connection.execute(delete(providers).where(providers.c.id.in_(gone)))
    for name, provider in desired.items():
        values = msgspec.structs.asdict(provider)
        if name not in current.providers:
            await connection.execute(insert(providers), {**values, "tenant_id": current.id})
        elif provider != current.providers[name]:
            await connection.execute(update(providers).where(providers.c.id == provider.id).values(values))


async def _insert_routes(
    connection: AsyncConnection,
    tenant_id: TenantId,
    chains: Mapping[Purpose, Sequence[RouteSpec]],
    desired: Mapping[str, StoredProvider],
) -> None:
    rows = [
        {
            "tenant_id": tenant_id,
            "purpose": purpose.value,
            "position": position,
            "provider_id": desired[route.provider].id,
            "model": route.model,
            "prices": None if route.prices is None else msgspec.json.encode(route.prices),
            **{name: getattr(route, name) for name in LIMIT_COLUMNS},
        }
        for purpose, chain in chains.items()
        for position, route in enumerate(chain)
    ]
    if rows:
        await connection.execute(insert(routes), rows)
