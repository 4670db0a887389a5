"""MCP servers of tenants as rows: what is read, what is written, and what of it is secret."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, Select, bindparam, delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.ids import TenantId
from app.domain.mcp_servers import McpServer, McpServerSpec
from app.domain.tenants import CredentialState
from app.store.sealed_secrets import Given, Sealed, SealedSecrets
from app.store.tables import mcp_servers, tenants

logger = logging.getLogger(__name__)

_COLUMNS = (
    mcp_servers.c.tenant_id,
    mcp_servers.c.name,
    mcp_servers.c.config,
    mcp_servers.c.credential_env,
    mcp_servers.c.credential_sealed,
    mcp_servers.c.headers_sealed,
)

MCP_SERVERS: Select[Any] = (
    select(*_COLUMNS).where(mcp_servers.c.tenant_id.in_(bindparam("tenant_ids", expanding=True))).order_by(mcp_servers.c.name)
)
"""The servers of these tenants."""

HAS_MCP_SERVERS = exists().where(mcp_servers.c.tenant_id == tenants.c.id).label("has_mcp_servers")


class McpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of a server is no secret: the fields of :class:`McpServerSpec` that are not columns."""

    url: str
    timeout_s: float
    read_only_tools: tuple[str, ...]
    needs_approval: bool
    enabled: bool


class StoredMcpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server as its row has it."""

    name: str
    config: McpConfig
    credential_env: str | None
    credential_sealed: bytes | None
    headers_sealed: bytes | None

    @property
    def sealed(self) -> Sealed:
        """Its credential and headers."""
        return Sealed(address=self.config.url, env=self.credential_env, secret=self.credential_sealed, headers=self.headers_sealed)


def stored_mcp_servers(rows: Iterable[Row[Any]]) -> dict[str, StoredMcpServer]:
    """Of rows of :data:`MCP_SERVERS` of one tenant, by name."""
    return {
        row.name: StoredMcpServer(
            name=row.name,
            config=msgspec.json.decode(row.config, type=McpConfig),
            credential_env=row.credential_env,
            credential_sealed=row.credential_sealed,
            headers_sealed=row.headers_sealed,
        )
        for row in rows
    }


class McpSecrets:
    """MCP servers between configuration, storage and use."""

    def __init__(self, secrets: SealedSecrets) -> None:
        self._secrets = secrets
        self._reported: set[tuple[str, str]] = set()

    def resolve(self, stored: Mapping[str, StoredMcpServer], tenant_name: str) -> tuple[McpServer, ...]:
        """The enabled ones as they are called. One whose credential or headers cannot be had is not usable; the log says so once."""
        return tuple(self._resolved(server, tenant_name) for server in stored.values() if server.config.enabled)

    def spec(self, stored: StoredMcpServer) -> McpServerSpec:
        """The server as its owner may read it back: no secret in it."""
        credential, headers = self._secrets.shown(stored.sealed)
        return McpServerSpec(name=stored.name, credential=credential, headers=headers, **msgspec.structs.asdict(stored.config))

    def state(self, stored: StoredMcpServer) -> CredentialState:
        """Where the server's credential stands."""
        return self._secrets.state(stored.sealed)

    def store(self, specs: Sequence[McpServerSpec], known: Mapping[str, StoredMcpServer]) -> dict[str, StoredMcpServer]:
        """``specs`` as rows, by name, with what they keep of ``known``. Raises InvalidRequestError as :meth:`SealedSecrets.store`."""
        desired = {}
        for index, spec in enumerate(specs):
            given = Given(address=spec.url, secret=spec.credential, headers=spec.headers, field="credential")
            before = known.get(spec.name)
            sealed = self._secrets.store(given, None if before is None else before.sealed, f"/mcp_servers/{index}")
            desired[spec.name] = StoredMcpServer(
                name=spec.name,
                config=McpConfig(**{name: getattr(spec, name) for name in McpConfig.__struct_fields__}),
                credential_env=sealed.env,
                credential_sealed=sealed.secret,
                headers_sealed=sealed.headers,
            )
        return desired

    def _resolved(self, stored: StoredMcpServer, tenant_name: str) -> McpServer:
        credential, state = self._secrets.secret(stored.sealed)
        headers = self._secrets.headers(stored.sealed)
        usable = headers is not None and state not in {CredentialState.MISSING, CredentialState.UNREADABLE}
        if not usable and (tenant_name, stored.name) not in self._reported:
            self._reported.add((tenant_name, stored.name))
            logger.warning(
                "the MCP server %s of tenant %s cannot be called: its credential or a header is not to be had", stored.name, tenant_name
            )
        config = stored.config
        return McpServer(
            name=stored.name,
            url=config.url,
            credential=credential,
            headers=headers or {},
            usable=usable,
            timeout_s=config.timeout_s,
            read_only_tools=config.read_only_tools,
            needs_approval=config.needs_approval,
        )


async def write_mcp_servers(
    connection: AsyncConnection, tenant_id: TenantId, known: Mapping[str, StoredMcpServer], desired: Mapping[str, StoredMcpServer]
) -> None:
    """Write what differs."""
    gone = [name for name in known if name not in desired]
    if gone:
        await connection.execute(delete(mcp_servers).where(mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name.in_(gone)))
    for name, server in desired.items():
        values = {**msgspec.structs.asdict(server), "config": msgspec.json.encode(server.config)}
        if name not in known:
            await connection.execute(insert(mcp_servers), {**values, "tenant_id": tenant_id})
        elif server != known[name]:
            mine = (mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name == name)
            await connection.execute(update(mcp_servers).where(*mine).values(values))
