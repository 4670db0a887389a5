"""The embedded Postgres starter, against the real binaries: lives, kills, neighbours, accounts."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from app.store.embedded import EmbeddedPostgresError, start_embedded

ROOT = Path(__file__).parents[3]
EXEC_SCRIPT = ROOT / "app" / "store" / "embedded_exec.py"
OWNER = """
import os, sys
from pathlib import Path
from app.store.embedded import start_embedded
with start_embedded(Path(sys.argv[1]), durable=False) as server:
    print(server.owned, os.geteuid(), server.url, flush=True)
    sys.stdin.read()
"""
ATTEMPTS = 500
"""Of 20 ms each: what a server may take to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process of its own that holds a server until its stdin ends."""

    process: subprocess.Popen[str]
    owned: bool
    uid: int
    url: str


@contextmanager
def other_process(data_dir: Path, *, as_nobody: bool = False) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER, str(data_dir)]
    if as_nobody:
        command = [sys.executable, str(EXEC_SCRIPT), "nobody", str(os.getpid()), *command]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process


def read_owner(process: subprocess.Popen[str]) -> Owner:
    assert process.stdout is not None
    owned, uid, url = process.stdout.readline().split()
    return Owner(process=process, owned=owned == "True", uid=int(uid), url=url)


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def count_rows(url: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT count(*) FROM kept")
    finally:
        await connection.close()


async def create_row(url: str) -> None:
    await execute(url, "CREATE TABLE kept AS SELECT 1 AS value")


def no_server_lives(data_dir: Path) -> bool:
    with (data_dir / "lock").open("rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def wait_until_no_server_lives(data_dir: Path) -> None:
    for _ in range(ATTEMPTS):
        if no_server_lives(data_dir):
            return
        await asyncio.sleep(0.02)
    pytest.fail("a process of the server is still alive")


def server_pid(data_dir: Path) -> int:
    return int((data_dir / "cluster" / "postmaster.pid").read_text().split()[0])


async def test_restart_keeps_rows(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "folder"
    with start_embedded(data_dir) as server:
        assert server.owned
        await create_row(server.url)
    assert no_server_lives(data_dir)
    with start_embedded(data_dir) as server:
        assert await count_rows(server.url) == 1


async def test_path_with_spaces_and_quotes(tmp_path: Path) -> None:
    with start_embedded(tmp_path / "a folder's name", durable=False) as server:
        await create_row(server.url)
        assert await count_rows(server.url) == 1


async def test_long_path_still_gets_a_usable_socket(tmp_path: Path) -> None:
    with start_embedded(tmp_path / ("x" * 120), durable=False) as server:
        await create_row(server.url)


async def test_stop_twice_is_harmless_and_removes_the_socket_folder(tmp_path: Path) -> None:
    server = start_embedded(tmp_path, durable=False)
    server.stop()
    server.stop()
    assert not server.socket_dir.exists()


async def test_second_starter_of_one_process_attaches_and_does_not_stop_it(tmp_path: Path) -> None:
    with start_embedded(tmp_path, durable=False) as owner:
        with start_embedded(tmp_path, durable=False) as guest:
            assert (guest.owned, guest.url) == (False, owner.url)
        await create_row(owner.url)


async def test_processes_that_start_at_once_share_one_server(tmp_path: Path) -> None:
    with other_process(tmp_path) as first, other_process(tmp_path) as second, other_process(tmp_path) as third:
        found = [read_owner(process) for process in (first, second, third)]
        assert sum(one.owned for one in found) == 1
        assert len({one.url for one in found}) == 1
        await create_row(found[0].url)
        for one in sorted(found, key=lambda one: one.owned):
            one.process.communicate()
    assert no_server_lives(tmp_path)


async def test_kill_of_the_owner_ends_the_server_and_loses_nothing(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        await create_row(read_owner(process).url)
        process.kill()
        process.wait()
        with start_embedded(tmp_path, durable=False) as server:
            assert server.owned
            assert await count_rows(server.url) == 1


async def test_kill_of_the_owner_leaves_nothing_running(tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        read_owner(process)
        process.kill()
        process.wait()
        await wait_until_no_server_lives(tmp_path)
    start_embedded(tmp_path, durable=False).stop()  # removes the socket folder that the kill left


async def test_kill_of_the_server_is_recovered_from(tmp_path: Path) -> None:
    with start_embedded(tmp_path) as server:
        await create_row(server.url)
        os.kill(server_pid(tmp_path), signal.SIGKILL)
        await wait_until_no_server_lives(tmp_path)
    with start_embedded(tmp_path) as server:
        assert await count_rows(server.url) == 1


async def test_pid_file_of_a_dead_server_does_not_fool_a_start(tmp_path: Path) -> None:
    with start_embedded(tmp_path, durable=False) as server:
        await create_row(server.url)
        content = (tmp_path / "cluster" / "postmaster.pid").read_text()
    stale = content.replace(content.split()[0], str(os.getppid()), 1)  # a living process that is no Postgres
    (tmp_path / "cluster" / "postmaster.pid").write_text(stale)
    with start_embedded(tmp_path, durable=False) as server:
        assert server.owned
        assert await count_rows(server.url) == 1


async def test_leftovers_of_an_interrupted_initdb_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cluster.cut-off" / "base").mkdir(parents=True)
    with start_embedded(tmp_path, durable=False) as server:
        await create_row(server.url)
    assert not (tmp_path / "cluster.cut-off").exists()


async def test_ordinary_user_runs_it_as_itself(tmp_path: Path) -> None:
    is_root = os.geteuid() == 0
    with other_process(tmp_path / "data", as_nobody=is_root) as process:
        owner = read_owner(process)
        assert owner.uid == (65534 if is_root else os.geteuid())
        assert (tmp_path / "data" / "cluster").stat().st_uid == owner.uid
        process.communicate()
    assert no_server_lives(tmp_path / "data")


async def test_permissions_of_the_parent_folders_stay(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o700)
    with start_embedded(parent / "data", durable=False) as server:
        await create_row(server.url)
    assert parent.stat().st_mode & 0o777 == 0o700
    assert (parent / "data").stat().st_mode & 0o777 == 0o700


async def test_failure_carries_the_end_of_the_servers_log(tmp_path: Path) -> None:
    with start_embedded(tmp_path, durable=False):
        pass
    (tmp_path / "cluster" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError, match="database files are incompatible"):
        start_embedded(tmp_path, durable=False)


async def test_unusable_folder_is_a_clear_error(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(EmbeddedPostgresError, match="cannot use"):
        start_embedded(occupied)


async def test_foreign_socket_folder_is_refused(tmp_path: Path) -> None:
    server = start_embedded(tmp_path, durable=False)
    server.stop()
    server.socket_dir.symlink_to(tmp_path)
    try:
        with pytest.raises(EmbeddedPostgresError, match="belongs to somebody else"):
            start_embedded(tmp_path, durable=False)
    finally:
        server.socket_dir.unlink()
