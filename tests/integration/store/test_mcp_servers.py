"""MCP servers of tenants in the store: what is kept, what is read back, and what is given to whom."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from app.domain.errors import InvalidRequestError
from app.domain.ids import TenantId
from app.domain.mcp_servers import McpServer, McpServerSpec
from app.domain.tenants import CredentialState, TenantChange, TenantSpec
from app.ports import Clock
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

SECRET = "mcp-token-AAAA1111BBBB2222"
BOX = McpServerSpec(
    name="box",
    url="https://box.example/mcp",
    credential=SECRET,
    headers={"X-Team": "header-secret-CCCC"},
    timeout_s=7.5,
    read_only_tools=("look",),
    needs_approval=True,
)
YARD = McpServerSpec(name="yard", url="https://yard.example/mcp", credential="env:YARD_TOKEN", enabled=False)
SPEC = TenantSpec(name="acme", mcp_servers=(BOX, YARD))
Build = Callable[..., TenantRepository]


@pytest.fixture
def build(database: Database, clock: Clock) -> Build:
    def made(environ: Mapping[str, str] | None = None, secret: str | None = "secret key") -> TenantRepository:
        return TenantRepository(database, clock, Sealer(secret), environ or {})

    return made


async def applied(tenants: TenantRepository, spec: TenantSpec = SPEC) -> TenantId:
    return (await tenants.apply(spec, generate_key=False))[0].id


async def called(tenants: TenantRepository, tenant_id: TenantId) -> tuple[McpServer, ...]:
    tenant = await tenants.tenant(tenant_id)
    assert tenant is not None
    return tenant.mcp_servers


async def test_enabled_servers_are_resolved_for_calls(build: Build) -> None:
    tenants = build({"YARD_TOKEN": "yard-token"})
    tenant_id = await applied(tenants)
    (box,) = await called(tenants, tenant_id)
    assert box == McpServer(
        name="box",
        url="https://box.example/mcp",
        credential=SECRET,
        headers={"X-Team": "header-secret-CCCC"},
        usable=True,
        timeout_s=7.5,
        read_only_tools=("look",),
        needs_approval=True,
    )
    enabled = (BOX, msgspec.structs.replace(YARD, enabled=True))
    await tenants.change("acme", TenantChange(mcp_servers=enabled))
    assert [server.credential for server in await called(tenants, tenant_id)] == [SECRET, "yard-token"]


async def test_what_is_read_back_holds_no_secret_and_can_be_written_again(build: Build) -> None:
    tenants = build()
    tenant_id = await applied(tenants)
    before = await tenants.tenant(tenant_id)
    info = await tenants.info("acme")
    assert info is not None
    assert info.mcp_servers == (msgspec.structs.replace(BOX, credential=None, headers={"X-Team": "***"}), YARD)
    assert info.mcp_credentials == {"box": CredentialState.SEALED, "yard": CredentialState.MISSING}
    again = await tenants.change("acme", TenantChange(mcp_servers=info.mcp_servers))
    assert again == info
    assert await tenants.tenant(tenant_id) == before, "nothing changed, the revision neither"


async def test_other_changes_leave_them_as_they_are(build: Build) -> None:
    tenants = build()
    tenant_id = await applied(tenants)
    await tenants.change("acme", TenantChange(providers=()))
    assert [server.credential for server in await called(tenants, tenant_id)] == [SECRET]


async def test_a_change_raises_the_revision_and_what_is_left_out_is_gone(build: Build) -> None:
    tenants = build()
    tenant_id = await applied(tenants)
    before = await tenants.tenant(tenant_id)
    await tenants.change("acme", TenantChange(mcp_servers=(msgspec.structs.replace(YARD, enabled=True),)))
    after = await tenants.tenant(tenant_id)
    assert before is not None
    assert after is not None
    assert after.revision == before.revision + 1
    assert [(server.name, server.usable) for server in after.mcp_servers] == [("yard", False)]


async def test_a_stored_credential_is_not_sent_to_another_host(build: Build) -> None:
    tenants = build()
    tenant_id = await applied(tenants)
    moved = msgspec.structs.replace(BOX, url="https://thief.example/mcp", credential=None, headers={})
    with pytest.raises(InvalidRequestError) as refused:
        await tenants.change("acme", TenantChange(mcp_servers=(moved,)))
    assert refused.value.pointer == "/mcp_servers/0/credential"
    assert [server.url for server in await called(tenants, tenant_id)] == ["https://box.example/mcp"]


async def test_secrets_are_encrypted_and_refused_without_a_key(build: Build, database: Database) -> None:
    await applied(build())
    (row,) = await database.fetch(text("SELECT string_agg(mcp_servers::text, '') AS stored FROM mcp_servers"), {})
    assert SECRET not in row.stored
    assert SECRET.encode().hex() not in row.stored
    with pytest.raises(InvalidRequestError, match="GATEWAY_SECRET_KEY"):
        await build(secret=None).apply(msgspec.structs.replace(SPEC, name="other"), generate_key=False)


async def test_one_sealed_with_another_key_is_not_usable(build: Build) -> None:
    tenant_id = await applied(build())
    (box,) = await called(build(secret="another key"), tenant_id)
    assert (box.usable, box.credential, box.headers) == (False, "", {})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "illegal name": ({"name": "a.b"}, "/mcp_servers/0/name"),
    "separator in the name": ({"name": "a__b"}, "/mcp_servers/0/name"),
    "long name": ({"name": "x" * 33}, "/mcp_servers/0/name"),
    "scheme": ({"url": "file:///etc/passwd"}, "/mcp_servers/0/url"),
    "credential in the address": ({"url": "https://user:pass@box.example/"}, "/mcp_servers/0/url"),
    "credential with a space": ({"credential": "two words"}, "/mcp_servers/0/credential"),
    "a secret of the gateway": ({"credential": "env:GATEWAY_SECRET_KEY"}, "/mcp_servers/0/credential"),
    "a header of the protocol": ({"headers": {"Mcp-Session-Id": "x"}}, "/mcp_servers/0/headers/Mcp-Session-Id"),
    "two credentials": ({"credential": "token", "headers": {"Authorization": "Bearer x"}}, "/mcp_servers/0/headers/Authorization"),
    "no time": ({"timeout_s": 0.0}, "/mcp_servers/0/timeout_s"),
    "empty tool name": ({"read_only_tools": ("",)}, "/mcp_servers/0/read_only_tools"),
}


@pytest.mark.parametrize(("fields", "pointer"), BAD.values(), ids=BAD)
async def test_what_cannot_work_is_refused_with_its_place(build: Build, fields: dict[str, Any], pointer: str) -> None:
    spec = McpServerSpec(**{"name": "box", "url": "https://box.example/mcp", **fields})
    with pytest.raises(InvalidRequestError) as refused:
        await build().apply(msgspec.structs.replace(SPEC, mcp_servers=(spec,)), generate_key=False)
    assert refused.value.pointer == pointer


async def test_a_name_is_given_once(build: Build) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await build().apply(msgspec.structs.replace(SPEC, mcp_servers=(BOX, BOX)), generate_key=False)
    assert refused.value.pointer == "/mcp_servers/1/name"
