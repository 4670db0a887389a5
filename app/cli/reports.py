"""``providers health``, ``providers reset`` and ``tenants usage``: what the gateway's replicas know and count, in their database."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.api.admin_schemas import ProviderView, RoutePlace, provider_views
from app.api.route_health import HealthDesk
from app.api.usage_schemas import UsageList, period, usage_views
from app.cli.admin import known_tenant
from app.cli.databases import connect, open_database, read_settings, start_logging, tenants_in
from app.cli.errors import CommandError
from app.cli.output import as_json, credential_word, table
from app.clock import SystemClock
from app.domain.tenants import CredentialState
from app.store.cooldowns import Cooldowns
from app.store.rate_windows import RateWindows
from app.store.tenants import TenantRepository
from app.store.usage import UsageRepository

Answer = TypeVar("Answer")
_NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    tenants: TenantRepository
    desk: HealthDesk
    usage: UsageRepository


def add_health(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``providers health``."""
    health = actions.add_parser(
        "health",
        help="show how healthy every route is and what is used of its limits",
        description="What all replicas know of each route. A credential from the environment has to be set here too, or what failed with "
        "it is not found. Limits that a provider told of are known to the running replicas alone: GET /admin/providers shows them.",
    )
    health.add_argument("--tenant", help="only routes of this tenant")
    health.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    health.set_defaults(run=_health)


def add_reset(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``providers reset``."""
    reset = actions.add_parser(
        "reset",
        help="end the cool-downs of a provider's routes",
        description="Forgets what failed with a provider, or with one of its models, so that all replicas call it again within about a "
        "second. A credential from the environment has to be set here too, or what failed with it is not found.",
    )
    reset.add_argument("tenant")
    reset.add_argument("provider")
    reset.add_argument("model", nargs="?", help="only routes to this model")
    reset.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    reset.set_defaults(run=_reset)


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
        health = await sources.desk.read(infos)
        return [view for info in infos for view in provider_views(info, health)]

    _print_health(_with_sources(work), json=arguments.json)
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    async def work(sources: _Sources) -> list[ProviderView]:
        info = await known_tenant(sources.tenants, arguments.tenant)
        state = info.credentials.get(arguments.provider)
        if state in {CredentialState.MISSING, CredentialState.UNREADABLE}:
            raise CommandError(
                f"The credential of {arguments.provider!r} is {credential_word(state)}, so what failed with it cannot be found: set it for "
                "this command too, or ask the gateway: POST /admin/providers/{tenant}/{provider}/reset."
            )
        if not await sources.desk.reset(info, arguments.provider, arguments.model):
            wanted = arguments.provider if arguments.model is None else f"{arguments.provider}={arguments.model}"
            raise CommandError(f"The tenant {info.name!r} is disabled, or has no route {wanted!r}.")
        return [view for view in provider_views(info, await sources.desk.read([info])) if view.name == arguments.provider]

    _print_health(_with_sources(work), json=arguments.json)
    return 0


def _print_health(views: list[ProviderView], *, json: bool) -> None:
    if json:
        print(as_json({"data": views}))
        return
    header = ("tenant", "provider", "credential", "chain", "model", "state", "until", "failures", "last failure", "calls/60s", "tokens/60s")
    print(table(header, [_health_row(view, place) for view in views for place in view.routes]))


def _usage(arguments: argparse.Namespace) -> int:
    begin, end = period(arguments.first, arguments.last, SystemClock().now().date())

    async def work(sources: _Sources) -> UsageList:
        if arguments.name is not None:
            await known_tenant(sources.tenants, arguments.name)
        return UsageList(data=usage_views(await sources.usage.report(arguments.name, begin, end)))

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
    credential = credential_word(view.credential)
    if health is None:
        return (view.tenant, view.name, credential, chain, place.model, "tenant disabled", *[_NONE] * 5)
    last = health.last_failures[0] if health.last_failures else None
    failure = _NONE if last is None else f"{last.reason.value}{'' if last.status is None else f' {last.status}'} at {last.at}"
    return (
        view.tenant,
        view.name,
        credential,
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
            desk = HealthDesk(tenants, Cooldowns(database), RateWindows(database), SystemClock())
            return await work(_Sources(tenants=tenants, desk=desk, usage=UsageRepository(database)))

    with open_database(settings, create=False) as url:
        return asyncio.run(run(url))
