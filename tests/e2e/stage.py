"""One gateway for all tests of a module, each with a tenant of its own: starting a gateway takes longer than most turns.

A test module uses it by ``pytestmark = pytest.mark.asyncio(loop_scope="module")`` and the fixture ``stage``.
"""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from app.simulator.server import Simulator
from tests.e2e import operator_tools
from tests.e2e.harness import Client, Replica, replica, tenant
from tests.postgres import PostgresServer


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway with the operator's tools of the tests, and two strict providers."""

    replica: Replica
    provider: Simulator
    backup: Simulator
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def reset(self) -> None:
        """Forget what earlier tests did."""
        self.provider.clear()
        self.backup.clear()
        operator_tools.reset()

    @asynccontextmanager
    async def client(self, *base_urls: str, **route: Any) -> AsyncIterator[Client]:
        """A client of a new tenant whose chain has one route for each URL; without any, one to ``provider``."""
        name = f"tenant-{next(self.numbers)}"
        key = f"agw_test-key-of-{name}-0123456789"
        spec = tenant(name, key, base_urls or (self.provider.base_url,), **route)
        await self.replica.gateway.tenants.apply(spec, generate_key=False)
        async with self.replica.client(key) as client:
            yield client


@asynccontextmanager
async def open_stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    """Set everything up on a fresh database."""
    async with AsyncExitStack() as stack:
        provider, backup = Simulator(strict=True, picky=True), Simulator(strict=True, picky=True)
        for simulator in (provider, backup):
            await simulator.start()
            stack.push_async_callback(simulator.stop)
        url = await stack.enter_async_context(postgres.database())
        running = await stack.enter_async_context(replica(url, tool_modules=operator_tools.MODULE))
        yield Stage(running, provider, backup)
