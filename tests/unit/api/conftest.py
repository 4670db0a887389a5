import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from app.api.app import create_api
from app.api.authentication import Authenticator
from app.api.route_health import HealthDesk
from app.api.services import Services
from app.clock import SystemClock
from app.tools.pool import ToolPool
from app.turns.counters import Counters
from app.turns.service import Turns
from tests.fakes.calls import NoCalls
from tests.fakes.cooldowns import InMemoryCooldowns
from tests.fakes.kanban import InMemoryKanban
from tests.fakes.memories import InMemoryMemories
from tests.fakes.models import SilentModels
from tests.fakes.quotas import InMemoryUsage
from tests.fakes.rate_windows import InMemoryRateWindows
from tests.fakes.replicas import InMemoryReplicas
from tests.fakes.sessions import InMemoryMessages, InMemorySessions
from tests.fakes.summaries import InMemorySummaries
from tests.fakes.tenants import InMemoryTenants
from tests.fakes.tools import InMemoryToolbox
from tests.fakes.turns import InMemoryTurns

ADMIN_KEY = "an-admin-key-of-the-tests"
ACME_KEY = "agw_acme0123456789abcdef"
OTHER_KEY = "agw_other0123456789abcdef"
MAX_BODY_BYTES = 400_000


class IdleTurns(Turns):
    """A turn server in which nothing runs."""

    def __init__(self) -> None:
        self.leaving = False
        self._counters = Counters()

    @property
    @override
    def draining(self) -> bool:
        return self.leaving

    @property
    @override
    def counters(self) -> Counters:
        return self._counters


@dataclass
class Gateway:
    """The application over fakes, served by uvicorn on loopback."""

    sessions: InMemorySessions
    memory: InMemoryMemories
    summaries: InMemorySummaries
    turns: IdleTurns
    url: str = ""
    ready: bool = True
    app: FastAPI = field(default_factory=FastAPI)

    def client(self, key: str | None = ACME_KEY) -> httpx.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False)


def build(admin_key: str | None = ADMIN_KEY) -> Gateway:
    clock = SystemClock()
    tenants = InMemoryTenants()
    tenants.add("acme", ACME_KEY, models=("m-test", "m-other"))
    tenants.add("other", OTHER_KEY)
    sessions = InMemorySessions(clock)
    gateway = Gateway(sessions=sessions, memory=InMemoryMemories(sessions), summaries=InMemorySummaries(sessions), turns=IdleTurns())

    async def readiness() -> bool:
        return gateway.ready

    services = Services(
        clock=clock,
        authenticator=Authenticator(tenants, clock),
        tenants=tenants,
        sessions=gateway.sessions,
        messages=InMemoryMessages(gateway.sessions),
        summaries=gateway.summaries,
        memory=gateway.memory,
        kanban=InMemoryKanban(gateway.sessions, clock),
        tool_capacity=ToolPool(8),
        toolboxes=InMemoryToolbox({"time": ("get_time",), "notes": ("write_note", "add_note"), "core": ("memory",)}),
        model_clients=SilentModels(),
        turns=gateway.turns,
        calls=NoCalls(),
        usage=InMemoryUsage(InMemoryTurns(gateway.sessions, InMemoryReplicas(clock), clock), clock),
        cooling=lambda: 2,
        route_health=HealthDesk(tenants, InMemoryCooldowns(clock), InMemoryRateWindows(clock), clock),
        readiness=readiness,
        admin_key=admin_key,
        max_body_bytes=MAX_BODY_BYTES,
        heartbeat_s=10.0,
        version="1.2.3",
    )
    gateway.app = create_api(services)
    return gateway


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve ``app`` on a free port of loopback; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, server_header=False))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def gateway() -> AsyncGenerator[Gateway, None]:
    built = build()
    async with served(built.app) as url:
        built.url = url
        yield built


@pytest.fixture
async def client(gateway: Gateway) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with gateway.client() as http:
        yield http
