"""Credentials in nothing that anybody reads: logs at DEBUG, rows, streams, tool results, prompts, error answers."""

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import pytest
from sqlalchemy import text

from app.domain.errors import UnavailableError
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSpec
from app.logs import configure_logging
from app.simulator.script import ErrorText, HttpFault, Script, StreamFault, StreamFaultKind
from app.simulator.server import Simulator
from app.store.engine import Database
from tests.e2e.harness import ADMIN_KEY, KEY, Client, replica
from tests.e2e.odd_tools import LEAKED
from tests.e2e.scenes import opened

PROVIDER_KEY = "sk-test-AAAA1111BBBB2222CCCC3333"
PASSWORD = "pw-GGGG7777HHHH8888IIII9999"
INNER = ("127.0.0.1", "inner.host.internal", "site-packages", "Traceback", ".py")
"""What belongs into the log and nowhere else."""


def pieces(secret: str) -> tuple[str, ...]:
    """A secret's halves, which contain neither its prefix nor anything that is said of it on purpose."""
    body = secret.rsplit("-", 1)[-1]
    return (body[: len(body) // 2], body[len(body) // 2 :])


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that the process logs, written as in production, at DEBUG."""
    root = logging.getLogger()
    handlers, level, hooks = list(root.handlers), root.level, (sys.excepthook, threading.excepthook)
    named = {name: logger.level for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)}
    stream = io.StringIO()
    configure_logging("DEBUG", [ADMIN_KEY], stream)
    try:
        yield stream
    finally:
        root.handlers, root.level = handlers, level
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(capture=False)
        for name, old in named.items():
            logging.getLogger(name).setLevel(old)


async def rows(database: Database) -> str:
    """Every row of every table, bytes as text."""
    tables = await database.fetch(text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"))
    found = []
    for (table,) in tables:
        columns = await database.fetch(text(f"SELECT to_jsonb(r) FROM {table} AS r"))
        found += [json.dumps(row[0]) for row in columns]
        for row in await database.fetch(text(f"SELECT * FROM {table}")):
            found += [bytes(value).decode("utf-8", "replace") for value in row if isinstance(value, bytes | memoryview)]
    return "\n".join(found)


def assert_hidden(where: dict[str, str], words: Sequence[str]) -> None:
    for name, content in where.items():
        assert content, f"nothing was looked at in {name}"
        for word in words:
            at = content.find(word)
            assert at < 0, f"{word} in {name}: …{content[max(0, at - 200) : at + 100]}…"


async def shown_to_the_client(client: Client, session: str, turn_id: str) -> str:
    """Everything that the API says of a turn."""
    paths = (f"/turns/{turn_id}", f"/turns/{turn_id}/events", f"/sessions/{session}/messages", f"/sessions/{session}/messages?view=context")
    answers = [await client.http.get(path) for path in (*paths, f"/sessions/{session}/turns")]
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    return "\n".join(answer.text for answer in answers) + (await client.http.get("/livez", headers=admin)).text


async def test_what_a_provider_echoes_or_a_network_says_is_not_passed_on(
    database_url: str, provider: Simulator, database: Database, logs: io.StringIO
) -> None:
    words = (PROVIDER_KEY, *pieces(PROVIDER_KEY))
    echo = f"Incorrect API key provided: {PROVIDER_KEY} (or {PROVIDER_KEY[:18]}****{PROVIDER_KEY[-14:]}) at https://x.internal/v1?key={PROVIDER_KEY}"
    error = ErrorText(message=echo)
    headers = (("x-echo", f"Bearer {PROVIDER_KEY}"),)
    broken = (
        Script(fault=HttpFault(status=401, headers=headers, error=error)),
        Script(fault=HttpFault(status=400, headers=headers, error=error)),
        Script(fault=HttpFault(status=404, error=error)),
        Script(fault=HttpFault(status=500, body=f"<html>{echo}</html>", content_type="text/html")),
        Script(tokens=2, fault=StreamFault(kind=StreamFaultKind.ERROR, after=1, error=error)),
    )
    unsafe = urlsplit(provider.origin)
    addresses = (provider.base_url, "http://127.0.0.1:1/v1", f"https://{unsafe.netloc}/v1")
    async with opened(database_url, provider) as (running, client):
        spec = TenantSpec(
            name="leaky",
            api_keys=("agw_leaky-key-JJJJ0000KKKK1111",),
            providers=tuple(
                ProviderSpec(name=f"p{number}", base_url=url, api_key=PROVIDER_KEY, headers={"x-extra": PROVIDER_KEY})
                for number, url in enumerate(addresses)
            ),
            chains={Purpose.CHAT: tuple(RouteSpec(provider=f"p{number}", model="m", max_attempts=1) for number in range(len(addresses)))},
        )
        admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
        await running.gateway.tenants.apply(spec, generate_key=False)
        async with running.client("agw_leaky-key-JJJJ0000KKKK1111") as leaky:
            shown, tried = [], set()
            for script in broken:
                session = await leaky.session()
                provider.clear()
                provider.play(script, script)  # a server error is asked for once more
                frames = await leaky.run(session)
                assert frames[-1].type == "turn.failed"
                shown.append(b"\n".join(frame.raw for frame in frames).decode())
                shown.append(await shown_to_the_client(leaky, session, frames[0].data["turn_id"]))
                tried |= {frame.data["route"]["provider"] for frame in frames if frame.type == "attempt.failed"}
        assert tried == {"p0", "p1", "p2"}
        operator = [await client.http.get(f"/admin/tenants/leaky{part}", headers=admin) for part in ("", "/providers", "/chains", "/keys")]
        assert [answer.status_code for answer in operator] == [200] * 4
        where = {
            "the API": "\n".join(shown),
            "the admin API": "\n".join(answer.text for answer in operator),
            "the metrics": (await client.http.get("/metrics", headers=admin)).text,
            "the database": await rows(database),
            "the log": logs.getvalue(),
        }
    assert_hidden(where, (*words, "JJJJ0000", "KKKK1111", KEY))
    assert_hidden({"the API": where["the API"]}, INNER)


async def test_what_a_tool_raises_is_shown_without_credentials(
    database_url: str, provider: Simulator, database: Database, logs: io.StringIO
) -> None:
    async with opened(database_url, provider) as (_, client):
        session = await client.session()
        frames = await client.run(session, "[[sim tool=leak text=Sorry]]")
        assert frames[-1].type == "turn.completed"
        where = {
            "the stream": b"\n".join(frame.raw for frame in frames).decode(),
            "the API": await shown_to_the_client(client, session, frames[0].data["turn_id"]),
            "the database": await rows(database),
            "the prompt": json.dumps([request.body for request in provider.requests]),
            "the log": logs.getvalue(),
        }
        assert "RuntimeError" in where["the prompt"]
    assert_hidden(where, (LEAKED, *pieces(LEAKED), KEY))
    assert_hidden({"the prompt": where["the prompt"]}, ("site-packages", "Traceback", "odd_tools.py"))


class Proxy:
    """A TCP relay that can go away with everything that runs through it."""

    def __init__(self, database_url: str) -> None:
        address = urlsplit(database_url)
        options = dict(parse_qsl(address.query))
        self._host = address.hostname or options.get("host", "127.0.0.1")
        self._port = address.port or int(options.get("port", "5432"))
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def cut(self) -> None:
        """Refuse new connections, close the others."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._writers -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def role(database: Database) -> AsyncIterator[str]:
    """A database user with a password of ours."""
    name = f"leaky_{uuid4().hex}"
    await database.fetch(text(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{PASSWORD}'"))
    try:
        yield name
    finally:
        await database.fetch(text(f"DROP ROLE {name}"))


async def test_the_databases_password_is_never_said_when_it_is_away(database_url: str, database: Database, logs: io.StringIO) -> None:
    proxy = Proxy(database_url)
    async with role(database) as user:
        port = await proxy.start()
        url = f"postgresql://{user}:{PASSWORD}@127.0.0.1:{port}{urlsplit(database_url).path}"
        async with replica(url) as running, running.client() as client:
            assert (await client.http.get("/sessions")).status_code == 401
            assert (await client.http.get("/readyz")).status_code == 200
            await proxy.cut()
            admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
            answers = [await client.http.get(path, headers=admin) for path in ("/admin/tenants", "/readyz", "/admin/providers")]
            assert [answer.status_code for answer in answers] == [503] * 3
            assert answers[0].json()["code"] == "storage_unavailable"
            assert int(answers[0].headers["retry-after"]) >= 1
        with pytest.raises(UnavailableError) as refused:
            async with replica(url):
                pass
        logging.getLogger("app").error("could not start", exc_info=refused.value)
    shown = "\n".join(answer.text for answer in answers)
    assert_hidden({"the log": logs.getvalue(), "the API": shown, "the error": str(refused.value)}, (PASSWORD, *pieces(PASSWORD)))
    assert_hidden({"the API": shown, "the error": str(refused.value)}, (*INNER, user, str(port)))
