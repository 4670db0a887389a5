"""Tenants, their keys, providers and chains: the repository behind :class:`app.ports.TenantStore`."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, Select, bindparam, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.errors import ConflictError
from app.domain.ids import KeyId, TenantId
from app.domain.sessions import Page
from app.domain.tenant_rules import check_spec, is_tenant_name
from app.domain.tenant_tools import EditTools
from app.domain.tenants import KeyInfo, Principal, Provider, Purpose, Route, Tenant, TenantChange, TenantInfo, TenantSpec
from app.ports import Clock, TenantStore, ToolRules
from app.store.credentials import Credentials
from app.store.engine import Database
from app.store.mcp_rows import MCP_SERVERS, McpSecrets, stored_mcp_servers
from app.store.secrets import Sealer
from app.store.tables import api_keys, tenants
from app.store.tenant_rows import (
    BY_KEY,
    BY_TENANT_ID,
    KEY_COLUMNS,
    KEYS,
    PROVIDERS,
    ROUTES,
    TENANT,
    TENANTS,
    TENANTS_PAGE,
    Rows,
    chains_of,
    key_info,
    route,
    settings_of,
    stored_provider,
    unix_ms,
    with_limits,
)
from app.store.tenant_writes import TenantWriter, new_key
from app.store.tool_rows import TOOLS, ToolSecrets, stored_tools

_MAX_KEY_NAME = 128
_KEY_ID = re.compile(r"key_[0-9a-z]{26}")

_DISABLE_TENANT = (
    update(tenants)
    .where(tenants.c.name == bindparam("tenant_name"), tenants.c.disabled != bindparam("wanted"))
    .values(disabled=bindparam("wanted"), revision=tenants.c.revision + 1)
)
_TENANT_ID = select(tenants.c.id).where(tenants.c.name == bindparam("name"))
_DISABLE_KEY = update(api_keys).where(api_keys.c.id == bindparam("key_id")).values(disabled=True).returning(api_keys.c.id)
_RETIRE_KEY = (
    update(api_keys)
    .where(api_keys.c.id == bindparam("key_id"), ~api_keys.c.disabled)
    .values(disabled=True)
    .returning(api_keys.c.tenant_id, api_keys.c.name)
)
_KEY_EXISTS = select(literal(1)).where(api_keys.c.id == bindparam("key_id"))


class TenantRepository:
    """Tenants in Postgres. ``environ`` is what ``env:NAME`` refers to, looked up whenever a tenant is loaded.

    ``tool_rules`` judge the tools that are written; without them only names and numbers are.
    """

    def __init__(
        self, database: Database, clock: Clock, sealer: Sealer, environ: Mapping[str, str], *, tool_rules: ToolRules | None = None
    ) -> None:
        self._database = database
        self._credentials = Credentials(sealer, environ)
        self._tools = ToolSecrets(self._credentials.secrets)
        self._mcp = McpSecrets(self._credentials.secrets)
        self._writer = TenantWriter(clock, self._credentials, self._tools, self._mcp, tool_rules=tool_rules)

    async def authenticate(self, key_hash: bytes) -> Principal | None:
        """Who owns the key with this SHA-256; one statement, one more each where the tenant has tools or MCP servers."""
        rows = await self._database.fetch(BY_KEY, {"hash": key_hash})
        return Principal(tenant=await self._resolve(rows), key_id=KeyId(rows[0].key_id)) if rows else None

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        """A tenant, resolved; ``None`` when unknown or disabled; as many statements as in :meth:`authenticate`."""
        rows = await self._database.fetch(BY_TENANT_ID, {"tenant_id": tenant_id})
        return await self._resolve(rows) if rows else None

    async def apply(self, spec: TenantSpec, *, generate_key: bool, create_only: bool = False) -> tuple[TenantInfo, str | None]:
        """Create the tenant or make it match ``spec``, in one transaction; see the port."""
        check_spec(spec)
        key: str | None = None
        async with self._database.transaction() as connection:
            created = await self._writer.create(connection, spec.name)
            if create_only and not created:
                raise ConflictError("tenant_exists", f"There is a tenant named {spec.name}.")
            change = TenantChange(
                providers=spec.providers,
                chains=spec.chains,
                settings=spec.settings,
                tools=spec.tools,
                mcp_servers=spec.mcp_servers,
            )
            tenant_id = await self._writer.change(connection, spec.name, change)
            if tenant_id is None:
                raise ConflictError("tenant_deleted", f"The tenant {spec.name} was deleted just now.")
            await self._writer.add_keys(connection, tenant_id, spec.api_keys)
            if generate_key:
                key = await self._writer.generate_key(connection, tenant_id, "generated")
            infos = await self._infos(connection, TENANT, name=spec.name)
        return infos[0], key

    async def change(self, name: str, change: TenantChange) -> TenantInfo | None:
        """Replace parts of a tenant, in one transaction; ``None`` when unknown."""
        if not is_tenant_name(name):
            return None
        async with self._database.transaction() as connection:
            if await self._writer.change(connection, name, change) is None:
                return None
            infos = await self._infos(connection, TENANT, name=name)
        return infos[0]

    async def change_tools(self, name: str, edit: EditTools) -> TenantInfo | None:
        """Replace a tenant's tools by what ``edit`` makes of them, its row locked; see the port."""
        if not is_tenant_name(name):
            return None
        async with self._database.transaction() as connection:
            if await self._writer.change(connection, name, TenantChange(), edit_tools=edit) is None:
                return None
            infos = await self._infos(connection, TENANT, name=name)
        return infos[0]

    async def infos(self) -> list[TenantInfo]:
        """All tenants, by name."""
        async with self._database.transaction() as connection:
            return await self._infos(connection, TENANTS)

    async def page(self, limit: int, after: str | None) -> Page[TenantInfo]:
        """Tenants by name, behind ``after``."""
        async with self._database.transaction() as connection:
            found = await self._infos(connection, TENANTS_PAGE, after=after or "", most=limit + 1)
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].name if len(found) > limit else None)

    async def info(self, name: str) -> TenantInfo | None:
        """One tenant."""
        if not is_tenant_name(name):
            return None
        async with self._database.transaction() as connection:
            infos = await self._infos(connection, TENANT, name=name)
        return infos[0] if infos else None

    async def set_disabled(self, name: str, disabled: bool) -> bool:
        """Disable or enable a tenant; false when unknown."""
        if not is_tenant_name(name):
            return False
        await self._database.fetch(_DISABLE_TENANT, {"tenant_name": name, "wanted": disabled})
        return bool(await self._database.fetch(_TENANT_ID, {"name": name}))

    async def add_key(self, tenant_name: str, name: str) -> tuple[KeyInfo, str] | None:
        """Make a key; ``None`` when the tenant is unknown. Names are cut to 128 printable characters."""
        if not is_tenant_name(tenant_name):
            return None
        async with self._database.transaction() as connection:
            tenant_id = (await connection.execute(_TENANT_ID, {"name": tenant_name})).scalar_one_or_none()
            return None if tenant_id is None else await self._insert_key(connection, tenant_id, name)

    async def rotate_key(self, key_id: KeyId) -> tuple[KeyInfo, str] | None:
        """Make a key in place of another, which is disabled, in one transaction; see the port."""
        if _KEY_ID.fullmatch(key_id) is None:
            return None
        async with self._database.transaction() as connection:
            retired = (await connection.execute(_RETIRE_KEY, {"key_id": key_id})).first()
            if retired is not None:
                return await self._insert_key(connection, retired.tenant_id, retired.name)
            if (await connection.execute(_KEY_EXISTS, {"key_id": key_id})).first() is None:
                return None
        raise ConflictError("key_disabled", "The key is disabled already: make a new one for its tenant.")

    async def disable_key(self, key_id: KeyId) -> bool:
        """Disable a key; false when unknown."""
        if _KEY_ID.fullmatch(key_id) is None:
            return False
        return bool(await self._database.fetch(_DISABLE_KEY, {"key_id": key_id}))

    async def _insert_key(self, connection: AsyncConnection, tenant_id: TenantId, name: str) -> tuple[KeyInfo, str]:
        key = new_key()
        printable = "".join(character for character in name if character.isprintable())[:_MAX_KEY_NAME]
        row = self._writer.key_row(tenant_id, printable, key)
        inserted = (await connection.execute(insert(api_keys).returning(*KEY_COLUMNS), row)).one()
        return key_info(inserted), key

    async def _infos(self, connection: AsyncConnection, statement: Select[Any], **params: str | int) -> list[TenantInfo]:
        found = (await connection.execute(statement, params)).all()
        ids = {"tenant_ids": [row.id for row in found]}
        of_providers = _by_tenant((await connection.execute(PROVIDERS, ids)).all())
        of_routes = _by_tenant((await connection.execute(ROUTES, ids)).all())
        of_keys = _by_tenant((await connection.execute(KEYS, ids)).all())
        of_tools = _by_tenant((await connection.execute(TOOLS, ids)).all())
        of_servers = _by_tenant((await connection.execute(MCP_SERVERS, ids)).all())
        return [
            self._info(
                row,
                of_providers[row.id],
                of_routes[row.id],
                of_keys=of_keys[row.id],
                of_tools=of_tools[row.id],
                of_servers=of_servers[row.id],
            )
            for row in found
        ]

    def _info(self, row: Row[Any], of_providers: Rows, of_routes: Rows, *, of_keys: Rows, of_tools: Rows, of_servers: Rows) -> TenantInfo:
        stored = [stored_provider(provider) for provider in of_providers]
        tools = stored_tools(of_tools)
        servers = stored_mcp_servers(of_servers)
        return TenantInfo(
            id=TenantId(row.id),
            name=row.name,
            disabled=row.disabled,
            created_at_ms=unix_ms(row.created_at),
            providers=tuple(with_limits(self._credentials.spec(provider), provider) for provider in stored),
            chains=chains_of(of_routes),
            settings=settings_of(row),
            keys=tuple(key_info(key) for key in of_keys),
            credentials={provider.name: self._credentials.state(provider) for provider in stored},
            tools=tuple(self._tools.spec(tool) for tool in tools.values()),
            tool_secrets={name: self._tools.state(tool) for name, tool in tools.items()},
            mcp_servers=tuple(self._mcp.spec(server) for server in servers.values()),
            mcp_credentials={name: self._mcp.state(server) for name, server in servers.items()},
        )

    async def _resolve(self, rows: Rows) -> Tenant:
        """A tenant from its rows, one per route; a single one without a route when it has none."""
        first = rows[0]
        called: dict[str, Provider] = {}
        chains: dict[Purpose, tuple[Route, ...]] = {}
        for row in rows:
            if row.provider_id is None:
                continue
            if row.provider_id not in called:
                stored = stored_provider(row)
                called[row.provider_id] = with_limits(self._credentials.resolve(stored, first.name), stored)
            purpose = Purpose(row.purpose)
            chains[purpose] = (*chains.get(purpose, ()), route(row, called[row.provider_id]))
        # Read behind the revision: what is cached under a revision is never older than it.
        tools = stored_tools(await self._database.fetch(TOOLS, {"tenant_ids": [first.id]})) if first.has_tools else {}
        servers = stored_mcp_servers(await self._database.fetch(MCP_SERVERS, {"tenant_ids": [first.id]})) if first.has_mcp_servers else {}
        return Tenant(
            id=TenantId(first.id),
            name=first.name,
            revision=first.revision,
            settings=settings_of(first),
            chains=chains,
            webhook_tools=tuple(self._tools.resolve(tool, first.name) for tool in tools.values()),
            mcp_servers=self._mcp.resolve(servers, first.name),
        )


def _by_tenant(rows: Rows) -> defaultdict[str, list[Row[Any]]]:
    grouped: defaultdict[str, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        grouped[row.tenant_id].append(row)
    return grouped


if TYPE_CHECKING:

    def _conforms(repository: TenantRepository) -> TenantStore:
        return repository
