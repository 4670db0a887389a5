"""Gateways as processes of their own, to be killed, stopped and drained; and a reader cheap enough for hundreds of streams."""

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.e2e.harness import ADMIN_KEY, KEY

ROOT = Path(__file__).parents[2]
FAST_LEASE = {"GATEWAY_LEASE_TTL_S": "2", "GATEWAY_LEASE_BEAT_S": "0.4"}
TERMINAL_TYPES = (b"turn.completed", b"turn.interrupted", b"turn.failed")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(slots=True)
class GatewayProcess:
    """One `python -m app serve`."""

    url: str
    process: asyncio.subprocess.Process
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self, within_s: float) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def gateway_process(
    database_url: str, folder: Path, environment: dict[str, str] | None = None, *, arguments: tuple[str, ...] = ()
) -> AsyncIterator[GatewayProcess]:
    """Start a gateway process on a free port and wait until it is ready."""
    port = free_port()
    log = folder / f"gateway-{port}.log"
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database_url,
        "GATEWAY_ADMIN_KEY": ADMIN_KEY,
        "GATEWAY_SECRET_KEY": "the tests' secret key",
        "GATEWAY_TOOL_MODULES": "tests.e2e.operator_tools",
        **(environment or {}),
    }
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app", "serve", "--port", str(port), *arguments, cwd=ROOT, env=env, stdout=output, stderr=output
        )
    gateway = GatewayProcess(f"http://127.0.0.1:{port}", process, log)
    try:
        await _ready(gateway)
        yield gateway
    finally:
        await gateway.kill()


async def _ready(gateway: GatewayProcess) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(30):
        while not await _is_ready(http, gateway.url):
            assert gateway.process.returncode is None, gateway.log.read_text()
            await asyncio.sleep(0.02)


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@asynccontextmanager
async def reading(key: str = KEY) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without limits."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers={"Authorization": f"Bearer {key}"}, timeout=timeout
    ) as http:
        yield http


@dataclass(slots=True)
class Reader:
    """Reads one turn to its terminal event, over as many connections and replicas as it takes."""

    http: aiohttp.ClientSession
    frames: list[bytes] = field(default_factory=list)
    reconnects: int = 0
    _rest: bytes = b""

    @property
    def ended(self) -> bool:
        return bool(self.frames) and _type(self.frames[-1]) in TERMINAL_TYPES

    @property
    def last_id(self) -> int:
        return frame_id(self.frames[-1]) if self.frames else 0

    @property
    def turn_id(self) -> str:
        return self.frames[0].split(b'"turn_id":"', 1)[1].split(b'"', 1)[0].decode()

    async def take(self, response: aiohttp.ClientResponse, *, leave_after: int | None = None) -> None:
        """Read until the stream ends or ``leave_after`` frames have come."""
        taken = 0
        self._rest = b""
        async for chunk in response.content.iter_any():
            *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
            for block in blocks:
                if block.startswith(b"id: "):
                    self.frames.append(block)
                    taken += 1
            if leave_after is not None and taken >= leave_after:
                response.close()
                return

    async def start(self, url: str, session_id: str, text: str, *, leave_after: int | None = None) -> None:
        """POST the turn and read."""
        async with self.http.post(f"{url}/sessions/{session_id}/turns", json={"input": text}) as response:
            assert response.status == 200, await response.text()
            await self.take(response, leave_after=leave_after)

    async def follow(self, urls: list[str], turn_id: str, *, leave: random.Random | None = None) -> None:
        """GET the events until the end; with ``leave``, drop the connection now and then and go on at the next URL."""
        while not self.ended:
            url = urls[self.reconnects % len(urls)]
            headers = {"Last-Event-ID": str(self.last_id)} if self.frames else {}
            try:
                async with self.http.get(f"{url}/turns/{turn_id}/events", headers=headers) as response:
                    assert response.status == 200, await response.text()
                    await self.take(response, leave_after=leave.randint(1, 40) if leave else None)
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0.05)
            self.reconnects += 1


def frame_id(frame: bytes) -> int:
    return int(frame[4 : frame.index(b"\n")])


def _type(frame: bytes) -> bytes:
    return frame.split(b"\n", 2)[1].removeprefix(b"event: ")


def frame_types(frames: list[bytes]) -> list[str]:
    return [_type(frame).decode() for frame in frames]


async def create_sessions(http: aiohttp.ClientSession, url: str, count: int, **body: object) -> list[str]:
    async def one() -> str:
        async with http.post(f"{url}/sessions", json=body) as response:
            assert response.status == 201, await response.text()
            return str((await response.json())["id"])

    return list(await asyncio.gather(*(one() for _ in range(count))))
