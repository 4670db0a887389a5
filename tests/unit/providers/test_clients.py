import random

import msgspec
import pytest

from app.clock import SystemClock
from app.domain.errors import InvalidRequestError
from app.domain.ids import ProviderId, TenantId
from app.domain.model import ApiMode
from app.domain.tenants import Provider, Purpose, Route, Tenant, TenantSettings
from app.providers.chain import ProviderCounters, ProviderLayer
from app.providers.clients import ChainModelClients
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.transport import ProviderTransport
from tests.fakes.cooldowns import InMemoryCooldowns
from tests.fakes.rate_windows import InMemoryRateWindows


@pytest.fixture
async def clients() -> ChainModelClients:
    transport = ProviderTransport()
    await transport.close()
    clock = SystemClock()
    board = HealthBoard(InMemoryCooldowns(clock), clock)
    layer = ProviderLayer(
        transport=transport,
        clock=clock,
        random=random.random,
        counters=ProviderCounters(),
        board=board,
        limiter=Limiter(InMemoryRateWindows(clock), board, clock),
    )
    return ChainModelClients(layer)


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


async def test_ten_thousand_tenants_do_not_stay_in_memory(clients: ChainModelClients) -> None:
    first = clients.for_chat(tenant("a", name="ten_0"), None)
    for number in range(1, 10_000):
        clients.for_chat(tenant("a", name=f"ten_{number}"), None)
    assert clients.for_chat(tenant("a", name="ten_0"), None) is not first


@pytest.mark.parametrize("purpose", [purpose for purpose in Purpose if purpose is not Purpose.CHAT])
async def test_a_purpose_has_its_own_chain_or_the_chat_chain(clients: ChainModelClients, purpose: Purpose) -> None:
    owner = tenant("a")
    assert clients.for_purpose(owner, purpose).primary.model == "a"
    special = msgspec.structs.replace(owner, revision=2, chains={**owner.chains, purpose: tenant("s").chains[Purpose.CHAT]})
    assert clients.for_purpose(special, purpose).primary.model == "s"
    assert clients.for_purpose(special, Purpose.CHAT).primary.model == "a"
    with pytest.raises(InvalidRequestError):
        clients.for_purpose(tenant(), purpose)
