"""``migrate``: the database's schema."""

import argparse
import asyncio

from app.cli.databases import direct_url, open_database, read_settings, start_logging
from app.cli.errors import FAILED, MISUSED, CommandError
from app.settings import Settings
from app.store import migrate
from app.store.engine import Database


def add_migrate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "migrate",
        help="bring the database to the newest schema",
        description="Bring the database of DATABASE_URL (else the embedded Postgres in GATEWAY_DATA_DIR) to the newest schema. Safe when "
        "several run at once.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing; exit 1 unless schema, migrations and the code's tables agree")
    what.add_argument(
        "--revision", metavar="MESSAGE", help="then draft a migration from what the code's tables have and the schema has not"
    )
    parser.set_defaults(run=_migrate)


def _migrate(arguments: argparse.Namespace) -> int:
    settings = read_settings()
    start_logging(settings, "WARNING")
    if arguments.revision is not None and not arguments.revision.strip():
        raise CommandError("--revision needs a message that says what changes.", code=MISUSED)
    with open_database(settings, create=True) as url:
        return asyncio.run(_run(arguments, settings, url))


async def _run(arguments: argparse.Namespace, settings: Settings, url: str) -> int:
    current = await _is_current(url)  # says in one line when the database is away
    direct = direct_url(settings, url)
    if arguments.check:
        return await _check(direct, current=current)
    await migrate.upgrade(direct)
    print("The database was at the newest schema already." if current else "The database is at the newest schema now.")
    if arguments.revision is not None:
        await migrate.autogenerate(direct, arguments.revision)
        print("A migration was drafted in migrations/versions: read it before you use it.")
    return 0


async def _check(url: str, *, current: bool) -> int:
    if not current:
        print("The database is not at the newest schema: run `python -m app migrate`.")
        return FAILED
    if not await migrate.check(url):
        print("The tables in the code differ from the migrated schema: draft a migration with --revision.")
        return FAILED
    print("Schema, migrations and the code's tables agree.")
    return 0


async def _is_current(url: str) -> bool:
    database = Database(url, 1)
    try:
        return await migrate.is_current(database)
    finally:
        await database.close()
