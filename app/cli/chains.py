"""``chains``: the ordered routes that a tenant's turns are answered by."""

import argparse

from app.api.admin_schemas import ChainsBody
from app.cli.admin import FILE_HELP, changed_tenant, known_tenant, read_document, read_shape, with_tenants
from app.cli.errors import MISUSED, CommandError
from app.cli.output import as_json, table
from app.domain.tenants import Purpose, RouteSpec, TenantChange, TenantInfo
from app.store.tenants import TenantRepository


def add_chains(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("chains", help="list and set chains of routes")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the chains of all tenants, or of one")
    listing.add_argument("tenant", nargs="?")
    listing.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    listing.set_defaults(run=_list)
    setting = actions.add_parser(
        "set",
        help="set a tenant's chains from a file, or one chain from options",
        description="With --file all chains of the tenant are replaced. With --route one chain is; a route that was in it keeps its "
        "limits, a new one has the defaults.",
    )
    setting.add_argument("tenant")
    source = setting.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", help=f"{FILE_HELP}: an object with the table `chains`")
    source.add_argument("--route", action="append", metavar="PROVIDER=MODEL", help="a route; repeat it in the order of the chain")
    setting.add_argument(
        "--purpose", choices=[purpose.value for purpose in Purpose], default=Purpose.CHAT.value, help="with --route (default %(default)s)"
    )
    setting.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    setting.set_defaults(run=_set)


def _list(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        return await tenants.infos() if arguments.tenant is None else [await known_tenant(tenants, arguments.tenant)]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    body = None if arguments.file is None else read_shape(read_document(arguments.file), ChainsBody)
    pairs = [_pair(text) for text in arguments.route or ()]

    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        if body is not None:
            chains = body.chains
        else:
            kept = (await known_tenant(tenants, arguments.tenant)).chains
            purpose = Purpose(arguments.purpose)
            chains = {**kept, purpose: _chain(pairs, kept.get(purpose, ()))}
        return [await changed_tenant(tenants, arguments.tenant, TenantChange(chains=chains))]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _pair(text: str) -> tuple[str, str]:
    provider, separator, model = text.partition("=")
    if not (provider and separator and model):
        raise CommandError(f"--route takes PROVIDER=MODEL, not {text!r}.", code=MISUSED)
    return provider, model


def _chain(pairs: list[tuple[str, str]], kept: tuple[RouteSpec, ...]) -> tuple[RouteSpec, ...]:
    known = {(route.provider, route.model): route for route in kept}
    return tuple(known.get(pair) or RouteSpec(provider=pair[0], model=pair[1]) for pair in pairs)


def _print(infos: list[TenantInfo], *, json: bool) -> None:
    if json:
        print(as_json({"data": [{"tenant": info.name, "chains": info.chains} for info in infos]}))
        return
    rows = [
        (info.name, purpose.value, str(position), route.provider, route.model, str(route.context_window), str(route.output_tokens))
        for info in infos
        for purpose, chain in info.chains.items()
        for position, route in enumerate(chain)
    ]
    print(table(("tenant", "purpose", "position", "provider", "model", "context window", "output tokens"), rows))
