"""The database connection pool. A connection is held for one statement or one short transaction, never longer."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from app.domain.errors import UnavailableError

POOL_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 15.0


def async_url(url: str) -> str:
    """The URL with the driver that SQLAlchemy needs: ``postgres://`` and ``postgresql://`` become ``postgresql+asyncpg://``."""
    for prefix in ("postgresql+asyncpg://", "postgresql://", "postgres://"):
        if url.startswith(prefix):
            return "postgresql+asyncpg://" + url[len(prefix) :]
    msg = "the database URL must begin with postgresql://"
    raise ValueError(msg)


def plain_url(url: str) -> str:
    """The URL as the driver itself takes it."""
    return async_url(url).replace("postgresql+asyncpg://", "postgresql://", 1)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (OSError, PoolTimeoutError, OperationalError, InterfaceError) as error:
        raise UnavailableError("storage_unavailable", "The database cannot be reached right now.") from error
    except DBAPIError as error:
        # A restarting server refuses or drops connections with SQLSTATE class 57 or 08, which asyncpg does not call operational.
        state = getattr(error.orig, "sqlstate", None) or ""
        if error.connection_invalidated or state.startswith(("57P", "08", "53")):
            raise UnavailableError("storage_unavailable", "The database cannot be reached right now.") from error
        raise


class Database:
    """A pool of connections. Raises UnavailableError (``storage_unavailable``) when the server is away or the pool is exhausted."""

    def __init__(self, url: str, pool_size: int) -> None:
        self._engine = create_async_engine(
            async_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
            pool_reset_on_return=None,
            hide_parameters=True,
            connect_args={"command_timeout": COMMAND_TIMEOUT_S, "server_settings": {"application_name": "agent-gateway", "jit": "off"}},
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def fetch(self, statement: Executable, params: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Run one statement as its own transaction and return its rows (none for a statement that returns none)."""
        with _unavailable():
            async with self._autocommit.connect() as connection:
                result = await connection.execute(statement, params)
                return result.all() if result.returns_rows else ()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A short transaction: committed at the end, rolled back on an error."""
        with _unavailable():
            async with self._engine.begin() as connection:
                yield connection

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()
