import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping

import msgspec
import pytest
from sqlalchemy import text

from app.domain.errors import ConflictError, InvalidRequestError
from app.domain.ids import KeyId, TenantId
from app.domain.tenants import (
    CredentialState,
    Prices,
    ProviderSpec,
    Purpose,
    RouteSpec,
    Tenant,
    TenantChange,
    TenantSettings,
    TenantSpec,
)
from app.ports import Clock
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

SECRET = "sk-test-AAAA1111BBBB2222CCCC3333"
HEADER = "header-secret-DDDD4444"
KEY = "agw_literal-key-EEEE5555"
SPEC = TenantSpec(
    name="acme",
    api_keys=(KEY,),
    providers=(
        ProviderSpec(name="primary", base_url="http://127.0.0.1:9001/v1", api_key=SECRET, headers={"X-Team": HEADER}),
        ProviderSpec(name="spare", base_url="http://127.0.0.1:9002/v1", api_key="env:SPARE_KEY"),
    ),
    chains={
        Purpose.CHAT: (
            RouteSpec(provider="primary", model="m-large", context_window=64_000, prices=Prices(input=1.0, cached_input=0.5, output=2.0)),
            RouteSpec(provider="spare", model="m-small", stale_timeout_s=12.5),
        )
    },
    settings=TenantSettings(max_iterations=7),
)
Build = Callable[..., TenantRepository]


@pytest.fixture
def build(database: Database, clock: Clock) -> Build:
    """Repositories over one database, each as another process would have it."""

    def repository(secret_key: str | None = "secret key", environ: Mapping[str, str] | None = None) -> TenantRepository:
        return TenantRepository(database, clock, Sealer(secret_key), {"SPARE_KEY": "sk-spare"} if environ is None else environ)

    return repository


@pytest.fixture
def tenants(build: Build) -> TenantRepository:
    return build()


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def tenant_of(repository: TenantRepository, key: str) -> Tenant:
    principal = await repository.authenticate(hash_of(key))
    assert principal is not None
    return principal.tenant


async def dump(database: Database) -> str:
    """Everything that is stored of tenants, as text."""
    parts = []
    for table in ("tenants", "api_keys", "providers", "routes"):
        parts += [
            str([bytes(v) if isinstance(v, memoryview) else v for v in row]) for row in await database.fetch(text(f"SELECT * FROM {table}"))
        ]
    return "\n".join(parts)


async def test_a_configured_key_finds_its_tenant_with_its_chain_resolved(tenants: TenantRepository) -> None:
    info, generated = await tenants.apply(SPEC, generate_key=True)
    tenant = await tenant_of(tenants, KEY)

    assert generated is None
    assert (tenant.id, tenant.name, tenant.revision, tenant.settings) == (info.id, "acme", 2, SPEC.settings)
    first, second = tenant.chains[Purpose.CHAT]
    assert (first.model, first.context_window, first.prices) == ("m-large", 64_000, Prices(input=1.0, cached_input=0.5, output=2.0))
    assert (first.provider.api_key, first.provider.headers) == (SECRET, {"X-Team": HEADER})
    assert (second.model, second.stale_timeout_s, second.provider.api_key) == ("m-small", 12.5, "sk-spare")
    assert await tenants.tenant(info.id) == tenant


async def test_reading_back_shows_no_secret_and_nothing_is_stored_in_the_clear(tenants: TenantRepository, database: Database) -> None:
    info, key = await tenants.apply(msgspec.structs.replace(SPEC, api_keys=()), generate_key=True)
    assert key is not None
    assert key.startswith("agw_")
    assert len(key) >= 36

    shown = msgspec.json.encode(info).decode() + repr(info) + msgspec.json.encode(await tenants.infos()).decode()
    stored = await dump(database)
    for secret in (SECRET, SECRET[:16], HEADER, key, key[4:20]):
        assert secret not in shown
        assert secret not in stored
    primary, spare = info.providers
    assert (primary.api_key, primary.headers) == (None, {"X-Team": "***"})
    assert spare.api_key == "env:SPARE_KEY"
    assert info.keys[0].hint == key[-4:]
    assert info.credentials == {"primary": CredentialState.SEALED, "spare": CredentialState.ENVIRONMENT}
    assert (await tenant_of(tenants, key)).id == info.id


async def test_applying_the_same_again_changes_nothing(tenants: TenantRepository) -> None:
    first, key = await tenants.apply(msgspec.structs.replace(SPEC, api_keys=()), generate_key=True)
    assert key is not None
    revision = (await tenant_of(tenants, key)).revision

    second, second_key = await tenants.apply(msgspec.structs.replace(SPEC, api_keys=()), generate_key=True)

    assert second_key is None
    assert second == first
    assert (await tenant_of(tenants, key)).revision == revision


@pytest.mark.parametrize(
    "change",
    [
        TenantChange(settings=TenantSettings(max_iterations=8)),
        TenantChange(chains={Purpose.CHAT: SPEC.chains[Purpose.CHAT][:1]}),
        TenantChange(chains={Purpose.CHAT: SPEC.chains[Purpose.CHAT][::-1]}),
        TenantChange(providers=(msgspec.structs.replace(SPEC.providers[0], api_key="another"), SPEC.providers[1])),
        TenantChange(providers=(msgspec.structs.replace(SPEC.providers[0], headers={}), SPEC.providers[1])),
    ],
    ids=["settings", "shorter chain", "other order", "other credential", "no headers"],
)
async def test_a_real_change_raises_the_revision_by_one(tenants: TenantRepository, change: TenantChange) -> None:
    await tenants.apply(SPEC, generate_key=False)
    before = await tenant_of(tenants, KEY)

    changed = await tenants.change("acme", change)

    after = await tenant_of(tenants, KEY)
    assert changed is not None
    assert after.revision == before.revision + 1
    assert (after.settings, after.chains) != (before.settings, before.chains)


async def test_what_was_read_can_be_written_again_and_keeps_the_secrets(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    before = await tenant_of(tenants, KEY)

    assert await tenants.change("acme", TenantChange(providers=info.providers, chains=info.chains, settings=info.settings)) == info

    assert await tenant_of(tenants, KEY) == before


async def test_a_kept_credential_is_not_sent_to_another_host(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    moved = msgspec.structs.replace(info.providers[0], base_url="http://127.0.0.1:9999/v1")

    with pytest.raises(InvalidRequestError) as raised:
        await tenants.change("acme", TenantChange(providers=(moved, info.providers[1])))

    assert raised.value.pointer == "/providers/0/api_key"
    elsewhere = msgspec.structs.replace(info.providers[0], base_url="http://127.0.0.1:9001/v2")
    assert await tenants.change("acme", TenantChange(providers=(elsewhere, info.providers[1]))) is not None
    assert (await tenant_of(tenants, KEY)).chains[Purpose.CHAT][0].provider.api_key == SECRET


async def test_an_empty_credential_removes_it(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    bare = msgspec.structs.replace(info.providers[0], api_key="", headers={})

    changed = await tenants.change("acme", TenantChange(providers=(bare, info.providers[1])))

    assert changed is not None
    assert changed.credentials["primary"] is CredentialState.NONE
    assert (await tenant_of(tenants, KEY)).chains[Purpose.CHAT][0].provider.api_key == ""


async def test_a_provider_in_use_cannot_be_removed_and_an_unused_one_can(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)

    with pytest.raises(InvalidRequestError) as raised:
        await tenants.change("acme", TenantChange(providers=info.providers[:1]))
    assert raised.value.pointer == "/chains/chat/1/provider"
    assert await tenants.info("acme") == info

    change = TenantChange(providers=info.providers[:1], chains={Purpose.CHAT: SPEC.chains[Purpose.CHAT][:1]})
    changed = await tenants.change("acme", change)
    assert changed is not None
    assert [provider.name for provider in changed.providers] == ["primary"]


async def test_a_literal_credential_needs_a_secret_key_and_nothing_is_half_written(build: Build) -> None:
    tenants = build(secret_key=None)

    with pytest.raises(InvalidRequestError, match="GATEWAY_SECRET_KEY") as raised:
        await tenants.apply(SPEC, generate_key=True)

    assert raised.value.pointer == "/providers/0/api_key"
    assert SECRET not in raised.value.detail
    assert await tenants.info("acme") is None


async def test_references_to_the_environment_need_no_secret_key(build: Build) -> None:
    tenants = build(secret_key=None, environ={"SPARE_KEY": " sk-spare\n", "ACME_KEY": KEY})
    spec = TenantSpec(
        name="acme", api_keys=("env:ACME_KEY",), providers=SPEC.providers[1:], chains={Purpose.CHAT: SPEC.chains[Purpose.CHAT][1:]}
    )

    info, _ = await tenants.apply(spec, generate_key=True)

    assert [key.name for key in info.keys] == ["env:ACME_KEY"]
    assert (await tenant_of(tenants, KEY)).chains[Purpose.CHAT][0].provider.api_key == "sk-spare"


@pytest.mark.parametrize("environ", [{}, {"ACME_KEY": ""}, {"ACME_KEY": "short"}], ids=["unset", "empty", "weak"])
async def test_a_key_that_the_environment_does_not_hold_is_refused(build: Build, environ: dict[str, str]) -> None:
    tenants = build(environ=environ)

    with pytest.raises(InvalidRequestError, match="ACME_KEY") as raised:
        await tenants.apply(TenantSpec(name="acme", api_keys=("env:ACME_KEY",)), generate_key=True)

    assert raised.value.pointer == "/api_keys/0"
    assert await tenants.info("acme") is None


@pytest.mark.parametrize(
    ("secret_key", "environ", "lost"),
    [
        ("secret key", {}, ("spare", CredentialState.MISSING)),
        ("secret key", {"SPARE_KEY": "two words"}, ("spare", CredentialState.MISSING)),
        ("another key", {"SPARE_KEY": "sk-spare"}, ("primary", CredentialState.UNREADABLE)),
        (None, {"SPARE_KEY": "sk-spare"}, ("primary", CredentialState.UNREADABLE)),
    ],
    ids=["variable unset", "variable illegal", "other secret key", "no secret key"],
)
async def test_a_lost_credential_takes_nothing_else_down(
    build: Build, *, secret_key: str | None, environ: dict[str, str], lost: tuple[str, CredentialState]
) -> None:
    await build().apply(SPEC, generate_key=False)
    tenants = build(secret_key=secret_key, environ=environ)

    tenant = await tenant_of(tenants, KEY)

    name, state = lost
    keys = {route.provider.name: route.provider.api_key for route in tenant.chains[Purpose.CHAT]}
    assert keys == {"primary": SECRET, "spare": "sk-spare"} | {name: ""}
    info = await tenants.info("acme")
    assert info is not None
    assert info.credentials[name] is state


async def test_a_lost_credential_is_logged_by_name_and_once(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    await build().apply(SPEC, generate_key=False)
    tenants = build(secret_key="another key")
    caplog.set_level(logging.DEBUG, logger="app.store")

    for _ in range(3):
        await tenant_of(tenants, KEY)

    assert [record.getMessage() for record in caplog.records] == ["the credential of provider primary of tenant acme is unreadable"]


async def test_unreadable_secrets_survive_changes_of_something_else(build: Build) -> None:
    await build().apply(SPEC, generate_key=False)

    assert await build(secret_key="another key").change("acme", TenantChange(settings=TenantSettings())) is not None

    provider = (await tenant_of(build(), KEY)).chains[Purpose.CHAT][0].provider
    assert (provider.api_key, provider.headers) == (SECRET, {"X-Team": HEADER})


async def test_a_rotated_secret_key_is_taken_over_by_applying_again(build: Build) -> None:
    await build(secret_key="old").apply(SPEC, generate_key=False)
    await build(secret_key="new,old").apply(SPEC, generate_key=False)

    provider = (await tenant_of(build(secret_key="new"), KEY)).chains[Purpose.CHAT][0].provider

    assert (provider.api_key, provider.headers) == (SECRET, {"X-Team": HEADER})


async def test_replicas_that_apply_one_bootstrap_at_once_all_succeed(build: Build) -> None:
    spec = msgspec.structs.replace(SPEC, api_keys=())

    applied = await asyncio.gather(*(build().apply(spec, generate_key=True) for _ in range(6)))

    assert len({info.id for info, _ in applied}) == 1
    assert len([key for _, key in applied if key is not None]) == 1
    assert len(await build().infos()) == 1


async def test_keys_are_added_and_never_removed_or_revived(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=True)
    assert await tenants.disable_key(info.keys[0].id)

    again, generated = await tenants.apply(msgspec.structs.replace(SPEC, api_keys=(KEY, KEY + "-2")), generate_key=True)

    assert generated is None
    assert [key.disabled for key in again.keys] == [True, False]
    assert await tenants.authenticate(hash_of(KEY)) is None
    assert await tenants.authenticate(hash_of(KEY + "-2")) is not None


async def test_a_key_of_another_tenant_is_refused(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=True)

    with pytest.raises(ConflictError) as raised:
        await tenants.apply(TenantSpec(name="rival", api_keys=(KEY,)), generate_key=True)

    assert raised.value.code == "key_taken"
    assert KEY not in raised.value.detail
    assert await tenants.info("rival") is None
    assert (await tenant_of(tenants, KEY)).name == "acme"


async def test_creating_a_tenant_twice_is_refused(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=True, create_only=True)

    with pytest.raises(ConflictError) as raised:
        await tenants.apply(TenantSpec(name="acme"), generate_key=True, create_only=True)

    assert raised.value.code == "tenant_exists"
    assert (await tenant_of(tenants, KEY)).settings == SPEC.settings


async def test_a_rotated_key_is_replaced_once(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=True)

    rotated = await asyncio.gather(*(tenants.rotate_key(info.keys[0].id) for _ in range(3)), return_exceptions=True)

    (new,) = [made for made in rotated if isinstance(made, tuple)]
    assert [type(made) for made in rotated].count(ConflictError) == 2
    assert await tenants.authenticate(hash_of(KEY)) is None
    assert (await tenant_of(tenants, new[1])).name == "acme"
    assert new[0].hint == new[1][-4:]


async def test_keys_can_be_added_and_disabled(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=True)
    added = await tenants.add_key("acme", "for the\x00 phone app")
    assert added is not None
    info, key = added

    assert info.name == "for the phone app"
    assert (await tenant_of(tenants, key)).name == "acme"
    assert [await tenants.disable_key(info.id) for _ in range(2)] == [True, True]
    assert await tenants.authenticate(hash_of(key)) is None


async def test_a_disabled_tenant_is_turned_away_until_enabled(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=True)

    assert await tenants.set_disabled("acme", True)
    assert await tenants.authenticate(hash_of(KEY)) is None
    assert await tenants.tenant(info.id) is None
    await tenants.apply(SPEC, generate_key=True)
    assert await tenants.authenticate(hash_of(KEY)) is None

    assert await tenants.set_disabled("acme", False)
    assert (await tenant_of(tenants, KEY)).id == info.id


@pytest.mark.parametrize("name", ["nobody", "", "a\x00b", "ACME", "x" * 10_000])
async def test_unknown_names_and_ids_are_unknown(tenants: TenantRepository, name: str) -> None:
    await tenants.apply(SPEC, generate_key=True)

    assert await tenants.info(name) is None
    assert await tenants.change(name, TenantChange()) is None
    assert await tenants.add_key(name, "key") is None
    assert not await tenants.set_disabled(name, True)
    assert await tenants.rotate_key(KeyId(name)) is None
    assert not await tenants.disable_key(KeyId(f"key_{name}"))
    assert await tenants.tenant(TenantId("ten_0")) is None


async def test_tenants_do_not_share_providers_or_chains(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=True)
    other = TenantSpec(
        name="rival",
        api_keys=("agw_rival-key-FFFF6666",),
        providers=(ProviderSpec(name="primary", base_url="http://127.0.0.1:9100/v1", api_key="sk-rival"),),
        chains={Purpose.CHAT: (RouteSpec(provider="primary", model="m-rival"),)},
    )
    await tenants.apply(other, generate_key=True)

    ours, theirs = await tenant_of(tenants, KEY), await tenant_of(tenants, "agw_rival-key-FFFF6666")

    assert [route.provider.api_key for route in theirs.chains[Purpose.CHAT]] == ["sk-rival"]
    assert [route.provider.api_key for route in ours.chains[Purpose.CHAT]] == [SECRET, "sk-spare"]
    assert [info.name for info in await tenants.infos()] == ["acme", "rival"]


async def test_a_tenant_without_a_chain_can_still_call(tenants: TenantRepository) -> None:
    await tenants.apply(TenantSpec(name="acme", api_keys=(KEY,)), generate_key=True)
    assert (await tenant_of(tenants, KEY)).chains == {}
