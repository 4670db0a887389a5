"""A provider whose connections do exactly what a test says, on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, assert_never

from typing_extensions import override

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(*pieces: str, finish: str | None = "stop", usage: tuple[int, int] | None = None) -> bytes:
    """The events of a text reply."""
    events = [event({"choices": [{"index": 0, "delta": {"content": piece}}]}) for piece in pieces]
    if finish is not None:
        events.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    if usage is not None:
        events.append(event({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}))
    return b"".join(events)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part)


def ok(*parts: bytes) -> bytes:
    """A whole response, its parts as HTTP chunks."""
    return HEAD + chunked(*parts) + b"0\r\n\r\n"


def answer(*pieces: str) -> bytes:
    return ok(text(*pieces, usage=(10, 5)), DONE)


def error(status: int, body: Any = b"", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Pause:
    """Wait before the rest of the response."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Forever:
    """Repeat some bytes until the client leaves."""

    def __init__(self, part: bytes, every: float) -> None:
        self.part = part
        self.every = every


class Cut:
    """Reset the connection."""


class Close:
    """End the connection in good order."""


Step: TypeAlias = bytes | Pause | Forever | Cut | Close
Script: TypeAlias = bytes | Sequence[Step]


class ScriptedProvider:
    """Answers request n with script n, the last one for ever after."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.connections = 0
        self.asked = asyncio.Event()
        """Set when a request is there."""
        self.left = asyncio.Event()
        """Set when a client closes its connection in the middle of a response."""
        self.url = ""

    def take(self, head: str, body: bytes) -> Sequence[Step]:
        self.asked.set()
        self.heads.append(head)
        self.requests.append(json.loads(body))
        script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
        return [script] if isinstance(script, bytes) else script


class _Connection(asyncio.Protocol):
    def __init__(self, provider: ScriptedProvider) -> None:
        self.provider = provider
        self.buffer = b""
        self.playing: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.provider.connections += 1

    @override
    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, separator, body = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        text = head.decode()
        length = next(int(line.split(":")[1]) for line in text.split("\r\n") if line.lower().startswith("content-length"))
        if len(body) == length:
            self.buffer = b""
            self.playing = asyncio.ensure_future(self.play(self.provider.take(text, body)))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.playing is not None and not self.playing.done():
            self.playing.cancel()
            self.provider.left.set()

    async def play(self, script: Sequence[Step]) -> None:
        for step in script:
            match step:
                case bytes():
                    self.transport.write(step)
                case Pause():
                    await asyncio.sleep(step.seconds)
                case Forever():
                    while True:
                        self.transport.write(step.part)
                        await asyncio.sleep(step.every)
                case Cut():
                    self.transport.abort()
                case Close():
                    self.transport.close()
                case _:
                    assert_never(step)


@asynccontextmanager
async def serving(*providers: ScriptedProvider) -> AsyncIterator[None]:
    """Give each provider a port of its own."""
    async with AsyncExitStack() as stack:
        for provider in providers:
            server = await asyncio.get_running_loop().create_server(partial(_Connection, provider), "127.0.0.1", 0)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()
            provider.url = f"http://{host}:{port}/v1"
        yield
