"""The frames of a running turn in memory: what is not stored yet, and a small tail for followers that are close behind.

Bounded: a turn that has :data:`MAX_UNSTORED_BYTES` unstored stops reading its provider until storage has caught up; stored frames are
kept up to :data:`TAIL_BYTES`. Sequence numbers shown but not stored are therefore far fewer than the gap left at a takeover.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.domain.events import FrameEncoder, frame_seq, split_frames
from app.domain.turns import EventRow, Fence, RowKind

TAIL_BYTES = 8_192
MAX_UNSTORED_BYTES = 524_288


@dataclass(frozen=True, slots=True)
class Piece:
    """What a follower gets next: ready frames up to ``last``; ``end`` when nothing follows."""

    frames: bytes
    last: int
    end: bool


class LiveTurn:
    """Frames of one turn, appended by its writer, read by followers and the flusher."""

    def __init__(self, fence: Fence, last_seq: int, rows: Sequence[EventRow] = ()) -> None:
        """``rows``: the last stored ones, up to ``last_seq``."""
        self.fence = fence
        self.encoder = FrameEncoder(fence.turn_id)
        self.last_seq = last_seq
        """The newest sequence number given out."""
        self.stored_seq = last_seq
        """Everything up to here is in Postgres."""
        self.lost = False
        self.followers = 0
        self.unstored_bytes = 0
        self.unstored_since: float | None = None
        self.write = asyncio.Lock()
        """One write in flight per turn."""
        self._stored: deque[EventRow] = deque()
        self._stored_bytes = 0
        self._fresh: list[EventRow] = []
        self._floor = rows[0].first - 1 if rows else last_seq
        """Frames up to here are not in memory."""
        self._waiters: list[asyncio.Future[None]] = []
        self._withheld = False
        """A follower was not shown unstored deltas: it wants to know when they are stored."""
        self._drained = asyncio.Event()
        self._drained.set()
        for row in rows:
            self._keep(row)

    def show(self, first: int, last: int, frames: bytes, now: float) -> None:
        """Append unstored deltas and wake followers."""
        self._fresh.append(EventRow(first, last, RowKind.DELTAS, frames))
        self.last_seq = last
        self.unstored_bytes += len(frames)
        if self.unstored_since is None:
            self.unstored_since = now
        if self.unstored_bytes > MAX_UNSTORED_BYTES:
            self._drained.clear()
        self.wake()

    def add_stored(self, row: EventRow) -> None:
        """Append facts that are in Postgres, and wake followers."""
        self.last_seq = row.last
        self._keep(row)
        self.wake()

    def unstored(self) -> EventRow | None:
        """All unstored deltas as one row, or ``None``."""
        if not self._fresh:
            return None
        if len(self._fresh) == 1:
            return self._fresh[0]
        return EventRow(self._fresh[0].first, self._fresh[-1].last, RowKind.DELTAS, b"".join([row.frames for row in self._fresh]))

    def mark_stored(self, row: EventRow) -> None:
        """The deltas of ``row``, which :meth:`unstored` gave, are in Postgres now."""
        self._fresh = [fresh for fresh in self._fresh if fresh.first > row.last]
        self.unstored_bytes = sum(len(fresh.frames) for fresh in self._fresh)
        if not self._fresh:
            self.unstored_since = None
        if self.unstored_bytes <= MAX_UNSTORED_BYTES:
            self._drained.set()
        self._keep(row)
        if self._withheld:
            self._withheld = False
            self.wake()

    async def wait_drained(self) -> None:
        """Return when storage has caught up enough to go on."""
        if self.unstored_bytes > MAX_UNSTORED_BYTES:
            await self._drained.wait()

    def lose(self) -> None:
        """Another replica owns the turn: followers go to storage, the writer must stop."""
        self.lost = True
        self._drained.set()
        self.wake()

    def piece(self, after: int, *, stored_only: bool) -> Piece | None:
        """The frames behind ``after``; ``None`` when memory does not reach back that far.

        With ``stored_only`` unstored deltas are held back. An empty piece means: nothing yet.
        """
        if after < self._floor:
            return None
        self._withheld |= stored_only and bool(self._fresh)
        parts: list[bytes] = []
        last, end = after, False
        for row in self._behind(after, stored_only=stored_only):
            parts.append(row.frames if row.first > after else cut(row, after))
            if row.last > last:
                last, end = row.last, row.kind is RowKind.TERMINAL
        parts.reverse()
        return Piece(b"".join(parts), last, end)

    def _behind(self, after: int, *, stored_only: bool) -> Iterator[EventRow]:
        """Rows with something behind ``after``, newest first: a follower that keeps up costs no look at the tail."""
        if not stored_only:
            for row in reversed(self._fresh):
                if row.last <= after:
                    return
                yield row
        for row in reversed(self._stored):
            if row.last <= after:
                return
            yield row

    async def changed(self) -> None:
        """Return when something was appended or the turn was lost."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                self._waiters = [other for other in self._waiters if other is not waiter]

    def wake(self) -> None:
        """Wake every follower."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _keep(self, row: EventRow) -> None:
        self.stored_seq = row.last
        self._stored.append(row)
        self._stored_bytes += len(row.frames)
        while self._stored_bytes > TAIL_BYTES and len(self._stored) > 1:
            gone = self._stored.popleft()
            self._stored_bytes -= len(gone.frames)
            self._floor = gone.last


def cut(row: EventRow, after: int) -> bytes:
    """The frames of ``row`` behind ``after``."""
    return b"".join(frame for frame in split_frames(row.frames) if frame_seq(frame) > after)
