"""The event log: one way to read a turn, for its first reader, a second one, and a reconnect on any replica.

A follower is a cursor. Near the head of a turn that runs here it is served from memory, else from storage; both hold the same bytes.
Deltas of all turns are written in common batches; facts are written by their turn (:mod:`app.turns.writer`).
"""

import logging
from collections import Counter
from collections.abc import AsyncGenerator

from app.domain.errors import UnavailableError
from app.domain.ids import TurnId
from app.domain.turns import DeltaBatch, EventRow, RowKind
from app.ports import Clock, TurnStore, Wakeups
from app.turns.counters import Counters
from app.turns.lease import Lease
from app.turns.live import LiveTurn, Piece, cut
from app.turns.stored_tail import StoredTail

logger = logging.getLogger(__name__)

FLUSH_S = 0.1
"""How long a delta may stay unstored."""
BATCH_TURNS = 100
"""Turns of one delta statement."""
EVENTS_TOPIC = "events"
WATCH_EVERY_S = 0.7
WATCH_FOR_S = 2.0
"""How long a reader counts after it was last heard of, where another replica decides whether anybody reads."""


class EventLog:
    """Follows turns and stores deltas."""

    def __init__(self, store: TurnStore, *, lease: Lease, clock: Clock, wakeups: Wakeups, counters: Counters) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._wakeups = wakeups
        self._counters = counters
        self._live: dict[TurnId, LiveTurn] = {}
        self._watched: Counter[TurnId] = Counter()
        self.tail = StoredTail(store, clock)
        wakeups.subscribe(EVENTS_TOPIC, self.tail.hint)

    def add(self, live: LiveTurn) -> None:
        """A turn runs here now."""
        self._live[live.fence.turn_id] = live

    def remove(self, live: LiveTurn) -> None:
        """The turn has ended here; who still reads it goes on from storage."""
        if self._live.get(live.fence.turn_id) is live:
            del self._live[live.fence.turn_id]
        live.wake()

    def live(self, turn_id: TurnId) -> LiveTurn | None:
        """The turn's frames in memory, when it runs here."""
        return self._live.get(turn_id)

    def announce(self, turn_id: TurnId) -> None:
        """Tell followers on other replicas that something was stored."""
        self._wakeups.announce(EVENTS_TOPIC, (turn_id,))

    async def watch(self, turn_id: TurnId) -> None:
        """Say on every replica that somebody is about to read a turn. Raises UnavailableError."""
        await self._store.watch((turn_id,), WATCH_FOR_S)

    async def run_watches(self) -> None:
        """Say it again until cancelled for the turns that are read here with ``watched``."""
        while True:
            await self._clock.sleep(WATCH_EVERY_S)
            if self._watched:
                await self._store.watch(list(self._watched), WATCH_FOR_S)

    async def follow(self, turn_id: TurnId, after: int, *, watched: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield ready frames behind ``after``, several at a time, until the turn's terminal event.

        Waits while there is nothing. Storage faults are waited out: the reader sees heartbeats, then goes on. ``watched``: this reader
        keeps a turn going that ends with its client's connection.
        """
        cursor = after
        self._counters.followers += 1
        if watched:
            self._watched[turn_id] += 1
        attached = self._live.get(turn_id)
        if attached is not None:
            attached.followers += 1
        try:
            while True:
                piece = await self._next_piece(turn_id, cursor, attached)
                cursor = piece.last
                if piece.frames:
                    yield piece.frames
                if piece.end:
                    return
        finally:
            self._counters.followers -= 1
            if watched:
                self._unwatch(turn_id)
            if attached is not None:
                attached.followers -= 1

    def _unwatch(self, turn_id: TurnId) -> None:
        self._watched[turn_id] -= 1
        if not self._watched[turn_id]:
            del self._watched[turn_id]

    async def _next_piece(self, turn_id: TurnId, cursor: int, attached: LiveTurn | None) -> Piece:
        """``attached``: the turn as it ran here when the reader came; how it ended is read from there."""
        while True:
            live = self._live.get(turn_id)
            source = live or attached
            piece = None if source is None or source.lost else source.piece(cursor, stored_only=not self._lease.valid)
            if source is None or piece is None or not (piece.frames or live):
                return await self._stored_piece(turn_id, cursor)
            if piece.frames:
                return piece
            await source.changed()

    async def _stored_piece(self, turn_id: TurnId, cursor: int) -> Piece:
        rows, over = await self.tail.next(turn_id, cursor)
        if not rows:
            return Piece(b"", cursor, over)
        frames = b"".join([row.frames if row.first > cursor else cut(row, cursor) for row in rows])
        return Piece(frames, rows[-1].last, rows[-1].kind is RowKind.TERMINAL)

    async def run_flusher(self) -> None:
        """Store deltas about every FLUSH_S until cancelled; less often the more turns there are: each costs a row per batch."""
        while True:
            await self._clock.sleep(max(FLUSH_S, len(self._live) / 2_000))
            try:
                await self.flush()
            except UnavailableError:
                logger.warning("deltas cannot be stored right now")

    async def flush(self) -> None:
        """Store every unstored delta. Raises UnavailableError when the database is away: nothing is dropped."""
        waiting = [live for live in self._live.values() if live.unstored_since is not None and not live.lost and not live.write.locked()]
        for start in range(0, len(waiting), BATCH_TURNS):
            await self._flush_batch(waiting[start : start + BATCH_TURNS])

    async def _flush_batch(self, turns: list[LiveTurn]) -> None:
        claimed: list[tuple[LiveTurn, EventRow]] = []
        try:
            for live in turns:
                row = await _lock(live)
                if row is not None:
                    claimed.append((live, row))
            if not claimed:
                return
            held = await self._store_deltas(claimed)
            for live, row in claimed:
                if live.fence.turn_id in held:
                    live.mark_stored(row)
                else:
                    live.lose()
        finally:
            for live, _ in claimed:
                live.write.release()
        self._counters.delta_batches += 1
        self._wakeups.announce(EVENTS_TOPIC, held)

    async def _store_deltas(self, claimed: list[tuple[LiveTurn, EventRow]]) -> set[TurnId]:
        batches = [DeltaBatch(fence=live.fence, row=row) for live, row in claimed]
        try:
            return await self._store.append_deltas(batches)
        except UnavailableError:
            raise
        except Exception:
            logger.exception("a batch of deltas failed; trying its turns one by one")
        held: set[TurnId] = set()
        for batch in batches:
            try:
                held |= await self._store.append_deltas([batch])
            except UnavailableError:
                raise
            except Exception:
                # This turn cannot be stored: it is given up, so that it does not hold up the others.
                logger.exception("the deltas of one turn cannot be stored", extra={"turn_id": batch.fence.turn_id})
        return held


async def _lock(live: LiveTurn) -> EventRow | None:
    """Take a turn's write lock if it is free and there are unstored deltas; returns those."""
    if live.write.locked():
        return None
    await live.write.acquire()  # does not wait, except for a commit that is next in line: that one takes the deltas along
    row = live.unstored()
    if row is None:
        live.write.release()
    return row
