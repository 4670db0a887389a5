"""Tools of tenants in the database: sealed, kept, resolved, and never of another tenant."""

from collections.abc import Callable, Mapping

import msgspec
import pytest
from sqlalchemy import text

from app.domain.errors import InvalidRequestError
from app.domain.tenant_tools import WebhookMethod, WebhookTool, WebhookToolSpec
from app.domain.tenants import CredentialState, Tenant, TenantChange, TenantSettings, TenantSpec
from app.domain.tool_rules import signing_key
from app.ports import Clock
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from app.tools.webhook import WebhookRules

SECRET = "whsec_c2lnbmluZyBrZXkgb2YgdGhlIHRlc3Rz"
HEADER = "header-secret-DDDD4444"
FIND = WebhookToolSpec(
    name="find",
    description="Finds.",
    url="https://hooks.example/find",
    parameters={"type": "object", "properties": {"q": {"type": "string"}}},
    method=WebhookMethod.PUT,
    secret=SECRET,
    headers={"X-Team": HEADER},
    timeout_s=12.5,
    idempotent=True,
    read_only=True,
    needs_approval=True,
    secret_arguments=("q",),
)
LOOK = WebhookToolSpec(name="look", description="Looks.", url="https://hooks.example/look", secret="env:HOOK_SECRET")
SPEC = TenantSpec(name="acme", tools=(LOOK, FIND))
SHOWN = msgspec.structs.replace(FIND, secret=None, headers={"X-Team": "***"})
Build = Callable[..., TenantRepository]


@pytest.fixture
def build(database: Database, clock: Clock) -> Build:
    """Repositories over one database, each as another process would have it."""

    def repository(secret_key: str | None = "secret key", environ: Mapping[str, str] | None = None) -> TenantRepository:
        variables = {"HOOK_SECRET": "a-secret-of-the-environment"} if environ is None else environ
        return TenantRepository(database, clock, Sealer(secret_key), variables, tool_rules=WebhookRules(lambda: frozenset({"todo"})))

    return repository


@pytest.fixture
def tenants(build: Build) -> TenantRepository:
    return build()


async def resolved(tenants: TenantRepository, name: str = "acme") -> Tenant:
    info = await tenants.info(name)
    assert info is not None
    tenant = await tenants.tenant(info.id)
    assert tenant is not None
    return tenant


async def test_tools_come_back_without_secrets_and_are_called_with_them(tenants: TenantRepository, database: Database) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    assert info.tools == (SHOWN, LOOK)
    assert info.tool_secrets == {"find": CredentialState.SEALED, "look": CredentialState.ENVIRONMENT}
    assert (await resolved(tenants)).webhook_tools == (
        WebhookTool(
            name="find",
            description="Finds.",
            url="https://hooks.example/find",
            parameters=FIND.parameters,
            method=WebhookMethod.PUT,
            key=b"signing key of the tests",
            usable=True,
            headers={"X-Team": HEADER},
            timeout_s=12.5,
            idempotent=True,
            read_only=True,
            polling=False,
            needs_approval=True,
            secret_arguments=("q",),
        ),
        WebhookTool(
            name="look",
            description="Looks.",
            url="https://hooks.example/look",
            parameters={"type": "object", "properties": {}},
            method=WebhookMethod.POST,
            key=b"a-secret-of-the-environment",
            usable=True,
            headers={},
            timeout_s=30.0,
            idempotent=False,
            read_only=False,
            polling=False,
            needs_approval=False,
            secret_arguments=(),
        ),
    )
    stored = str(
        [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in await database.fetch(text("SELECT * FROM tools"))]
    )
    assert SECRET not in stored
    assert HEADER not in stored


async def test_what_was_read_can_be_written_again_and_changes_nothing(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    before = await resolved(tenants)
    assert await tenants.change("acme", TenantChange(tools=info.tools)) == info
    assert await resolved(tenants) == before
    await tenants.change("acme", TenantChange(settings=TenantSettings(max_iterations=3)))
    after = await resolved(tenants)
    assert (after.webhook_tools, after.revision) == (before.webhook_tools, before.revision + 1)


async def test_tools_are_changed_one_by_one(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=False)
    revision = (await resolved(tenants)).revision
    info = await tenants.change_tools("acme", lambda present: tuple(msgspec.structs.replace(tool, timeout_s=1.0) for tool in present))
    assert info is not None
    assert [tool.timeout_s for tool in info.tools] == [1.0, 1.0]
    assert info.tool_secrets["find"] is CredentialState.SEALED
    assert (await resolved(tenants)).revision == revision + 1
    emptied = await tenants.change_tools("acme", lambda present: present[1:])
    assert emptied is not None
    assert [tool.name for tool in emptied.tools] == ["look"]
    assert [tool.name for tool in (await resolved(tenants)).webhook_tools] == ["look"]
    assert await tenants.change_tools("nobody", lambda present: present) is None


async def test_a_secret_stays_with_its_host(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=False)
    moved = msgspec.structs.replace(SHOWN, url="https://evil.example/find")
    for tool, pointer in ((moved, "/tools/0/secret"), (msgspec.structs.replace(moved, secret=SECRET), "/tools/0/headers")):
        with pytest.raises(InvalidRequestError, match="another host") as refused:
            await tenants.change("acme", TenantChange(tools=(tool,)))
        assert refused.value.pointer == pointer
    elsewhere = msgspec.structs.replace(SHOWN, url="https://hooks.example/v2/find")
    assert await tenants.change("acme", TenantChange(tools=(elsewhere,))) is not None
    assert (await resolved(tenants)).webhook_tools[0].key == signing_key(SECRET)


async def test_an_empty_secret_removes_it(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=False)
    await tenants.change("acme", TenantChange(tools=(msgspec.structs.replace(FIND, secret="", headers={}),)))
    (tool,) = (await resolved(tenants)).webhook_tools
    assert (tool.key, tool.usable, tool.headers) == (None, True, {})


async def test_a_tool_whose_secret_is_not_to_be_had_is_not_usable_and_survives_a_change(tenants: TenantRepository, build: Build) -> None:
    await tenants.apply(SPEC, generate_key=False)
    for broken in (build(secret_key="another key", environ={}), build(secret_key=None, environ={"HOOK_SECRET": "short"})):
        assert [(tool.key, tool.usable) for tool in (await resolved(broken)).webhook_tools] == [(None, False), (None, False)]
    broken = build(secret_key="another key", environ={})
    info = await broken.info("acme")
    assert info is not None
    assert info.tool_secrets == {"find": CredentialState.UNREADABLE, "look": CredentialState.MISSING}

    await broken.change_tools("acme", lambda present: (*present, msgspec.structs.replace(LOOK, name="third")))

    assert (await resolved(tenants)).webhook_tools[0] == (await resolved(build())).webhook_tools[0]
    assert (await resolved(tenants)).webhook_tools[0].headers == {"X-Team": HEADER}


async def test_a_literal_secret_needs_a_secret_key(build: Build) -> None:
    with pytest.raises(InvalidRequestError, match="GATEWAY_SECRET_KEY") as refused:
        await build(secret_key=None).apply(SPEC, generate_key=False)
    assert refused.value.pointer == "/tools/1/secret"


@pytest.mark.parametrize("tool", [msgspec.structs.replace(LOOK, name="todo"), msgspec.structs.replace(LOOK, parameters={"type": "string"})])
async def test_what_cannot_be_offered_is_not_stored(tenants: TenantRepository, tool: WebhookToolSpec) -> None:
    with pytest.raises(InvalidRequestError, match=r"todo|cannot be offered"):
        await tenants.apply(TenantSpec(name="acme", tools=(tool,)), generate_key=False)
    assert await tenants.info("acme") is None


async def test_tools_belong_to_one_tenant_and_leave_with_it(tenants: TenantRepository, database: Database) -> None:
    await tenants.apply(SPEC, generate_key=False)
    await tenants.apply(TenantSpec(name="other", tools=(msgspec.structs.replace(LOOK, name="find"),)), generate_key=False)
    assert [tool.url for tool in (await resolved(tenants, "other")).webhook_tools] == ["https://hooks.example/look"]
    await tenants.change("other", TenantChange(tools=()))
    assert (await resolved(tenants, "other")).webhook_tools == ()
    assert len((await resolved(tenants)).webhook_tools) == 2
    await database.fetch(text("DELETE FROM tenants WHERE name = 'acme'"))
    assert await database.fetch(text("SELECT 1 FROM tools")) == []
