"""``serve``: database, migrations, demo tenant, then the gateway in this process or in workers."""

import argparse
import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass

from app.cli.databases import direct_url, open_database, open_tenants, read_settings, start_logging, warn
from app.cli.demo_tenant import DemoKey, DemoProvider, DemoSettings, choose_provider, demo_simulator, ensure_key, ensure_tenant
from app.cli.errors import MISUSED, CommandError
from app.cli.processes import ExitWatchdog, bind, die_with_parent, new_event_loop_factory, port_number, stop_on_sigterm, url_of
from app.cli.workers import READY, WorkerGroup, WorkerPlan
from app.clock import SystemClock
from app.main import ServeHooks, apply_bootstrap, serve
from app.settings import Settings
from app.store import migrate
from app.store.engine import Database

HOST = "127.0.0.1"
PORT = 8000
HARD_EXIT_S = 5.0
"""Beyond the grace time, for what cannot be cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The demo tenant of a gateway that is being started."""

    provider: DemoProvider
    key: DemoKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """How to serve.

    ``demo`` has the demo tenant made sure of, answered by ``provider`` when one is given; ``announce`` is told the address once requests
    are taken.
    """

    host: str
    port: int
    workers: int
    demo: DemoSettings | None
    announce: Callable[[str, Demo | None], None]
    provider: DemoProvider | None = None


def add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway on the database of DATABASE_URL, or on an embedded Postgres in GATEWAY_DATA_DIR when it is not set. "
        "The schema is brought up to date first and GATEWAY_BOOTSTRAP_FILE is applied. SIGTERM and Ctrl-C drain: running turns get "
        "GATEWAY_DRAIN_GRACE_S seconds to end; a second signal interrupts them at once.",
    )
    add_address(parser)
    parser.add_argument("--demo", action="store_true", help="make sure that a tenant `demo` with an API key exists (see README)")
    for hidden in ("--fd", "--ready-fd", "--parent"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=_serve)


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of where and in how many processes to serve."""
    parser.add_argument("--host", default=HOST, help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=port_number, default=PORT, help="port to listen on; 0 takes a free one (default %(default)s)")
    parser.add_argument("--workers", type=_positive, default=1, help="processes, each a replica of its own (default %(default)s)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _serve(arguments: argparse.Namespace) -> int:
    settings = read_settings()
    start_logging(settings)
    if arguments.fd is not None:
        return _run_worker(settings, arguments)
    plan = ServePlan(
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        demo=DemoSettings() if arguments.demo else None,
        announce=_announce,
    )
    return run_gateway(settings, plan)


def run_gateway(settings: Settings, plan: ServePlan) -> int:
    """Serve until a signal; returns the exit code. Raises the errors of :mod:`app.cli.errors`."""
    stop_on_sigterm()
    try:
        with (
            closing(bind(plan.host, plan.port)) as listener,
            open_database(settings, create=True, serving=True) as url,
            asyncio.Runner(loop_factory=new_event_loop_factory()) as runner,
        ):
            return runner.run(_run(settings, plan, url, listener))
    except KeyboardInterrupt:
        return 0  # told to stop before it served


async def _run(settings: Settings, plan: ServePlan, url: str, listener: socket.socket) -> int:
    await _upgrade(settings, url)
    async with AsyncExitStack() as stack:
        demo = await _prepare(settings, plan, url)
        if plan.demo is not None and demo is not None and demo.provider.simulated:
            await stack.enter_async_context(demo_simulator(plan.demo.demo_simulator_port))
        address = url_of(listener)

        def serving() -> None:
            plan.announce(address, demo)

        if plan.workers > 1:
            group = WorkerPlan(
                count=plan.workers,
                listener_fd=listener.fileno(),
                environment=_environment(settings, url),
                grace_s=settings.drain_grace_s,
            )
            return await WorkerGroup(group, SystemClock(), serving).run()
        watchdog = ExitWatchdog(settings.drain_grace_s + HARD_EXIT_S)
        hooks = ServeHooks(serving=serving, leaving=watchdog.arm)
        await serve(settings.model_copy(update={"bootstrap_file": None}), url, [listener], hooks)
    return 0


async def _upgrade(settings: Settings, url: str) -> None:
    database = Database(url, 1)
    try:
        await migrate.is_current(database)  # says in one line when the database is away
    finally:
        await database.close()
    await migrate.upgrade(direct_url(settings, url))


async def _prepare(settings: Settings, plan: ServePlan, url: str) -> Demo | None:
    """Apply the bootstrap file, here and once: a worker that is started again must not undo what the admin API changed since."""
    async with open_tenants(settings, url) as tenants:
        for tenant, made in await apply_bootstrap(tenants, settings):
            print(f"API key of the tenant {tenant}, shown this once: {made}", flush=True)
        if plan.demo is None:
            return None
        provider = plan.provider or await choose_provider(plan.demo)
        if not provider.reachable:
            warn(
                f"{provider.provider.base_url} (GATEWAY_PROVIDER_BASE_URL) did not answer. The tenant demo asks it for the model "
                f"{provider.route.model} all the same; until it answers, turns fail."
            )
        await ensure_tenant(tenants, provider)
        key = await ensure_key(tenants, settings.data_dir, plan.demo.demo_key)
        return Demo(provider=provider, key=key)


def _environment(settings: Settings, url: str) -> dict[str, str]:
    """Of the workers."""
    inherited = {name: value for name, value in os.environ.items() if name != "GATEWAY_BOOTSTRAP_FILE"}
    return {**inherited, "DATABASE_URL": url, "GATEWAY_LOG_LEVEL": settings.log_level}


def _run_worker(settings: Settings, arguments: argparse.Namespace) -> int:
    if settings.database_url is None or arguments.ready_fd is None or arguments.parent is None:
        raise CommandError("--fd is for workers that `serve --workers` starts.", code=MISUSED)
    die_with_parent(arguments.parent)
    stop_on_sigterm()
    watchdog = ExitWatchdog(settings.drain_grace_s + HARD_EXIT_S)

    def serving() -> None:
        os.write(arguments.ready_fd, READY)
        os.close(arguments.ready_fd)

    hooks = ServeHooks(serving=serving, leaving=watchdog.arm)
    try:
        with closing(socket.socket(fileno=arguments.fd)) as listener, asyncio.Runner(loop_factory=new_event_loop_factory()) as runner:
            runner.run(serve(settings, settings.database_url.get_secret_value(), [listener], hooks))
    except KeyboardInterrupt:
        return 0
    return 0


def _announce(url: str, demo: Demo | None) -> None:
    print(f"The gateway takes requests at {url}", flush=True)
    if demo is None:
        return
    print(f"Tenant demo: {answers_come_from(demo.provider)}", flush=True)
    if demo.key.value is not None and demo.key.new:
        kept = "" if demo.key.file is None else f" and kept in {demo.key.file}"
        print(f"API key of the tenant demo, shown this once{kept}: {demo.key.value}", flush=True)
    elif demo.key.variable is not None:
        print(f"API key of the tenant demo: the value of {demo.key.variable}", flush=True)
    elif demo.key.file is not None:
        print(f"API key of the tenant demo: in {demo.key.file}", flush=True)
    else:
        print("API key of the tenant demo: shown where it was made. `python -m app keys create demo` makes another.", flush=True)


def answers_come_from(demo: DemoProvider) -> str:
    """Who answers, in a sentence that cannot be misread."""
    if demo.simulated:
        return "answers come from the simulator, not from a model."
    if not demo.reachable:
        return f"answers are to come from {demo.route.model} at {demo.provider.base_url}, which did NOT answer just now."
    return f"answers come from {demo.route.model} at {demo.provider.base_url}."
