"""The test run's Postgres: one server, one migrated template, a fresh database per test.

Where the server comes from: ``TEST_DATABASE_URL`` when set (a superuser's, or one that may create databases), else
testcontainers when a Docker engine answers and has or gets the image, else the embedded server. ``TEST_POSTGRES`` set to
``container`` or ``embedded`` insists on that one.

Under pytest-xdist the controller owns the server, because it outlives every worker; a worker finds the address in its
``workerinput``. Without xdist the session itself owns it. Nothing is started until it is asked for.
"""

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import asyncpg
import pytest

from app.store.embedded import start_embedded
from app.store.migrate import upgrade

IMAGE = "postgres:18"
_ENGINE_ANSWER_S = 2
_WORKER_URL = "postgres_url"
_WORKER_TEMPLATE = "postgres_template"
_SERVER = pytest.StashKey["PostgresServer"]()


class XdistNode(Protocol):
    """What pytest-xdist hands to ``pytest_configure_node``."""

    config: pytest.Config
    workerinput: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A server with a migrated template database in it."""

    url: str
    """Of the maintenance database: only for creating and dropping the others."""
    template: str
    origin: str
    """Where it came from, for the run's report."""
    release: Callable[[], None]
    """Gives back what this process started; nothing for one that only uses it."""

    async def create_database(self) -> str:
        """Copy the template; the URL of the copy."""
        name = f"test_{uuid.uuid4().hex}"
        await _execute(self.url, f'CREATE DATABASE "{name}" TEMPLATE "{self.template}"')
        return _with_database(self.url, name)

    async def create_empty_database(self) -> str:
        """A database without our tables, for tests of the migrations; its URL."""
        name = f"test_{uuid.uuid4().hex}"
        await _execute(self.url, f'CREATE DATABASE "{name}" TEMPLATE template0')
        return _with_database(self.url, name)

    async def drop_database(self, url: str) -> None:
        """Drop a database made by one of the above, also from under open connections."""
        await _drop(self.url, urlsplit(url).path.lstrip("/"))

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """A fresh copy of the template for the length of the block."""
        url = await self.create_database()
        try:
            yield url
        finally:
            await self.drop_database(url)


def server_for(config: pytest.Config) -> PostgresServer:
    """The server of this run: the controller's for an xdist worker, else this process' own, started at the first call."""
    known = config.stash.get(_SERVER, None)
    if known is not None:
        return known
    workerinput: dict[str, object] | None = getattr(config, "workerinput", None)
    if workerinput is None:
        server = _start()
    else:
        url, template = str(workerinput[_WORKER_URL]), str(workerinput[_WORKER_TEMPLATE])
        server = PostgresServer(url=url, template=template, origin="controller", release=_nothing)
    config.stash[_SERVER] = server
    return server


def share_with_worker(node: XdistNode) -> None:
    """Body of ``pytest_configure_node`` in the controller: starts the server before the first worker and tells each where it is."""
    server = server_for(node.config)
    node.workerinput[_WORKER_URL] = server.url
    node.workerinput[_WORKER_TEMPLATE] = server.template


def stop_server(config: pytest.Config) -> None:
    """Body of ``pytest_unconfigure``: gives back the server if this process started one."""
    server = config.stash.get(_SERVER, None)
    if server is not None:
        server.release()


def describe_server(config: pytest.Config) -> str | None:
    """One line for the end of the run; None when no test asked for a database."""
    server = config.stash.get(_SERVER, None)
    return None if server is None else f"postgres: {server.origin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provided:
    """A server before there is anything of ours in it: URL of its maintenance database, and how to give it back."""

    url: str
    origin: str
    release: Callable[[], None]


def _start() -> PostgresServer:
    provided = _provide()
    template = f"template_{uuid.uuid4().hex}"

    def release() -> None:
        try:
            _run(_drop(provided.url, template))
        finally:
            provided.release()

    try:
        _run(_execute(provided.url, f'CREATE DATABASE "{template}" TEMPLATE template0'))
        _run(upgrade(_with_database(provided.url, template)))
    except BaseException:
        release()
        raise
    return PostgresServer(url=provided.url, template=template, origin=provided.origin, release=release)


def _provide() -> _Provided:
    given = os.getenv("TEST_DATABASE_URL")
    if given:
        return _Provided(url=given, origin="TEST_DATABASE_URL", release=_nothing)
    wanted = os.getenv("TEST_POSTGRES", "")
    if wanted == "container":
        return _start_container()
    if wanted == "embedded" or not _docker_engine_answers():
        return _start_embedded()
    match _try_container():
        case str(reason):
            return replace(_start_embedded(), origin=f"embedded ({reason})")
        case provided:
            return provided


def _docker_engine_answers() -> bool:
    """Cheap and bounded: one ping of the engine that DOCKER_HOST or the standard socket names."""
    if not os.getenv("DOCKER_HOST") and not Path("/var/run/docker.sock").exists():
        return False
    docker = import_module("docker")
    try:
        client = docker.from_env(timeout=_ENGINE_ANSWER_S)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


def _try_container() -> _Provided | str:
    """A container, or why there is none: an engine may answer and have neither the image nor a registry."""
    errors = import_module("docker.errors")
    try:
        return _start_container()
    except (errors.DockerException, OSError, RuntimeError) as error:
        return f"no {IMAGE} container: {error}"


def _start_container() -> _Provided:
    # Imported here: the package takes longer to import than the embedded server takes to start.
    container = import_module("testcontainers.community.postgres").PostgresContainer(IMAGE)
    container.with_command("postgres -c fsync=off -c max_connections=200").start()
    return _Provided(url=container.get_connection_url(driver=None), origin=f"container {IMAGE}", release=container.stop)


def _start_embedded() -> _Provided:
    folder = Path(tempfile.mkdtemp(prefix="agw-tests-"))
    server = start_embedded(folder, durable=False)

    def release() -> None:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    return _Provided(url=server.url, origin="embedded", release=release)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _drop(url: str, name: str) -> None:
    await _execute(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def _run(work: Coroutine[object, object, None]) -> None:
    """Run in a thread of its own: the caller's thread may have an event loop, or want to keep its own."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def _nothing() -> None:
    pass
