"""The composition root: builds a gateway out of its parts. The only module that knows every concrete class."""

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import FrameType

import uvicorn
from fastapi import FastAPI
from typing_extensions import override

from app.api.app import create_api
from app.api.authentication import Authenticator
from app.api.route_health import HealthDesk
from app.api.services import Services
from app.api.tenant_specs import parse_bootstrap
from app.clock import SystemClock
from app.domain.errors import ConflictError, InvalidRequestError, UnavailableError
from app.domain.ids import ReplicaId, make_id
from app.domain.outbound import OutboundPolicy
from app.domain.tenants import TenantInfo
from app.ports import Clock
from app.providers.chain import ProviderCounters, ProviderLayer
from app.providers.clients import ChainModelClients
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.transport import ProviderTransport
from app.providers.upkeep import Upkeep
from app.settings import Settings
from app.store import migrate
from app.store.cooldowns import Cooldowns
from app.store.engine import Database
from app.store.kanban import KanbanRepository
from app.store.memories import MemoryRepository
from app.store.messages import MessageRepository
from app.store.rate_windows import RateWindows
from app.store.replicas import ReplicaRepository
from app.store.search import SearchRepository
from app.store.search_index import SearchIndex
from app.store.secrets import Sealer
from app.store.sessions import SessionRepository
from app.store.summaries import ArchiveRepository, SummaryRepository
from app.store.tenants import TenantRepository
from app.store.todos import TodoRepository
from app.store.tool_calls import CallRepository
from app.store.turns import TurnRepository
from app.store.upkeep import StoreUpkeep
from app.store.usage import UsageRepository
from app.store.wakeups import PostgresWakeups
from app.tools.auxiliary import Auxiliary
from app.tools.builtin import BUILT_IN_NAMES
from app.tools.builtin.clarify import clarify_tool
from app.tools.builtin.delegate import delegate_tool
from app.tools.builtin.get_time import get_time_tool
from app.tools.builtin.kanban import kanban_tools
from app.tools.builtin.memory import memory_tool
from app.tools.builtin.session_search import session_search_tool
from app.tools.builtin.todo import todo_tool
from app.tools.builtin.vision_analyze import vision_analyze_tool
from app.tools.builtin.web_extract import web_extract_tool
from app.tools.execution import ToolExecutor
from app.tools.mcp_dialing import dialing
from app.tools.mcp_pool import McpPool
from app.tools.mcp_programs import load_programs
from app.tools.mcp_source import McpSource
from app.tools.operator import load_operator_tools
from app.tools.outbound import Outbound
from app.tools.pages import Pages
from app.tools.pool import ToolPool
from app.tools.registry import ToolRegistry
from app.tools.webhook import WebhookRules, WebhookSource
from app.tools.webhook_call import WebhookCaller
from app.turns.quotas import Quotas
from app.turns.server import Stores, Timing, TurnServer
from app.turns.service import Turns

logger = logging.getLogger(__name__)

GC_THRESHOLDS = (20_000, 20, 50)
"""Far rarer than Python's default: with a thousand streams open a full collection stops them all for a tenth of a second."""
EXIT_S = 1.0
"""Part of the drain's time that is left to the HTTP server for closing its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One process of the service, started."""

    app: FastAPI
    server: TurnServer
    tenants: TenantRepository
    database: Database
    replica: ReplicaId
    upkeep: Upkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReach:
    """What tools work with that has to be closed, or that they share."""

    pool: ToolPool
    outbound: Outbound
    mcp: McpPool


def service_version() -> str:
    """The installed version; ``dev`` when the code runs from a checkout."""
    try:
        return version("agent-gateway")
    except PackageNotFoundError:
        return "dev"


@asynccontextmanager
async def open_gateway(settings: Settings, database_url: str, clock: Clock | None = None) -> AsyncIterator[Gateway]:
    """Build a gateway on the database at ``database_url`` (migrated), start its background work, and stop it at the end.

    Raises UnavailableError when the database is away, InvalidRequestError or ConflictError for a bad bootstrap file,
    ToolConfigurationError for a bad operator's tool.
    """
    clock = clock or SystemClock()
    replica = ReplicaId(make_id("rep", clock.unix_ms(), secrets.token_bytes(10)))
    direct_url = settings.direct_database_url.get_secret_value() if settings.direct_database_url else database_url
    async with AsyncExitStack() as stack:
        database = Database(database_url, settings.db_pool_size)
        stack.push_async_callback(database.close)
        pool = ToolPool(settings.tool_pool_size)
        stack.callback(pool.close)
        outbound = Outbound(OutboundPolicy(settings.outbound_allow))
        mcp = McpPool(dialing(outbound.client), clock)
        stack.push_async_callback(mcp.close)
        reach = ToolReach(pool=pool, outbound=outbound, mcp=mcp)
        transport = ProviderTransport()
        stack.push_async_callback(transport.close)
        wakeups = PostgresWakeups(database, direct_url, clock)
        gateway = _assemble(settings, replica, database, transport=transport, reach=reach, wakeups=wakeups, clock=clock)
        archive = ArchiveRepository(database)
        upkeep = StoreUpkeep(SearchIndex(database, clock), archive, clock, retention_s=settings.archive_retention_s)
        works = (wakeups.run_sender(), wakeups.run_listener(), gateway.upkeep.run(), upkeep.run(), mcp.run())
        hints = [asyncio.ensure_future(work) for work in works]
        stack.push_async_callback(_cancel, hints)
        stack.push_async_callback(gateway.server.stop)
        await gateway.server.start()
        yield gateway


async def _cancel(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def webhook_rules(settings: Settings) -> WebhookRules:
    """Judges tenants' tools by the names of this process' own."""

    def taken() -> frozenset[str]:
        return BUILT_IN_NAMES.union(tool.name for tool in load_operator_tools(settings.tool_modules, ToolPool(1)))

    return WebhookRules(taken)


def _toolbox(settings: Settings, database: Database, reach: ToolReach, clock: Clock, *, auxiliary: Auxiliary) -> ToolRegistry:
    own = (
        clarify_tool(),
        delegate_tool(),
        *kanban_tools(KanbanRepository(database), clock),
        get_time_tool(clock),
        memory_tool(MemoryRepository(database)),
        session_search_tool(SearchRepository(database, SearchIndex(database, clock)), auxiliary),
        todo_tool(TodoRepository(database)),
        vision_analyze_tool(reach.outbound, auxiliary),
        web_extract_tool(Pages(reach.outbound), auxiliary),
    )
    return ToolRegistry(
        (*own, *load_operator_tools(settings.tool_modules, reach.pool)),
        ToolExecutor(settings.tool_timeout_s, reach.pool.places),
        (
            WebhookSource(WebhookCaller(reach.outbound, clock)),
            McpSource(reach.mcp, load_programs(settings.mcp_servers_file, os.environ)),
        ),
    )


def _assemble(
    settings: Settings,
    replica: ReplicaId,
    database: Database,
    *,
    transport: ProviderTransport,
    reach: ToolReach,
    wakeups: PostgresWakeups,
    clock: Clock,
) -> Gateway:
    sealer = Sealer(settings.secret_key.get_secret_value() if settings.secret_key else None)
    tenants = TenantRepository(database, clock, sealer, os.environ, tool_rules=webhook_rules(settings))
    turns = TurnRepository(database, settings.lease_ttl_s)
    messages = MessageRepository(database)
    windows, usage = RateWindows(database), UsageRepository(database)
    cooldowns = Cooldowns(database)
    board = HealthBoard(cooldowns, clock)
    limiter = Limiter(windows, board, clock)
    layer = ProviderLayer(
        transport=transport,
        clock=clock,
        random=random.random,
        counters=ProviderCounters(),
        board=board,
        limiter=limiter,
        longest_wait_s=settings.longest_wait_s,
        rest_s=lambda: server.pacing.wait_s,
    )
    models = ChainModelClients(layer)
    toolbox = _toolbox(settings, database, reach, clock, auxiliary=Auxiliary(models, tenants))
    server = TurnServer(
        replica,
        Stores(
            turns=turns,
            messages=messages,
            replicas=ReplicaRepository(database),
            tenants=tenants,
            todos=TodoRepository(database),
            memory=MemoryRepository(database),
            usage=usage,
            sessions=SessionRepository(database),
            kanban=KanbanRepository(database),
        ),
        models=models,
        toolboxes=toolbox,
        clock=clock,
        wakeups=wakeups,
        timing=Timing(
            lease_ttl_s=settings.lease_ttl_s,
            lease_beat_s=settings.lease_beat_s,
            poll_s=settings.poll_s,
            delta_retention_s=settings.delta_retention_s,
            action_timeout_s=settings.action_timeout_s,
            stateless_retention_s=settings.stateless_retention_s,
            max_running_turns=settings.max_running_turns,
            tool_calls_per_turn=settings.tool_calls_per_turn,
        ),
    )

    async def ready() -> bool:
        try:
            return server.lease.valid and await migrate.is_current(database)
        except UnavailableError:
            return False

    services = Services(
        clock=clock,
        authenticator=Authenticator(tenants, clock),
        tenants=tenants,
        sessions=SessionRepository(database),
        messages=messages,
        summaries=SummaryRepository(database),
        memory=MemoryRepository(database),
        kanban=KanbanRepository(database),
        toolboxes=toolbox,
        tool_capacity=reach.pool,
        model_clients=models,
        turns=Turns(server, turns, models, clock, quotas=Quotas(windows, usage, clock, server.shares)),
        calls=CallRepository(database),
        usage=usage,
        route_health=HealthDesk(tenants, cooldowns, windows, clock, learnt=limiter.learnt),
        cooling=lambda: board.cooling,
        readiness=ready,
        admin_key=settings.admin_key.get_secret_value() if settings.admin_key else None,
        max_body_bytes=settings.max_body_bytes,
        heartbeat_s=settings.heartbeat_s,
        version=service_version(),
    )
    return Gateway(
        app=create_api(services),
        server=server,
        tenants=tenants,
        database=database,
        replica=replica,
        upkeep=Upkeep(board, cooldowns, windows, clock),
    )


async def apply_bootstrap(tenants: TenantRepository, settings: Settings) -> list[tuple[str, str]]:
    """Apply the bootstrap file; returns (tenant, key) for each key that had to be made.

    Raises InvalidRequestError (its pointer into the file, or naming the setting of a file that cannot be read) and ConflictError, both
    naming the tenant.
    """
    if settings.bootstrap_file is None:
        return []
    try:
        text = await asyncio.to_thread(settings.bootstrap_file.read_text, "utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidRequestError(f"GATEWAY_BOOTSTRAP_FILE cannot be read: {error}") from error
    return [(info.name, key) for info, key in await apply_tenants(tenants, text) if key is not None]


async def apply_tenants(tenants: TenantRepository, text: str) -> list[tuple[TenantInfo, str | None]]:
    """Apply a bootstrap file's ``text``; returns each tenant with the key that had to be made. Raises like :func:`apply_bootstrap`."""
    applied = []
    for index, spec in enumerate(parse_bootstrap(text)):
        try:
            applied.append(await tenants.apply(spec, generate_key=True))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"Tenant {spec.name}: {error.detail}", pointer=f"/tenants/{index}{error.pointer}") from error
        except ConflictError as error:
            raise ConflictError(error.code, f"Tenant {spec.name}: {error.detail}") from error
    return applied


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeHooks:
    """What the process around a server is told: ``serving`` when it takes connections, ``leaving`` at each signal to end.

    ``leaving`` is called inside a signal handler: it must neither block nor take a lock.
    """

    serving: Callable[[], None]
    leaving: Callable[[], None]


class DrainingServer(uvicorn.Server):
    """Drains the turn server before it stops listening: until then new turns are answered 503 and streams end with an event."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, grace_s: float, hooks: ServeHooks | None = None) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._grace_s = grace_s
        self._hooks = hooks
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @override
    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)
        if self._drain is not None:
            await self._drain

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._hooks is not None:
            self._hooks.serving()

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second interrupts every turn at once."""
        if self._hooks is not None:
            self._hooks.leaving()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leave, signal.Signals(sig).name)

    def _leave(self, name: str) -> None:
        if self._drain is None:
            logger.info("draining", extra={"signal": name})
            self._drain = asyncio.ensure_future(self._drain_then_exit())
        else:
            self._gateway.server.active.interrupt_all()

    async def _drain_then_exit(self) -> None:
        try:
            await self._gateway.server.drain(self._grace_s - EXIT_S)
        finally:
            self.should_exit = True


async def serve(settings: Settings, database_url: str, sockets: list[socket.socket], hooks: ServeHooks | None = None) -> None:
    """Serve on bound ``sockets`` until a signal; returns after the drain. Raises what :func:`open_gateway` raises, and OSError."""
    gc.set_threshold(*GC_THRESHOLDS)
    async with open_gateway(settings, database_url) as gateway:
        gc.collect()
        gc.freeze()  # what the start has made lives as long as the process: no collection needs to look at it
        config = uvicorn.Config(
            gateway.app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            date_header=True,
            http="httptools",
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(max(1, EXIT_S)),
            backlog=4_096,
        )
        await DrainingServer(config, gateway, settings.drain_grace_s, hooks).serve(sockets)
