"""``tools``: the webhooks that a tenant's sessions can call."""

import argparse

from app.api.admin_schemas import ToolsBody
from app.cli.admin import FILE_HELP, changed_tenant, known_tenant, read_document, read_shape, with_tenants
from app.cli.errors import CommandError
from app.cli.output import as_json, credential_word, table, yes_no
from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import TenantChange, TenantInfo
from app.store.tenants import TenantRepository


def add_tools(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("tools", help="list, set and remove tenants' webhook tools")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the tools of all tenants, or of one")
    listing.add_argument("tenant", nargs="?")
    listing.set_defaults(run=_list)
    setting = actions.add_parser("set", help="set a tenant's tools from a file", description="All tools of the tenant are replaced.")
    setting.add_argument("tenant")
    setting.add_argument("--file", required=True, help=f"{FILE_HELP}: an object with the list `tools`")
    setting.set_defaults(run=_set)
    removing = actions.add_parser("remove", help="remove one tool of a tenant")
    removing.add_argument("tenant")
    removing.add_argument("name")
    removing.set_defaults(run=_remove)
    for action in (listing, setting, removing):
        action.add_argument("--json", action="store_true", help="as JSON, like the admin API")


def _list(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        return await tenants.infos() if arguments.tenant is None else [await known_tenant(tenants, arguments.tenant)]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    body = read_shape(read_document(arguments.file), ToolsBody)

    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        return [await changed_tenant(tenants, arguments.tenant, TenantChange(tools=body.tools))]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    def remove(present: tuple[WebhookToolSpec, ...]) -> tuple[WebhookToolSpec, ...]:
        kept = tuple(tool for tool in present if tool.name != arguments.name)
        if len(kept) == len(present):
            raise CommandError(f"The tenant has no tool {arguments.name!r}.")
        return kept

    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        info = await tenants.change_tools(arguments.tenant, remove)
        if info is None:
            raise CommandError(f"There is no tenant named {arguments.tenant!r}.")
        return [info]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _print(infos: list[TenantInfo], *, json: bool) -> None:
    if json:
        print(as_json({"data": [{"tenant": info.name, "tools": info.tools} for info in infos]}))
        return
    rows = [
        (info.name, tool.name, tool.method.value, tool.url, credential_word(info.tool_secrets[tool.name]), yes_no(tool.idempotent))
        for info in infos
        for tool in info.tools
    ]
    print(table(("tenant", "name", "method", "url", "secret", "idempotent"), rows))
