"""``providers``: the endpoints that a tenant's routes call."""

import argparse
import sys

from app.api.admin_schemas import ProvidersBody, ProviderView, provider_views
from app.cli.admin import FILE_HELP, changed_tenant, known_tenant, read_document, read_shape, with_tenants
from app.cli.errors import MISUSED, CommandError
from app.cli.output import as_json, credential_word, table
from app.cli.reports import add_health, add_reset
from app.domain.model import ApiMode
from app.domain.tenants import ProviderSpec, TenantChange
from app.store.tenants import TenantRepository


def add_providers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("providers", help="list and set providers, show and reset their health")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the providers of all tenants, or of one")
    listing.add_argument("tenant", nargs="?")
    listing.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    listing.set_defaults(run=_list)
    add_health(actions)
    add_reset(actions)
    setting = actions.add_parser(
        "set",
        help="set a tenant's providers from a file, or one of them from options",
        description="With --file all providers of the tenant are replaced. With --name one provider is added or changed; what no option "
        "names stays as it is.",
    )
    setting.add_argument("tenant")
    source = setting.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", help=f"{FILE_HELP}: an object with the list `providers`")
    source.add_argument("--name", help="the one provider to add or change")
    setting.add_argument("--base-url", help="such as https://api.openai.com/v1; needed for a new provider")
    setting.add_argument("--api-mode", choices=[mode.value for mode in ApiMode], help="the protocol it speaks (default chat_completions)")
    setting.add_argument("--api-key", help="env:NAME, or - to read it from standard input; a literal would be seen in the process list")
    setting.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    setting.set_defaults(run=_set)


def _list(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> list[ProviderView]:
        infos = await tenants.infos() if arguments.tenant is None else [await known_tenant(tenants, arguments.tenant)]
        return [view for info in infos for view in provider_views(info)]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    given = (arguments.base_url, arguments.api_mode, arguments.api_key)
    if arguments.file is not None and any(option is not None for option in given):
        raise CommandError("--file replaces all providers: the options for one of them go with --name.", code=MISUSED)
    body = None if arguments.file is None else read_shape(read_document(arguments.file), ProvidersBody)
    api_key = sys.stdin.readline().strip() if arguments.api_key == "-" else arguments.api_key

    async def work(tenants: TenantRepository) -> list[ProviderView]:
        if body is not None:
            providers = body.providers
        else:
            kept = (await known_tenant(tenants, arguments.tenant)).providers
            providers = _with_one(kept, arguments, api_key)
        return provider_views(await changed_tenant(tenants, arguments.tenant, TenantChange(providers=providers)))

    _print(with_tenants(work), json=arguments.json)
    return 0


def _with_one(kept: tuple[ProviderSpec, ...], arguments: argparse.Namespace, api_key: str | None) -> tuple[ProviderSpec, ...]:
    """``kept`` with the provider of the options in its old place, or at the end."""
    known = next((provider for provider in kept if provider.name == arguments.name), None)
    base_url = arguments.base_url or (known.base_url if known else None)
    if base_url is None:
        raise CommandError(f"The tenant has no provider {arguments.name!r} yet: a new one needs --base-url.", code=MISUSED)
    api_mode = ApiMode(arguments.api_mode) if arguments.api_mode else known.api_mode if known else ApiMode.CHAT_COMPLETIONS
    one = ProviderSpec(
        name=arguments.name,
        base_url=base_url,
        api_mode=api_mode,
        api_key=api_key if api_key is not None else known.api_key if known else None,
        headers=known.headers if known else {},
        rpm=known.rpm if known else None,
        tpm=known.tpm if known else None,
    )
    if known is None:
        return (*kept, one)
    return tuple(one if provider.name == one.name else provider for provider in kept)


def _print(views: list[ProviderView], *, json: bool) -> None:
    if json:
        print(as_json({"data": views}))
        return
    rows = [
        (
            view.tenant,
            view.name,
            view.api_mode.value,
            view.base_url,
            credential_word(view.credential),
            ", ".join(route.model for route in view.routes),
        )
        for view in views
    ]
    print(table(("tenant", "name", "api mode", "base url", "credential", "models"), rows))
