"""Migrations of several replicas that start at once, are killed, or meet somebody else's transaction (case C074)."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory

from app.store import migrate
from app.store.engine import Database
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
REPLICA = """
import asyncio, logging, sys
from app.store.migrate import upgrade
logging.basicConfig(level=logging.INFO)
asyncio.run(upgrade(sys.argv[1]))
"""
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@pytest.fixture
async def empty_url(postgres: PostgresServer) -> AsyncIterator[str]:
    url = await postgres.create_empty_database()
    yield url
    await postgres.drop_database(url)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def replica(url: str) -> Process:
    """A process that migrates."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPLICA, url, cwd=ROOT, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}, stderr=PIPE
    )


async def outcome(process: Process) -> tuple[int, int]:
    """The exit code, and how many migrations it ran."""
    async with asyncio.timeout(40):
        _, log = await process.communicate()
    assert process.returncode is not None
    return process.returncode, log.count(b"Running upgrade")


async def revisions() -> int:
    return len(list(ScriptDirectory.from_config(migrate.alembic_config()).walk_revisions()))


async def invalid_indexes(url: str) -> list[str]:
    async with connected(url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM pg_indexes WHERE schemaname = 'public'") > 10
        rows = await connection.fetch("SELECT indexrelid::regclass::text AS name FROM pg_index WHERE NOT indisvalid OR NOT indisready")
    return [row["name"] for row in rows]


async def is_current(url: str) -> bool:
    database = Database(url, pool_size=1)
    try:
        return await migrate.is_current(database)
    finally:
        await database.close()


async def advisory_locks(connection: Connection) -> int:
    """Those of this database: tests that run beside this one migrate others on the same server."""
    count = await connection.fetchval(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = pg_locks.database "
        "WHERE locktype = 'advisory' AND objid = $1 AND d.datname = current_database()",
        migrate.LOCK_KEY,
    )
    return int(count)


async def blocked(connection: Connection, count: int = 1) -> None:
    """Wait until so many statements of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(20):
        while await connection.fetchval(query) < count:
            await asyncio.sleep(0.05)


async def test_of_three_replicas_that_start_at_once_one_does_the_work(empty_url: str) -> None:
    results = await asyncio.gather(*[outcome(process) for process in [await replica(empty_url) for _ in range(3)]])
    assert [code for code, _ in results] == [0, 0, 0]
    assert sorted(ran for _, ran in results) == [0, 0, await revisions()]
    assert await migrate.check(empty_url)
    assert await is_current(empty_url)
    assert await invalid_indexes(empty_url) == []
    async with connected(empty_url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM alembic_version") == 1
        assert await advisory_locks(connection) == 0


async def test_upgrading_again_changes_nothing(database_url: str) -> None:
    shape = "SELECT oid, relname, relfilenode FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY oid"
    async with connected(database_url) as connection:
        before = await connection.fetch(shape)
        await connection.execute("INSERT INTO tenants (id, name, settings) VALUES ('ten_1', 'acme', '{}')")
        await migrate.upgrade(database_url)
        assert await connection.fetch(shape) == before
        assert await connection.fetchval("SELECT name FROM tenants") == "acme"


async def test_up_down_and_up_again(empty_url: str) -> None:
    await migrate.upgrade(empty_url)
    await migrate._locked(empty_url, lambda config: command.downgrade(config, "base"))
    async with connected(empty_url) as connection:
        left = await connection.fetch("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'")
        assert [row["relname"] for row in left] == ["alembic_version"]
    assert not await is_current(empty_url)
    await migrate.upgrade(empty_url)
    assert await migrate.check(empty_url)
    assert await is_current(empty_url)
    assert await invalid_indexes(empty_url) == []


async def test_the_schema_is_not_current_before_the_first_migration(empty_url: str) -> None:
    assert not await is_current(empty_url)


async def test_a_drift_between_tables_and_code_is_seen(database_url: str) -> None:
    assert await migrate.check(database_url)
    async with connected(database_url) as connection:
        await connection.execute("ALTER TABLE turns ADD COLUMN forgotten text")
    assert not await migrate.check(database_url)


async def test_a_replica_killed_in_the_middle_leaves_a_migration_that_can_run_again(empty_url: str) -> None:
    """It stands at its second half: somebody's open transaction creates a table of the same name."""
    async with connected(empty_url) as stranger, connected(empty_url) as watcher:
        transaction = stranger.transaction()
        await transaction.start()
        await stranger.execute("CREATE TABLE turn_events (id integer)")
        victim = await replica(empty_url)
        await blocked(watcher)
        assert await advisory_locks(watcher) == 1
        victim.send_signal(signal.SIGKILL)
        await outcome(victim)
        async with asyncio.timeout(10):
            while await advisory_locks(watcher):
                await asyncio.sleep(0.02)
        assert await watcher.fetchval("SELECT to_regclass('public.tenants')") is None, "half of a migration is visible"
        assert not await is_current(empty_url)
        survivors = [await replica(empty_url) for _ in range(2)]
        await blocked(watcher, 2)
        await transaction.rollback()
        results = await asyncio.gather(*[outcome(process) for process in survivors])
    assert [code for code, _ in results] == [0, 0]
    assert sorted(ran for _, ran in results) == [0, await revisions()]
    assert await migrate.check(empty_url)
    assert await invalid_indexes(empty_url) == []


async def test_somebody_elses_long_transaction_is_not_waited_for(empty_url: str) -> None:
    async with connected(empty_url) as stranger:
        await stranger.execute("CREATE TABLE theirs (id integer)")
        async with stranger.transaction(isolation="repeatable_read"):
            await stranger.execute("INSERT INTO theirs VALUES (1)")
            async with asyncio.timeout(20):
                await migrate.upgrade(empty_url)
        assert await is_current(empty_url)


async def test_a_replica_waits_for_the_lock_without_holding_a_snapshot(empty_url: str) -> None:
    """A waiting statement would keep every CREATE INDEX CONCURRENTLY of the one that migrates from its end."""
    async with connected(empty_url) as other:
        await other.execute("SELECT pg_advisory_lock($1)", migrate.LOCK_KEY)
        upgrading = asyncio.ensure_future(migrate.upgrade(empty_url))
        await asyncio.sleep(0.5)
        assert not upgrading.done()
        snapshots = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND {}"
        assert await other.fetchval(snapshots.format("wait_event_type = 'Lock'")) == 0
        assert await other.fetchval(snapshots.format("state LIKE 'idle in transaction%'")) == 0
        await other.execute("SELECT pg_advisory_unlock($1)", migrate.LOCK_KEY)
        await upgrading
    assert await is_current(empty_url)


async def test_a_newer_schema_that_this_code_does_not_know_fits(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = 'of-tomorrow'")
    assert await is_current(database_url)
