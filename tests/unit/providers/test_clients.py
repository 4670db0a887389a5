import random

import pytest

from app.clock import SystemClock
from app.domain.errors import InvalidRequestError
from app.domain.ids import ProviderId, TenantId
from app.domain.model import ApiMode
from app.domain.tenants import Provider, Purpose, Route, Tenant, TenantSettings
from app.providers.chain import ProviderCounters, ProviderLayer
from app.providers.clients import ChainModelClients
from app.providers.transport import ProviderTransport


@pytest.fixture
async def clients() -> ChainModelClients:
    transport = ProviderTransport()
    await transport.close()
    return ChainModelClients(ProviderLayer(transport=transport, clock=SystemClock(), random=random.random, counters=ProviderCounters()))


def tenant(*models: str, revision: int = 1, name: str = "ten_1") -> Tenant:
    provider = Provider(id=ProviderId("p"), name="p", api_mode=ApiMode.CHAT_COMPLETIONS, base_url="http://x", api_key="k", headers={})
    routes = tuple(Route(provider=provider, model=model) for model in models)
    chains = {Purpose.CHAT: routes} if models else {}
    return Tenant(id=TenantId(name), name=name, revision=revision, settings=TenantSettings(), chains=chains)


async def test_the_chain_begins_with_its_first_route_or_the_model_asked_for(clients: ChainModelClients) -> None:
    owner = tenant("a", "b", "c")
    assert clients.for_chat(owner, None).primary.model == "a"
    assert clients.for_chat(owner, "b").primary.model == "b"


async def test_chains_are_kept_until_the_tenant_changes(clients: ChainModelClients) -> None:
    first = clients.for_chat(tenant("a"), None)
    assert clients.for_chat(tenant("a"), None) is first
    assert clients.for_chat(tenant("b", revision=2), None).primary.model == "b"
    assert clients.for_chat(tenant("a", name="ten_2"), None) is not first


async def test_unknown_models_and_missing_chains_are_the_callers_error(clients: ChainModelClients) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        clients.for_chat(tenant("a"), "z")
    assert caught.value.pointer == "/model"
    with pytest.raises(InvalidRequestError):
        clients.for_chat(tenant(), None)


async def test_a_thousand_tenants_do_not_stay_in_memory(clients: ChainModelClients) -> None:
    first = clients.for_chat(tenant("a", name="ten_0"), None)
    for number in range(1, 1000):
        clients.for_chat(tenant("a", name=f"ten_{number}"), None)
    assert clients.for_chat(tenant("a", name="ten_0"), None) is not first
