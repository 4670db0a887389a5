"""The database of a command: the one of ``DATABASE_URL``, or the embedded server of ``GATEWAY_DATA_DIR``."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from app.cli.errors import MISUSED, CommandError
from app.clock import SystemClock
from app.logs import configure_logging
from app.main import webhook_rules
from app.settings import Settings
from app.store import migrate
from app.store.embedded import start_embedded
from app.store.engine import Database, plain_url
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_POOL_SIZE = 2


def read_settings() -> Settings:
    """The settings of the environment. Raises pydantic's ValidationError, CommandError."""
    settings = Settings()
    if settings.log_level.upper() not in _LEVELS:
        raise CommandError(f"GATEWAY_LOG_LEVEL: must be one of {', '.join(_LEVELS)}", code=MISUSED)
    return settings


def start_logging(settings: Settings, level: str | None = None) -> None:
    """Send logs to standard error as JSON, without the settings' secrets. ``level`` wins over the settings' own."""
    secrets = (settings.database_url, settings.direct_database_url, settings.admin_key, settings.secret_key)
    configure_logging(level or settings.log_level, [secret.get_secret_value() for secret in secrets if secret is not None])


def warn(text: str) -> None:
    """Say on standard error what the person at the terminal should know before it matters."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def open_database(settings: Settings, *, create: bool, serving: bool = False) -> Iterator[str]:
    """The URL of the database while the context lasts.

    An embedded server that nobody runs is started and stopped again; with ``create`` also when its folder holds no data yet. With
    ``serving`` a server that another process runs is warned of: it ends with that process. Raises CommandError, EmbeddedPostgresError.
    """
    if settings.database_url is not None:
        yield _checked(settings.database_url.get_secret_value())
        return
    if not create and not (settings.data_dir / "cluster" / "PG_VERSION").exists():
        raise CommandError(
            f"There is no database: DATABASE_URL is not set, and {settings.data_dir} (GATEWAY_DATA_DIR) holds no embedded Postgres."
        )
    with start_embedded(settings.data_dir) as server:
        if serving and not server.owned:
            warn(
                f"the embedded Postgres of {settings.data_dir} is run by another process, and this gateway loses its database when that "
                "one ends. Choose another GATEWAY_DATA_DIR, or set DATABASE_URL."
            )
        yield server.url


def direct_url(settings: Settings, url: str) -> str:
    """Where migrations connect: past a pooler, if there is one."""
    return url if settings.direct_database_url is None else _checked(settings.direct_database_url.get_secret_value())


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Database]:
    """The database at ``url``. Raises CommandError when its schema is not that of this version, UnavailableError."""
    database = Database(url, _POOL_SIZE)
    try:
        if not await migrate.is_current(database):
            raise CommandError("The database's schema is not the one of this version: run `python -m app migrate` first.")
        yield database
    finally:
        await database.close()


def tenants_in(database: Database, settings: Settings) -> TenantRepository:
    """The tenants in a database."""
    sealer = Sealer(settings.secret_key.get_secret_value() if settings.secret_key else None)
    return TenantRepository(database, SystemClock(), sealer, os.environ, tool_rules=webhook_rules(settings))


@asynccontextmanager
async def open_tenants(settings: Settings, url: str) -> AsyncIterator[TenantRepository]:
    """The tenants in the database at ``url``. Raises CommandError when its schema is not that of this version, UnavailableError."""
    async with connect(url) as database:
        yield tenants_in(database, settings)


def _checked(url: str) -> str:
    try:
        return plain_url(url)
    except ValueError as error:
        raise CommandError(f"DATABASE_URL: {error}", code=MISUSED) from None
