"""Every test of a store port runs over each of its implementations."""

import pytest

from tests.contract.worlds import MemoryWorld, PostgresWorld, World


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    return PostgresWorld(request.getfixturevalue("database"))
