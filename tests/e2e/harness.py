"""The service as a user meets it: a real uvicorn on loopback, the simulator as the provider, SSE read as bytes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSettings, TenantSpec
from app.main import Gateway, open_gateway
from app.ports import Clock
from app.settings import Settings

KEY = "agw_test-key-of-acme-0123456789"
OTHER_KEY = "agw_test-key-of-other-0123456789"
ADMIN_KEY = "admin-key-of-the-tests"
TERMINAL = ("turn.completed", "turn.interrupted", "turn.failed")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it came over the wire."""

    seq: int
    type: str
    data: dict[str, Any]
    raw: bytes


@dataclass(slots=True)
class Stream:
    """Reads an SSE response byte by byte; ``comments`` are the heartbeats."""

    response: httpx.Response
    frames: list[Frame] = field(default_factory=list)
    comments: int = 0
    _buffer: bytes = b""
    _source: AsyncIterator[Frame] | None = None

    def __aiter__(self) -> AsyncIterator[Frame]:
        """Go on where the last reading stopped."""
        if self._source is None:
            self._source = self._read()
        return self._source

    async def _read(self) -> AsyncIterator[Frame]:
        async for chunk in self.response.aiter_raw():
            self._buffer += chunk
            *blocks, self._buffer = self._buffer.split(b"\n\n")
            for block in blocks:
                frame = self._frame(block)
                if frame is not None:
                    self.frames.append(frame)
                    yield frame
        assert self._buffer == b"", "the stream ended inside a frame"

    def _frame(self, block: bytes) -> Frame | None:
        if block.startswith(b":"):
            self.comments += 1
            return None
        if block.startswith(b"retry:"):
            return None
        lines = dict(line.split(b": ", 1) for line in block.split(b"\n"))
        data = json.loads(lines[b"data"])
        frame = Frame(int(lines[b"id"]), lines[b"event"].decode(), data, block)
        assert data["type"] == frame.type
        assert data["seq"] == frame.seq
        return frame

    async def read_to_end(self) -> list[Frame]:
        """All frames; the stream must end by itself."""
        async for _ in self:
            pass
        return self.frames

    async def until(self, event_type: str, count: int = 1) -> Frame:
        """Read up to the ``count``-th event of a type."""
        async for frame in self:
            if frame.type == event_type:
                count -= 1
                if count == 0:
                    return frame
        raise AssertionError(f"the stream ended without {event_type}: {[frame.type for frame in self.frames]}")


@dataclass(frozen=True, slots=True)
class Client:
    """A tenant's client of one replica."""

    http: httpx.AsyncClient

    async def session(self, **body: Any) -> str:
        response = await self.http.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    @asynccontextmanager
    async def turn(
        self, session_id: str, text: Any = "hello", *, headers: dict[str, str] | None = None, **body: Any
    ) -> AsyncIterator[Stream]:
        url = f"/sessions/{session_id}/turns"
        async with self.http.stream("POST", url, json={"input": text, **body}, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    @asynccontextmanager
    async def events(self, turn_id: str, after: int | None = None) -> AsyncIterator[Stream]:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        async with self.http.stream("GET", f"/turns/{turn_id}/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield Stream(response)

    async def run(self, session_id: str, text: Any = "hello", **body: Any) -> list[Frame]:
        """One turn to its end."""
        async with self.turn(session_id, text, **body) as stream:
            return await stream.read_to_end()

    async def replay(self, turn_id: str, after: int | None = None) -> list[Frame]:
        async with self.events(turn_id, after) as stream:
            return await stream.read_to_end()

    async def get(self, turn_id: str) -> dict[str, Any]:
        response = await self.http.get(f"/turns/{turn_id}")
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    async def messages(self, session_id: str, view: str = "transcript") -> list[dict[str, Any]]:
        response = await self.http.get(f"/sessions/{session_id}/messages", params={"limit": 200, "view": view})
        assert response.status_code == 200, response.text
        data: list[dict[str, Any]] = response.json()["data"]
        return data


@dataclass(frozen=True, slots=True)
class Replica:
    """One running gateway."""

    url: str
    gateway: Gateway
    server: uvicorn.Server

    @asynccontextmanager
    async def client(self, key: str = KEY) -> AsyncIterator[Client]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, limits=limits) as http:
            yield Client(http)


@asynccontextmanager
async def replica(database_url: str, *, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Replica]:
    """Start a gateway in this process; several may share one database. ``clock`` is the real one unless given."""
    values = {"admin_key": ADMIN_KEY, "secret_key": "the tests' secret key", "poll_s": 0.1, **settings}
    async with open_gateway(Settings.model_validate(values), database_url, clock) as gateway:
        # With its protocol named, asyncio sets TCP_NODELAY on what it accepts, as in production; else each answer may wait 40 ms.
        listener = socket.socket(proto=socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(gateway.app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield Replica(f"http://127.0.0.1:{listener.getsockname()[1]}", gateway, server)
        finally:
            server.should_exit = True
            await serving
            listener.close()


def tenant(name: str, key: str, base_urls: Sequence[str], *, model: str = "sim-text", max_iterations: int = 90, **route: Any) -> TenantSpec:
    """A tenant whose chat chain has one route per base URL."""
    providers = tuple(
        ProviderSpec(name=f"p{index}", base_url=url, api_key=f"sk-test-{name}-{index}-0123456789") for index, url in enumerate(base_urls, 1)
    )
    routes = tuple(RouteSpec(provider=provider.name, model=model, **route) for provider in providers)
    settings = TenantSettings(max_iterations=max_iterations)
    return TenantSpec(name=name, api_keys=(key,), providers=providers, chains={Purpose.CHAT: routes}, settings=settings)


def text_of(frames: Sequence[Frame]) -> str:
    """What a client shows in the end: deltas, without those of attempts that were reset, of the last iteration."""
    shown: dict[int, str] = {}
    for frame in frames:
        match frame.type:
            case "message.delta":
                shown[frame.data["attempt"]] = shown.get(frame.data["attempt"], "") + frame.data["text"]
            case "attempt.reset":
                shown.pop(frame.data["attempt"], None)
            case _:
                pass
    return shown[max(shown)] if shown else ""


def types(frames: Sequence[Frame]) -> list[str]:
    """Event types in order, runs of deltas as one."""
    names: list[str] = []
    for frame in frames:
        if not (names and names[-1] == frame.type and frame.type.endswith(".delta")):
            names.append(frame.type)
    return names
