"""Connections to Postgres, held for one statement or one short transaction, never longer.

Two ways, on one server: :class:`Statement` objects go straight to the driver (a fifth of the CPU, and every plain turn makes three of
them); everything else, and transactions, goes through SQLAlchemy Core.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
from sqlalchemy import Executable, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.sql.elements import ClauseElement

from app.domain.errors import UnavailableError

POOL_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 15.0
CORE_CONNECTIONS = 2
"""Connections for SQLAlchemy beside the driver's own pool: administration, listings, readiness."""

_DRIVER_FAULTS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver raises when a connection dies under it; the second is how it stumbles over one that died half-way."""
_DIALECT = make_url("postgresql+asyncpg://").get_dialect()()
_AWAY_STATES = ("57P", "08", "53")
"""SQLSTATE classes of a server that stops, starts, drops connections or has none left."""


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


class Statement:
    """A statement compiled once, for the driver. Values are passed as they are: ``bytes`` for ``bytea``, lists for arrays."""

    __slots__ = ("constants", "names", "text")

    def __init__(self, clause: ClauseElement) -> None:
        compiled = clause.compile(dialect=_DIALECT)
        self.text = str(compiled)
        self.names: tuple[str, ...] = tuple(getattr(compiled, "positiontup", None) or ())
        self.constants: dict[str, Any] = {name: value for name, value in (compiled.params or {}).items() if value is not None}
        """Values that stand in the statement itself."""


class _Record(asyncpg.Record):
    """A row whose columns are attributes, as SQLAlchemy's rows have them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (OSError, TimeoutError, PoolTimeoutError, OperationalError, InterfaceError, *_DRIVER_FAULTS) as error:
        raise UnavailableError("storage_unavailable", "The database cannot be reached right now.") from error
    except (DBAPIError, asyncpg.PostgresError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        state = getattr(cause, "sqlstate", None) or ""
        if state.startswith(_AWAY_STATES) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            raise UnavailableError("storage_unavailable", "The database cannot be reached right now.") from error
        raise


async def _run(connection: Any, statement: Statement, arguments: list[Any]) -> Sequence[Any]:
    try:
        rows: Sequence[Any] = await connection.fetch(statement.text, *arguments)
    except (OSError, TimeoutError, *_DRIVER_FAULTS):
        connection.terminate()  # in an unknown state: never to be used again
        raise
    return rows


async def _keep(_connection: Any) -> None:
    """In place of asyncpg's reset between two users: our statements leave nothing behind, and it costs a round trip."""


class Database:
    """Two small pools. Raises UnavailableError (``storage_unavailable``) when the server is away or no connection gets free."""

    def __init__(self, url: str, pool_size: int) -> None:
        self._url = plain_url(url)
        self._size = pool_size
        self._pool: asyncpg.Pool[Any] | None = None
        self._opening = asyncio.Lock()
        options = {"application_name": "agent-gateway", "jit": "off", "plan_cache_mode": "force_generic_plan"}
        self._options = options
        self._engine = create_async_engine(
            async_url(url),
            pool_size=CORE_CONNECTIONS,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"command_timeout": COMMAND_TIMEOUT_S, "server_settings": options},
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def fetch(self, statement: Statement | Executable, params: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Run one statement as its own transaction and return its rows (none for a statement that returns none)."""
        with _unavailable():
            if isinstance(statement, Statement):
                values = {**statement.constants, **(params or {})} if statement.constants else params or {}
                pool = self._pool or await self._open()
                arguments = [values[name] for name in statement.names]
                async with pool.acquire(timeout=POOL_TIMEOUT_S) as connection:
                    return await _run(connection, statement, arguments)
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
        if self._pool is not None:
            self._pool.terminate()
        await self._engine.dispose()

    async def _open(self) -> "asyncpg.Pool[Any]":
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._size,
                    max_inactive_connection_lifetime=0.0,
                    command_timeout=COMMAND_TIMEOUT_S,
                    record_class=_Record,
                    reset=_keep,
                    server_settings=self._options,
                )
            return self._pool
