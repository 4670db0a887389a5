"""Responses that stream: heartbeats and ends in order, and nothing left behind however they end."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message

from app.api.live_response import LiveResponse

SOON_S = 0.01
NEVER_S = 600.0


@dataclass
class Wire:
    """The server's side of a response: what was sent, what holds a sending up, and when the client leaves."""

    sent: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """A sending that begins with this text waits for its event."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a sending waits."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    closed: list[bool] = field(default_factory=list)
    """What ``closing`` was told."""

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        what = message["type"] if message["type"] != "http.response.body" else message["body"].decode().strip() or "end"
        gate = next((gate for begin, gate in self.held.items() if what.startswith(begin)), None)
        if gate is not None:
            self.reached.set()
            await gate.wait()
        self.sent.append(what)

    async def closing(self, ended: bool) -> None:
        self.closed.append(ended)

    async def respond(self, body: AsyncGenerator[bytes, None], heartbeat_s: float = NEVER_S) -> None:
        response = LiveResponse(body, heartbeat_s=heartbeat_s, headers={}, closing=self.closing)
        await response({"type": "http"}, self.receive, self.send)


async def pieces(*texts: str, begun: list[str] | None = None, gate: asyncio.Event | None = None) -> AsyncGenerator[bytes, None]:
    for text in texts:
        if begun is not None:
            begun.append(text)
        yield text.encode()
    if gate is not None:
        await gate.wait()


async def others() -> set[asyncio.Task[Any]]:
    """Tasks beside the test's own and the process's listener for the server's exit."""
    await asyncio.sleep(0)
    running = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in running if "_Exit" not in repr(task) and "_listen" not in repr(task)}


async def test_a_body_is_sent_to_its_end() -> None:
    wire = Wire()
    await wire.respond(pieces("a", "b"))
    assert (wire.sent, wire.closed) == (["http.response.start", "a", "b", "end"], [True])


async def test_a_client_that_leaves_before_the_body_began_ends_it_all_the_same() -> None:
    wire = Wire(held={"http.response.start": asyncio.Event()})
    begun: list[str] = []
    responding = asyncio.create_task(wire.respond(pieces("a", begun=begun)))
    await wire.reached.wait()
    wire.left.set()
    await responding
    assert (wire.sent, begun, wire.closed) == ([], [], [False])


async def test_a_task_that_is_cancelled_closes_too() -> None:
    wire = Wire(held={"a": asyncio.Event()})
    responding = asyncio.create_task(wire.respond(pieces("a")))
    await wire.reached.wait()
    responding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await responding
    assert (wire.closed, await others()) == ([False], set())


async def test_a_heartbeat_that_is_held_up_goes_before_the_end() -> None:
    gate, end = asyncio.Event(), asyncio.Event()
    wire = Wire(held={": keep-alive": gate})
    responding = asyncio.create_task(wire.respond(pieces("a", gate=end), SOON_S))
    await wire.reached.wait()
    end.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert wire.sent == ["http.response.start", "a"]
    gate.set()
    await responding
    assert (wire.sent, wire.closed) == (["http.response.start", "a", ": keep-alive", "end"], [True])


async def test_a_heartbeat_that_is_held_up_does_not_outlive_its_response() -> None:
    wire = Wire(held={": keep-alive": asyncio.Event()})
    responding = asyncio.create_task(wire.respond(pieces("a", gate=asyncio.Event()), SOON_S))
    await wire.reached.wait()
    wire.left.set()
    await responding
    assert (wire.sent, wire.closed) == (["http.response.start", "a"], [False])
    assert await others() == set()
