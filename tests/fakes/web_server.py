"""A web server on loopback that plays what a test says and remembers who came."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Received:
    """One request; names of headers in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. ``hold``: never sent. ``cut``: the connection is closed behind the body, which is announced longer than it is."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    hold: bool = False
    cut: bool = False

    def encoded(self) -> bytes:
        length = len(self.body) + (100 if self.cut else 0)
        given = (("Content-Type", self.content_type), ("Content-Length", str(length)), ("Connection", "close"), *self.headers)
        lines = [f"HTTP/1.1 {self.status} Whatever", *(f"{name}: {value}" for name, value in given)]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


@dataclass(slots=True)
class WebServer:
    """``pages`` answers by target; ``queue``, while it holds anything, comes first. What is in neither gets a 404."""

    port: int = 0
    scheme: str = "http"
    connections: int = 0
    received: list[Received] = field(default_factory=list)
    pages: dict[str, Answer] = field(default_factory=dict)
    queue: "deque[Answer]" = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every request that is complete."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client left an answer that is held."""

    def url(self, target: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{target}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, target, _ = first.split(" ")
            self.received.append(Received(method, target, headers, body))
            self.arrived.set()
            answer = self.queue.popleft() if self.queue else self.pages.get(target, Answer(404))
            if answer.hold:
                await reader.read()
                self.left.set()
                return
            writer.write(answer.encoded())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def web_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[WebServer]:
    """A server that is listening."""
    server = WebServer(scheme="http" if tls is None else "https")
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()
