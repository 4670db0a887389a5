"""``tenants``, ``keys`` and ``apply``."""

import argparse

from app.api.admin_schemas import KeyView, TenantView, key_view, tenant_view
from app.api.tenant_specs import parse_bootstrap
from app.cli.admin import FILE_HELP, known_tenant, read_document, read_shape, read_text, with_tenants
from app.cli.errors import MISUSED, CommandError
from app.cli.output import as_json, credential_word, table, yes_no
from app.cli.reports import add_usage
from app.domain.ids import KeyId
from app.domain.tenants import TenantSpec
from app.main import apply_tenants
from app.store.tenants import TenantRepository

_SHOWN_ONCE = "shown this once"


def add_tenants(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("tenants", help="create, list, show, disable and enable tenants")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a tenant", description="Create a tenant. Without api_keys in the file a key is made."
    )
    create.add_argument("name")
    create.add_argument("--file", help=f"{FILE_HELP}: providers, chains, settings, api_keys as in a [[tenants]] table")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list all tenants")
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="show a tenant with its keys, providers and chains")
    show.add_argument("name")
    show.set_defaults(run=_show)
    disable = actions.add_parser("disable", help="turn all keys of a tenant away")
    disable.add_argument("name")
    disable.set_defaults(run=_set_disabled, disabled=True)
    enable = actions.add_parser("enable", help="undo disable")
    enable.add_argument("name")
    enable.set_defaults(run=_set_disabled, disabled=False)
    add_usage(actions)
    for action in (create, listing, show, disable, enable):
        action.add_argument("--json", action="store_true", help="as JSON, like the admin API")


def add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group."""
    group = commands.add_parser("keys", help="create, list, rotate and disable API keys")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a key for a tenant; it is shown once")
    create.add_argument("tenant")
    create.add_argument("--name", default="", help="your note of what the key is for")
    create.set_defaults(run=_create_key)
    listing = actions.add_parser("list", help="list a tenant's keys, without the keys themselves")
    listing.add_argument("tenant")
    listing.set_defaults(run=_list_keys)
    rotate = actions.add_parser("rotate", help="make a key in place of another, which is disabled")
    rotate.add_argument("key_id", metavar="KEY_ID")
    rotate.set_defaults(run=_rotate_key)
    disable = actions.add_parser("disable", help="disable a key")
    disable.add_argument("key_id", metavar="KEY_ID")
    disable.set_defaults(run=_disable_key)
    for action in (create, listing, rotate, disable):
        action.add_argument("--json", action="store_true", help="as JSON, like the admin API")


def add_apply(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "apply",
        help="apply a bootstrap file",
        description="Create the tenants of a bootstrap file (TOML) or make them match it, as GATEWAY_BOOTSTRAP_FILE does at start.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="as JSON, like the admin API")
    parser.set_defaults(run=_apply)


def _create(arguments: argparse.Namespace) -> int:
    document = {} if arguments.file is None else read_document(arguments.file)
    if document.setdefault("name", arguments.name) != arguments.name:
        raise CommandError("The file has another name for the tenant.", code=MISUSED)
    spec = read_shape(document, TenantSpec)

    async def work(tenants: TenantRepository) -> TenantView:
        return tenant_view(*await tenants.apply(spec, generate_key=True, create_only=True))

    _print_applied([with_tenants(work)], "is created", json=arguments.json)
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    text = read_text(arguments.file, "FILE")
    parse_bootstrap(text)  # a mistake in it is told before a database is looked for

    async def work(tenants: TenantRepository) -> list[TenantView]:
        return [tenant_view(info, key) for info, key in await apply_tenants(tenants, text)]

    _print_applied(with_tenants(work), "is as configured", json=arguments.json)
    return 0


def _print_applied(views: list[TenantView], outcome: str, *, json: bool) -> None:
    if json:
        print(as_json({"data": views}) if len(views) != 1 else as_json(views[0]))
        return
    for view in views:
        print(f"Tenant {view.name} {outcome}.")
        if view.api_key is not None:
            print(f"API key of the tenant {view.name}, {_SHOWN_ONCE}: {view.api_key}")


def _list(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> list[TenantView]:
        return [tenant_view(info) for info in await tenants.infos()]

    views = with_tenants(work)
    if arguments.json:
        print(as_json({"data": views}))
        return 0
    rows = [
        (
            view.name,
            view.id,
            yes_no(view.disabled),
            str(sum(not key.disabled for key in view.keys)),
            str(len(view.providers)),
            view.created_at,
        )
        for view in views
    ]
    print(table(("name", "id", "disabled", "keys", "providers", "created"), rows))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> TenantView:
        return tenant_view(await known_tenant(tenants, arguments.name))

    _print_tenant(with_tenants(work), json=arguments.json)
    return 0


def _set_disabled(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> TenantView:
        await tenants.set_disabled(arguments.name, arguments.disabled)
        return tenant_view(await known_tenant(tenants, arguments.name))

    view = with_tenants(work)
    if arguments.json:
        print(as_json(view))
    else:
        print(f"Tenant {view.name} is {'disabled' if view.disabled else 'enabled'}; every replica knows within seconds.")
    return 0


def _print_tenant(view: TenantView, *, json: bool) -> None:
    if json:
        print(as_json(view))
        return
    print(f"{view.name}  {view.id}  created {view.created_at}{'  disabled' if view.disabled else ''}")
    print("\nKeys\n" + _key_table(view.keys))
    providers = [(one.name, one.api_mode.value, one.base_url, credential_word(view.credentials[one.name])) for one in view.providers]
    print("\nProviders\n" + table(("name", "api mode", "base url", "credential"), providers))
    routes = [
        (purpose.value, str(position), route.provider, route.model, str(route.context_window))
        for purpose, chain in view.chains.items()
        for position, route in enumerate(chain)
    ]
    print("\nChains\n" + table(("purpose", "position", "provider", "model", "context window"), routes))
    tools = [(tool.name, tool.method.value, tool.url, credential_word(view.tool_secrets[tool.name])) for tool in view.tools]
    print("\nTools\n" + table(("name", "method", "url", "secret"), tools))
    print("\nSettings\n" + as_json(view.settings))


def _key_table(keys: tuple[KeyView, ...]) -> str:
    rows = [(key.id, key.name, f"...{key.hint}", yes_no(key.disabled), key.created_at) for key in keys]
    return table(("id", "name", "ends in", "disabled", "created"), rows)


def _create_key(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> KeyView:
        made = await tenants.add_key(arguments.tenant, arguments.name)
        if made is None:
            raise CommandError(f"There is no tenant named {arguments.tenant!r}.")
        return key_view(*made)

    _print_new_key(with_tenants(work), json=arguments.json)
    return 0


def _list_keys(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> tuple[KeyView, ...]:
        return tuple(key_view(key) for key in (await known_tenant(tenants, arguments.tenant)).keys)

    keys = with_tenants(work)
    print(as_json({"data": keys}) if arguments.json else _key_table(keys))
    return 0


def _rotate_key(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> KeyView:
        made = await tenants.rotate_key(KeyId(arguments.key_id))
        if made is None:
            raise CommandError(f"There is no key {arguments.key_id!r}.")
        return key_view(*made)

    _print_new_key(with_tenants(work), json=arguments.json)
    return 0


def _disable_key(arguments: argparse.Namespace) -> int:
    async def work(tenants: TenantRepository) -> None:
        if not await tenants.disable_key(KeyId(arguments.key_id)):
            raise CommandError(f"There is no key {arguments.key_id!r}.")

    with_tenants(work)
    if arguments.json:
        print(as_json({"id": arguments.key_id, "disabled": True}))
    else:
        print(f"Key {arguments.key_id} is disabled; every replica knows within seconds.")
    return 0


def _print_new_key(view: KeyView, *, json: bool) -> None:
    print(as_json(view) if json else f"API key {view.id}, {_SHOWN_ONCE}: {view.api_key}")
