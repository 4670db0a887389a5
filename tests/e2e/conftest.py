"""A gateway, a provider and a client for end-to-end tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.simulator.server import Simulator
from tests.e2e.harness import KEY, OTHER_KEY, Client, Replica, replica, tenant
from tests.e2e.stage import Stage, open_stage
from tests.postgres import PostgresServer


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    async with open_stage(postgres) as stage:
        yield stage


@pytest.fixture
def stage(module_stage: Stage) -> Stage:
    """A gateway and two providers that the tests of a module share, clean for each."""
    module_stage.reset()
    return module_stage
