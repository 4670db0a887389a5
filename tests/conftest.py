"""Fixtures of all tiers: one Postgres server a run, a fresh migrated database a test, the real clock."""

from collections.abc import AsyncIterator

import pytest

from app.clock import SystemClock
from app.ports import Clock
from app.store.engine import Database
from tests.postgres import PostgresServer, XdistNode, describe_server, server_for, share_with_worker, stop_server


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: XdistNode) -> None:
    share_with_worker(node)


def pytest_unconfigure(config: pytest.Config) -> None:
    stop_server(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    origin = describe_server(config)
    if origin is not None:
        terminalreporter.write_line(f"Postgres: {origin}")


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> PostgresServer:
    return server_for(pytestconfig)


@pytest.fixture
async def database_url(postgres: PostgresServer) -> AsyncIterator[str]:
    async with postgres.database() as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, pool_size=5)
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
def clock() -> Clock:
    return SystemClock()
