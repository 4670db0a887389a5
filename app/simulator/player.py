"""Plays one reply over a transport: at most one pending loop timer per stream, no task."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import assert_never

from app.simulator.reply import NUMBER_MARK, Ending, Reply

_TOGETHER_S = 0.001
"""Pieces due within this time leave in one write (it is also the resolution of loop timers)."""

_BEFORE_RESET_S = 0.02
"""Time between the last bytes and a reset, so that the client's system has taken them."""


class Player:
    """Writes the bytes of one reply when they are due.

    Calls `on_end(keeps_connection)` once when the reply is over. A reply that holds the
    connection is over only when the client goes, which the connection notices.
    """

    def __init__(self, transport: asyncio.WriteTransport, reply: Reply, unique: bytes, on_end: Callable[[bool], None]) -> None:
        self._transport = transport
        self._reply = reply
        self._unique = unique
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0
        self._due = 0.0
        self._paused = False
        self._waiting: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin: head and pieces that are due at once leave in one write."""
        self._due = self._loop.time()
        if self._reply.head_s:
            self._due += self._reply.head_s
            self._timer = self._loop.call_at(self._due, self._write_head)
        else:
            self._write_head()

    def stop(self) -> None:
        """Write nothing more."""
        self._waiting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self) -> None:
        """Hold back what is due: the client does not read."""
        self._paused = True

    def resume(self) -> None:
        """Go on: the client reads again."""
        self._paused = False
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting()

    def _write_head(self) -> None:
        if self._reply.gaps_s:
            self._due += self._reply.gaps_s[0]
        self._write_due(self._reply.head)

    def _on_timer(self) -> None:
        self._write_due(b"")

    def _write_due(self, head: bytes) -> None:
        pieces, gaps = self._reply.pieces, self._reply.gaps_s
        horizon = self._loop.time() + _TOGETHER_S
        first = self._next
        while self._next < len(pieces) and self._due <= horizon:
            self._next += 1
            if self._next < len(pieces):
                self._due += gaps[self._next]
        data = head + b"".join(pieces[first : self._next])
        if data:
            self._transport.write(data.replace(NUMBER_MARK, self._unique))
        self._when_read(self._schedule)

    def _schedule(self) -> None:
        if self._next < len(self._reply.pieces):
            self._timer = self._loop.call_at(self._due, self._on_timer)
        else:
            self._finish()

    def _when_read(self, then: Callable[[], None]) -> None:
        if self._paused:
            self._waiting = then
        else:
            then()

    def _finish(self) -> None:
        match self._reply.ending:
            case Ending.COMPLETE:
                self._on_end(True)
            case Ending.CLOSE:
                self._transport.close()
                self._on_end(False)
            case Ending.RESET:
                self._timer = self._loop.call_later(_BEFORE_RESET_S, self._reset)
            case Ending.HOLD:
                self._schedule_repeat()
            case _:
                assert_never(self._reply.ending)

    def _schedule_repeat(self) -> None:
        if self._reply.repeat is not None:
            self._timer = self._loop.call_later(self._reply.repeat.every_s, self._repeat)

    def _repeat(self) -> None:
        if self._reply.repeat is not None:
            self._transport.write(self._reply.repeat.data.replace(NUMBER_MARK, self._unique))
            self._when_read(self._schedule_repeat)

    def _reset(self) -> None:
        # SO_LINGER with a time of zero makes the system send RST instead of FIN (socket(7)).
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
        self._on_end(False)
