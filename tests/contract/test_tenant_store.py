"""What every :class:`app.ports.TenantStore` does when somebody authenticates; administration is the repository's own test."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from app.clock import SystemClock
from app.domain.ids import TenantId
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSpec
from app.ports import TenantStore
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from tests.fakes.tenants import InMemoryTenants


@dataclass(frozen=True, slots=True)
class TenantWorld:
    """A store, and the way to add a tenant with one key and a chain of models to it."""

    store: TenantStore
    add: Callable[[str, str, tuple[str, ...]], Awaitable[None]]


@pytest.fixture(params=["memory", "postgres"])
def tenant_world(request: pytest.FixtureRequest) -> TenantWorld:
    if request.param == "memory":
        tenants = InMemoryTenants()

        async def add(name: str, key: str, models: tuple[str, ...]) -> None:
            tenants.add(name, key, models=models)

        return TenantWorld(tenants, add)
    repository = TenantRepository(request.getfixturevalue("database"), SystemClock(), Sealer("secret key"), {})

    async def apply(name: str, key: str, models: tuple[str, ...]) -> None:
        provider = ProviderSpec(name="primary", base_url="http://127.0.0.1:9/v1", api_key="sk-test")
        chain = tuple(RouteSpec(provider="primary", model=model) for model in models)
        spec = TenantSpec(name=name, api_keys=(key,), providers=(provider,), chains={Purpose.CHAT: chain})
        await repository.apply(spec, generate_key=False)

    return TenantWorld(repository, apply)


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def test_a_key_opens_its_tenant_with_its_chain_in_order(tenant_world: TenantWorld) -> None:
    await tenant_world.add("acme", "agw_key-of-acme-0123456789", ("m-large", "m-small"))
    await tenant_world.add("other", "agw_key-of-other-0123456789", ("m-test",))
    principal = await tenant_world.store.authenticate(hash_of("agw_key-of-acme-0123456789"))
    assert principal is not None
    tenant = principal.tenant
    assert (tenant.name, [route.model for route in tenant.chains[Purpose.CHAT]]) == ("acme", ["m-large", "m-small"])
    assert tenant.chains[Purpose.CHAT][0].provider.api_key == "sk-test"
    assert await tenant_world.store.tenant(tenant.id) == tenant


@pytest.mark.parametrize("key", ["agw_key-of-acme-0123456788", "", "agw_"], ids=["wrong", "empty", "prefix"])
async def test_no_other_key_opens_it(tenant_world: TenantWorld, key: str) -> None:
    await tenant_world.add("acme", "agw_key-of-acme-0123456789", ("m-test",))
    assert await tenant_world.store.authenticate(hash_of(key)) is None
    assert await tenant_world.store.authenticate(key.encode()) is None


async def test_an_unknown_tenant_is_none(tenant_world: TenantWorld) -> None:
    assert await tenant_world.store.tenant(TenantId("ten_none")) is None
