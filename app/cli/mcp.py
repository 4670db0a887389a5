"""``mcp``: the MCP servers whose tools a tenant's sessions may use."""

import argparse
import sys

import msgspec

from app.api.admin_schemas import McpServersBody
from app.cli.admin import FILE_HELP, changed_tenant, known_tenant, read_document, read_shape, with_tenants
from app.cli.errors import MISUSED, CommandError
from app.cli.output import as_json, credential_word, table, yes_no
from app.domain.mcp_servers import McpServerSpec
from app.domain.tenants import TenantChange, TenantInfo
from app.store.tenants import TenantRepository

Servers = tuple[McpServerSpec, ...]


def add_mcp(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("mcp", help="list, set and remove MCP servers")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the MCP servers of all tenants, or of one")
    listing.add_argument("tenant", nargs="?")
    listing.set_defaults(run=_list)
    setting = actions.add_parser(
        "set",
        help="set a tenant's MCP servers from a file, or one of them from options",
        description="With --file all servers of the tenant are replaced. With --name one server is added or changed; what no option "
        "names stays as it is.",
    )
    setting.add_argument("tenant")
    source = setting.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", help=f"{FILE_HELP}: an object with the list `mcp_servers`")
    source.add_argument("--name", help="the one server to add or change")
    setting.add_argument("--url", help="such as https://tools.example.com/mcp; needed for a new server")
    setting.add_argument("--credential", help="env:NAME, or - to read it from standard input; a literal would be seen in the process list")
    setting.add_argument("--timeout-s", type=float, help="of one call, in seconds (default 60)")
    setting.add_argument("--needs-approval", action=argparse.BooleanOptionalAction, help="whether somebody has to approve each call")
    setting.add_argument("--enabled", action=argparse.BooleanOptionalAction, help="whether it is used at all")
    setting.set_defaults(run=_set)
    removing = actions.add_parser("remove", help="remove an MCP server")
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
    given = _given(arguments)
    if arguments.file is not None and given:
        raise CommandError("--file replaces all servers: the options for one of them go with --name.", code=MISUSED)
    body = None if arguments.file is None else read_shape(read_document(arguments.file), McpServersBody)
    if given.get("credential") == "-":
        given["credential"] = sys.stdin.readline().strip()

    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        if body is not None:
            servers = body.mcp_servers
        else:
            servers = _with_one((await known_tenant(tenants, arguments.tenant)).mcp_servers, arguments.name, given)
        return [await changed_tenant(tenants, arguments.tenant, TenantChange(mcp_servers=servers))]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> list[TenantInfo]:
        known = (await known_tenant(tenants, arguments.tenant)).mcp_servers
        kept = tuple(server for server in known if server.name != arguments.name)
        if len(kept) == len(known):
            raise CommandError(f"The tenant has no MCP server {arguments.name!r}.")
        return [await changed_tenant(tenants, arguments.tenant, TenantChange(mcp_servers=kept))]

    _print(with_tenants(work), json=arguments.json)
    return 0


def _given(arguments: argparse.Namespace) -> dict[str, object]:
    names = ("url", "credential", "timeout_s", "needs_approval", "enabled")
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def _with_one(kept: Servers, name: str, given: dict[str, object]) -> Servers:
    """``kept`` with the server of the options in its old place, or at the end."""
    if any(server.name == name for server in kept):
        return tuple(msgspec.structs.replace(server, **given) if server.name == name else server for server in kept)
    if "url" not in given:
        raise CommandError(f"The tenant has no MCP server {name!r} yet: a new one needs --url.", code=MISUSED)
    return (*kept, msgspec.convert({"name": name, **given}, McpServerSpec))


def _print(infos: list[TenantInfo], *, json: bool) -> None:
    if json:
        print(as_json({"data": [{"tenant": info.name, "mcp_servers": info.mcp_servers} for info in infos]}))
        return
    rows = [
        (
            info.name,
            server.name,
            server.url,
            credential_word(info.mcp_credentials[server.name]),
            f"{server.timeout_s:g}",
            yes_no(server.needs_approval),
            yes_no(server.enabled),
        )
        for info in infos
        for server in info.mcp_servers
    ]
    print(table(("tenant", "name", "url", "credential", "timeout s", "approval", "enabled"), rows))
