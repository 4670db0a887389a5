"""sse-starlette's response with one task a stream in place of four.

The library starts a task each for the body, for heartbeats, for the server's exit and for the client's leaving, and a cancel scope for
every piece it sends: a tenth of what a plain turn costs, and four of them are kept for every open stream. Here the body is sent by the
task that serves the request, heartbeats are timers, one task of the process listens for the server's exit by the library's own hook, and
only the client's leaving has a task of its own. What is sent is the same.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

_BEAT: Final = {"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True}
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}


class LiveResponse(EventSourceResponse):
    """Streams ready bytes; the first leaves at once, a comment follows every ``heartbeat_s``.

    Ends early when the client leaves or the server exits: the body is closed then, as at its end. ``closing`` is called behind that, with
    whether the body came to its end; also where it was never begun, whose own ``finally`` would not run.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        *,
        heartbeat_s: float,
        headers: Mapping[str, str],
        closing: Callable[[bool], Awaitable[None]],
    ) -> None:
        # Not the library's own: what that sets up (a lock, a shield, header objects) serves its own four tasks.
        self.status_code = 200
        self.background = None
        self.body_iterator = self._pieces = body
        self.raw_headers = [*_HEADERS, *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())]
        self._heartbeat_s = heartbeat_s
        self._closing = closing

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _Stream(send, self._heartbeat_s)
        leaving = asyncio.ensure_future(_end_when_left(receive, stream))
        _exit.open.add(stream)
        _exit.listen(self._listen_for_exit_signal)
        try:
            async with asyncio.timeout(None) as stream.until:
                await self._send_all(stream)
        except TimeoutError:
            if not stream.cut:
                raise  # not ours: something below timed out
        finally:
            _exit.open.discard(stream)
            leaving.cancel()
            try:
                await stream.stop()
            finally:
                await self._pieces.aclose()
                await self._closing(stream.ended)

    async def _send_all(self, stream: "_Stream") -> None:
        send = stream.send
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        stream.beat_later()
        async for piece in self._pieces:
            stream.busy = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            stream.busy = False
        stream.ended = True
        await stream.last_beat()
        await send(_END)


class _Stream:
    """One response under way."""

    __slots__ = ("_beat", "_heartbeat_s", "_loop", "_timer", "busy", "cut", "ended", "send", "until")

    def __init__(self, send: Send, heartbeat_s: float) -> None:
        self.send = send
        self.busy = False
        """A piece is on its way out: no heartbeat is needed then, and none may come between."""
        self.cut = False
        self.ended = False
        """The body has come to its end."""
        self.until: asyncio.Timeout | None = None
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Make the task that sends stop where it waits."""
        self.cut = True
        if self.until is not None:
            self.until.reschedule(self._loop.time())

    def beat_later(self) -> None:
        """The next heartbeat."""
        self._timer = self._loop.call_later(self._heartbeat_s, self._beat_now)

    async def last_beat(self) -> None:
        """No more heartbeats; one that a slow client holds up goes first: none may come behind the end."""
        self._end_timer()
        if self._beat is not None:
            await asyncio.wait((self._beat,))

    async def stop(self) -> None:
        """No more heartbeats, whatever became of the last one."""
        self._end_timer()
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat_now(self) -> None:
        if not self.busy and (self._beat is None or self._beat.done()):
            self._beat = asyncio.ensure_future(self._send_beat())
        self.beat_later()

    async def _send_beat(self) -> None:
        if self._timer is not None:
            await self.send(_BEAT)


async def _end_when_left(receive: Receive, stream: _Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end()


class _Exit:
    """Ends every open stream when the server exits, by sse-starlette's hook. Our own drain ends them before; this is for other ways out."""

    def __init__(self) -> None:
        self.open: set[_Stream] = set()
        self._listening: asyncio.Task[None] | None = None

    def listen(self, exits: Callable[[], Awaitable[None]]) -> None:
        """See that somebody waits on this event loop for ``exits``."""
        listening = self._listening
        if listening is None or listening.done() or listening.get_loop() is not asyncio.get_running_loop():
            self._listening = asyncio.ensure_future(self._listen(exits))

    async def _listen(self, exits: Callable[[], Awaitable[None]]) -> None:
        await exits()
        for stream in list(self.open):
            stream.end()


_exit: Final = _Exit()
