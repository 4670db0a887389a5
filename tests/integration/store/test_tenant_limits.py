import hashlib

import msgspec
import pytest

from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, Tenant, TenantChange, TenantSettings, TenantSpec
from app.ports import Clock
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

KEY = "agw_literal-key-EEEE5555"
PROVIDER = ProviderSpec(name="primary", base_url="http://127.0.0.1:9001/v1", rpm=60, tpm=90_000)
UNLIMITED = ProviderSpec(name="spare", base_url="http://127.0.0.1:9002/v1")
CHAT = (RouteSpec(provider="primary", model="m-large", patience_s=2.5, rpm=7, tpm=5_000), RouteSpec(provider="spare", model="m-small"))
SPEC = TenantSpec(
    name="acme",
    api_keys=(KEY,),
    providers=(PROVIDER, UNLIMITED),
    chains=dict.fromkeys(Purpose, CHAT),
    settings=TenantSettings(preflight_threshold=0.25, gateway_threshold=0.75),
)


@pytest.fixture
def tenants(database: Database, clock: Clock) -> TenantRepository:
    return TenantRepository(database, clock, Sealer(None), {})


async def caller(tenants: TenantRepository) -> Tenant:
    principal = await tenants.authenticate(hashlib.sha256(KEY.encode()).digest())
    assert principal is not None
    return principal.tenant


async def test_a_request_sees_every_chain_with_its_limits(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=False)

    tenant = await caller(tenants)

    assert tenant.settings == SPEC.settings
    assert set(tenant.chains) == set(Purpose)
    for first, second in tenant.chains.values():
        assert (first.provider.rpm, first.provider.tpm, first.patience_s) == (60, 90_000, 2.5)
        assert (first.rpm, first.tpm, second.rpm, second.tpm) == (7, 5_000, None, None)
        assert (second.provider.rpm, second.provider.tpm, second.patience_s) == (None, None, 5.0)


async def test_limits_are_shown_as_they_were_given(tenants: TenantRepository) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)

    assert (info.providers, info.chains, info.settings) == (SPEC.providers, SPEC.chains, SPEC.settings)
    assert await tenants.info("acme") == info


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(TenantChange(providers=(msgspec.structs.replace(PROVIDER, rpm=61), UNLIMITED)), id="other rpm"),
        pytest.param(TenantChange(providers=(msgspec.structs.replace(PROVIDER, tpm=None), UNLIMITED)), id="no tpm any more"),
        pytest.param(TenantChange(chains={Purpose.CHAT: CHAT}), id="no auxiliary chains any more"),
        pytest.param(TenantChange(chains={Purpose.CHAT: (msgspec.structs.replace(CHAT[0], rpm=8), CHAT[1])}), id="other rpm of a model"),
        pytest.param(TenantChange(settings=TenantSettings()), id="other thresholds"),
    ],
)
async def test_a_change_of_a_limit_alone_is_stored_and_raises_the_revision(tenants: TenantRepository, change: TenantChange) -> None:
    info, _ = await tenants.apply(SPEC, generate_key=False)
    before = await caller(tenants)

    changed = await tenants.change("acme", change)

    assert changed is not None
    assert changed != info
    assert (await caller(tenants)).revision == before.revision + 1


async def test_a_change_of_something_else_keeps_the_limits(tenants: TenantRepository) -> None:
    await tenants.apply(SPEC, generate_key=False)

    changed = await tenants.change("acme", TenantChange(chains={Purpose.CHAT: CHAT[:1]}))

    assert changed is not None
    assert changed.providers == SPEC.providers
    assert changed.settings == SPEC.settings


async def test_a_credential_from_the_environment_is_known_as_such(database: Database, clock: Clock) -> None:
    tenants = TenantRepository(database, clock, Sealer(None), {"SHARED_KEY": "sk-test-DDDD4444"})
    providers = (msgspec.structs.replace(PROVIDER, api_key="env:SHARED_KEY"), UNLIMITED)
    await tenants.apply(msgspec.structs.replace(SPEC, providers=providers), generate_key=False)

    first, second = (await caller(tenants)).chains[Purpose.CHAT]

    assert (first.provider.api_key_env, first.provider.api_key) == ("SHARED_KEY", "sk-test-DDDD4444")
    assert second.provider.api_key_env is None
