"""``providers health`` and ``tenants usage``: what the gateway's replicas know and count, read from their database."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.api.admin_schemas import ProviderView, RoutePlace, provider_views
from app.api.route_health import HealthReader
from app.api.usage_schemas import UsageList, period, usage_list
from app.cli.admin import known_tenant
from app.cli.databases import connect, open_database, read_settings, start_logging, tenants_in
from app.cli.output import as_json, table
from app.clock import SystemClock
from app.store.cooldowns import Cooldowns
from app.store.rate_windows import RateWindows
from app.store.tenants import TenantRepository
from app.store.usage import UsageRepository

Answer = TypeVar("Answer")
_NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    tenants: TenantRepository
    health: HealthReader
    usage: UsageRepository


def add_health(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``providers health``."""
    health = actions.add_parser(
        "health",
        help="show how healthy every route is and what is used of its limits",
        description="What all replicas know of each route. A credential from the environment has to be set here too, or what failed with "
        "it is not found.",
    )
    health.add_argument("--tenant", help="only routes of this tenant")
    health.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    health.set_defaults(run=_health)


def add_usage(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``tenants usage``."""
    usage = actions.add_parser("usage", help="show turns, tokens and cost per tenant, day and route")
    usage.add_argument("name", nargs="?", help="only this tenant")
    usage.add_argument("--from", dest="first", metavar="DAY", help="first day, YYYY-MM-DD in UTC (default: the last 30 days)")
    usage.add_argument("--to", dest="last", metavar="DAY", help="last day, included (default: today)")
    usage.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    usage.set_defaults(run=_usage)


def _health(arguments: argparse.Namespace) -> int:
    async def work(sources: _Sources) -> list[ProviderView]:
        tenants = sources.tenants
        infos = await tenants.infos() if arguments.tenant is None else [await known_tenant(tenants, arguments.tenant)]
        health = await sources.health.read(infos)
        return [view for info in infos for view in provider_views(info, health)]

    views = _with_sources(work)
    if arguments.json:
        print(as_json({"data": views}))
        return 0
    header = ("tenant", "provider", "chain", "model", "state", "until", "failures", "last failure", "calls/60s", "tokens/60s")
    print(table(header, [_health_row(view, place) for view in views for place in view.routes]))
    return 0


def _usage(arguments: argparse.Namespace) -> int:
    begin, end = period(arguments.first, arguments.last, SystemClock().now().date())

    async def work(sources: _Sources) -> UsageList:
        if arguments.name is not None:
            await known_tenant(sources.tenants, arguments.name)
        return usage_list(await sources.usage.report(arguments.name, begin, end))

    report = _with_sources(work)
    if arguments.json:
        print(as_json(report))
        return 0
    rows = [
        (
            line.tenant,
            line.day,
            line.route.provider if line.route else _NONE,
            line.route.model if line.route else _NONE,
            str(line.turns),
            str(line.attempts),
            str(line.failed),
            str(line.usage.input_tokens),
            str(line.usage.output_tokens),
            _NONE if line.cost_usd is None else f"{line.cost_usd:.6f}",
        )
        for line in report.data
    ]
    print(table(("tenant", "day", "provider", "model", "turns", "attempts", "failed", "input", "output", "cost usd"), rows))
    return 0


def _health_row(view: ProviderView, place: RoutePlace) -> tuple[str, ...]:
    health = place.health
    chain = f"{place.purpose.value} {place.position}"
    if health is None:
        return (view.tenant, view.name, chain, place.model, "tenant disabled", *[_NONE] * 5)
    last = health.last_failures[0] if health.last_failures else None
    failure = _NONE if last is None else f"{last.reason.value}{'' if last.status is None else f' {last.status}'} at {last.at}"
    return (
        view.tenant,
        view.name,
        chain,
        place.model,
        health.state.value,
        health.cool_down_until or _NONE,
        str(health.failures),
        failure,
        _use([(window.calls, window.rpm) for window in health.windows]),
        _use([(window.tokens, window.tpm) for window in health.windows]),
    )


def _use(windows: list[tuple[int, int | None]]) -> str:
    """Use of the limits of a kind: the credential's, then the model's."""
    return ", ".join(f"{used}/{limit}" for used, limit in windows if limit is not None) or _NONE


def _with_sources(work: Callable[[_Sources], Awaitable[Answer]]) -> Answer:
    settings = read_settings()
    start_logging(settings, "WARNING")

    async def run(url: str) -> Answer:
        async with connect(url) as database:
            tenants = tenants_in(database, settings)
            health = HealthReader(tenants, Cooldowns(database), RateWindows(database), SystemClock())
            return await work(_Sources(tenants=tenants, health=health, usage=UsageRepository(database)))

    with open_database(settings, create=False) as url:
        return asyncio.run(run(url))
