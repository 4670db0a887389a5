"""A gateway, a provider and a client for end-to-end tests."""

from collections.abc import AsyncIterator

import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import KEY, OTHER_KEY, Client, Replica, replica, tenant


@pytest.fixture
async def provider() -> AsyncIterator[Simulator]:
    simulator = Simulator(strict=True, picky=True)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


@pytest.fixture
async def gateway(database_url: str, provider: Simulator) -> AsyncIterator[Replica]:
    async with replica(database_url) as running:
        await running.gateway.tenants.apply(tenant("acme", KEY, [provider.base_url]), generate_key=False)
        await running.gateway.tenants.apply(tenant("other", OTHER_KEY, [provider.base_url]), generate_key=False)
        yield running


@pytest.fixture
async def second(database_url: str, gateway: Replica) -> AsyncIterator[Replica]:
    """Another replica on the same database."""
    async with replica(database_url) as running:
        yield running


@pytest.fixture
async def client(gateway: Replica) -> AsyncIterator[Client]:
    async with gateway.client() as client:
        yield client
