"""The simulator as a server: start it, script it, read what it was sent, stop it."""

import asyncio
import secrets
import ssl
from collections import deque
from collections.abc import Callable

from app.simulator.anthropic_messages import AnthropicMessages
from app.simulator.chat_completions import ChatCompletions
from app.simulator.choice import ScriptChooser
from app.simulator.connection import Connection
from app.simulator.directives import parse_words
from app.simulator.fields import script_from_fields
from app.simulator.log import RecordedRequest, RequestLog
from app.simulator.mode import ApiMode
from app.simulator.responses import Responses
from app.simulator.router import Router
from app.simulator.script import RawScript, Script

_BACKLOG = 4096


class Simulator:
    """A scripted model provider over real HTTP on one port.

    `strict` refuses with 400 what real providers refuse in a history, `picky` also what only
    some refuse (and implies strict). The newest `log_size` requests are kept.
    """

    def __init__(self, *, strict: bool = False, picky: bool = False, log_size: int = 10_000) -> None:
        self._log = RequestLog(log_size)
        self._chooser = ScriptChooser()
        modes: list[ApiMode] = [ChatCompletions(), Responses(), AnthropicMessages()]
        self._router = Router(modes, self._log, self._chooser, strict=strict, picky=picky, unique=secrets.token_hex(3)[:5])
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._origin = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl_context: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            OSError: when the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._router.answer, self._log, self._connections), host, port, ssl=ssl_context, backlog=_BACKLOG
        )
        scheme = "http" if ssl_context is None else "https"
        shown_host = f"[{host}]" if ":" in host else host
        self._origin = f"{scheme}://{shown_host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and close every connection at once; harmless when not started."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.stop()
        await self._server.wait_closed()
        await asyncio.sleep(0)  # the aborted transports close their sockets in the next round of the loop
        self._server = None

    @property
    def origin(self) -> str:
        """Scheme, host and port, such as `http://127.0.0.1:9001`."""
        return self._origin

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self._origin}/v1"

    @property
    def requests(self) -> deque[RecordedRequest]:
        """The recorded requests, oldest first."""
        return self._log.records

    def play(self, *scripts: Script | RawScript | str) -> None:
        """Give the next requests these scripts in order; a string is read as directives.

        Raises:
            ScriptError: when a string cannot be understood.
        """
        self._chooser.enqueue([script_from_fields(parse_words(script)) if isinstance(script, str) else script for script in scripts])

    def clear(self) -> None:
        """Forget the requests, the enqueued scripts and the counts of shown faults."""
        self._log.clear()
        self._chooser.clear()

    async def wait_for_requests(self, count: int, timeout_s: float) -> list[RecordedRequest]:
        """Wait until `count` requests came since the start or the last clear(); returns those kept.

        Raises:
            TimeoutError: when fewer came within `timeout_s`.
        """
        await self._log.wait_until(lambda: self._log.count >= count, timeout_s)
        return list(self._log.records)

    async def wait_for_end(self, record: RecordedRequest, timeout_s: float) -> RecordedRequest:
        """Wait until the exchange of a recorded request is over, also by the client's leaving.

        Raises:
            TimeoutError: when it still goes on after `timeout_s`.
        """
        await self._log.wait_until(lambda: record.ended_at is not None, timeout_s)
        return record


async def run_simulator(
    host: str, port: int, *, strict: bool = False, picky: bool = False, announce: Callable[[str], None] | None = None
) -> None:
    """Serve until cancelled; `announce` is called once with the base URL.

    Raises:
        OSError: when the address cannot be bound.
    """
    simulator = Simulator(strict=strict, picky=picky)
    await simulator.start(host, port)
    try:
        if announce is not None:
            announce(simulator.base_url)
        await asyncio.get_running_loop().create_future()
    finally:
        await simulator.stop()
