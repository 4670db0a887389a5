"""Every test of a store port runs over each of its implementations."""

import pytest

from app.domain.ids import SessionId, TenantId
from app.ports import TurnStore
from tests.contract.worlds import MemoryWorld, PostgresWorld, World, new_session


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    return PostgresWorld(request.getfixturevalue("database"))


@pytest.fixture
def turns(world: World) -> TurnStore:
    return world.turns


@pytest.fixture
async def tenant_id(world: World) -> TenantId:
    return await world.tenant()


@pytest.fixture
async def session_id(world: World, tenant_id: TenantId) -> SessionId:
    return await new_session(world, tenant_id)
