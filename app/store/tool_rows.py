"""Tenants' own tools as rows: what is read, what is written, and what of it is secret."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, Select, bindparam, delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain.ids import TenantId
from app.domain.tenant_tools import WebhookMethod, WebhookTool, WebhookToolSpec
from app.domain.tenants import CredentialState
from app.domain.tool_rules import signing_key
from app.store.sealed_secrets import Given, Sealed, SealedSecrets
from app.store.tables import tenants, tools

logger = logging.getLogger(__name__)

_WEBHOOK = "webhook"

TOOLS: Select[Any] = (
    select(tools.c.tenant_id, tools.c.name, tools.c.config, tools.c.secret_env, tools.c.secret_sealed, tools.c.headers_sealed)
    .where(tools.c.tenant_id.in_(bindparam("tenant_ids", expanding=True)), tools.c.kind == _WEBHOOK)
    .order_by(tools.c.name)
)
"""The webhooks of these tenants."""

HAS_TOOLS = exists().where(tools.c.tenant_id == tenants.c.id, tools.c.kind == _WEBHOOK).label("has_tools")


class ToolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of a webhook is no secret: the fields of :class:`WebhookToolSpec` that are not columns."""

    description: str
    url: str
    parameters: dict[str, Any]
    method: WebhookMethod
    timeout_s: float
    idempotent: bool
    read_only: bool
    polling: bool
    needs_approval: bool
    secret_arguments: tuple[str, ...]


class StoredTool(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as its row has it."""

    name: str
    config: ToolConfig
    secret_env: str | None
    secret_sealed: bytes | None
    headers_sealed: bytes | None

    @property
    def sealed(self) -> Sealed:
        """Its secret and headers."""
        return Sealed(address=self.config.url, env=self.secret_env, secret=self.secret_sealed, headers=self.headers_sealed)


def stored_tools(rows: Iterable[Row[Any]]) -> dict[str, StoredTool]:
    """Of rows of :data:`TOOLS` of one tenant, by name."""
    return {row.name: _stored(row) for row in rows}


class ToolSecrets:
    """Webhooks between configuration, storage and use."""

    def __init__(self, secrets: SealedSecrets) -> None:
        self._secrets = secrets
        self._reported: set[tuple[str, str]] = set()

    def resolve(self, stored: StoredTool, tenant_name: str) -> WebhookTool:
        """The tool as it is called. One whose secret or headers cannot be had is not usable; the log says so once."""
        secret, state = self._secrets.secret(stored.sealed)
        headers = self._secrets.headers(stored.sealed)
        key = None if state is CredentialState.NONE else signing_key(secret)
        usable = headers is not None and (state is CredentialState.NONE or key is not None)
        if not usable and (tenant_name, stored.name) not in self._reported:
            self._reported.add((tenant_name, stored.name))
            logger.warning("the tool %s of tenant %s cannot be called: its secret or a header is not to be had", stored.name, tenant_name)
        return WebhookTool(name=stored.name, key=key, usable=usable, headers=headers or {}, **_fields(stored.config))

    def spec(self, stored: StoredTool) -> WebhookToolSpec:
        """The tool as its owner may read it back: no secret in it."""
        secret, headers = self._secrets.shown(stored.sealed)
        return WebhookToolSpec(name=stored.name, secret=secret, headers=headers, **_fields(stored.config))

    def state(self, stored: StoredTool) -> CredentialState:
        """Where the tool's secret stands."""
        return self._secrets.state(stored.sealed)

    def store(self, specs: Sequence[WebhookToolSpec], known: Mapping[str, StoredTool]) -> dict[str, StoredTool]:
        """``specs`` as rows, by name, with what they keep of ``known``. Raises InvalidRequestError as :meth:`SealedSecrets.store`."""
        desired = {}
        for index, spec in enumerate(specs):
            before = known.get(spec.name)
            if before is not None and self.state(before) is CredentialState.UNREADABLE and spec == self.spec(before):
                desired[spec.name] = before  # what cannot be decrypted now has to survive
                continue
            given = Given(address=spec.url, secret=spec.secret, headers=spec.headers, field="secret")
            sealed = self._secrets.store(given, None if before is None else before.sealed, f"/tools/{index}")
            config = ToolConfig(**{name: getattr(spec, name) for name in ToolConfig.__struct_fields__})
            desired[spec.name] = StoredTool(
                name=spec.name, config=config, secret_env=sealed.env, secret_sealed=sealed.secret, headers_sealed=sealed.headers
            )
        return desired


async def write_tools(
    connection: AsyncConnection, tenant_id: TenantId, known: Mapping[str, StoredTool], desired: Mapping[str, StoredTool]
) -> None:
    """Write what differs."""
    gone = [name for name in known if name not in desired]
    if gone:
        await connection.execute(delete(tools).where(tools.c.tenant_id == tenant_id, tools.c.name.in_(gone)))
    for name, tool in desired.items():
        values = {**msgspec.structs.asdict(tool), "config": msgspec.json.encode(tool.config)}
        if name not in known:
            await connection.execute(insert(tools), {**values, "tenant_id": tenant_id, "kind": _WEBHOOK})
        elif tool != known[name]:
            await connection.execute(update(tools).where(tools.c.tenant_id == tenant_id, tools.c.name == name).values(values))


def _stored(row: Row[Any]) -> StoredTool:
    return StoredTool(
        name=row.name,
        config=msgspec.json.decode(row.config, type=ToolConfig),
        secret_env=row.secret_env,
        secret_sealed=row.secret_sealed,
        headers_sealed=row.headers_sealed,
    )


def _fields(config: ToolConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ToolConfig.__struct_fields__}
