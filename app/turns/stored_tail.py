"""Reading stored events for every follower that memory cannot serve: replays, and turns that run on other replicas.

One statement serves all waiting followers of the process at once. It runs as soon as somebody asks, then every :data:`POLL_S` while
somebody waits, and sooner when another replica announces news.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import chain

from app.domain.errors import UnavailableError
from app.domain.ids import TurnId
from app.domain.turns import EventRow
from app.ports import Clock, TurnStore

logger = logging.getLogger(__name__)

POLL_S = 0.25
GAP_S = 0.01
"""Shortest time between two reads, so that many followers share one."""
CURSORS = 256
"""Cursors of one statement."""

Cursor = tuple[TurnId, int]
Answer = tuple[list[EventRow], bool]


class StoredTail:
    """Serves (turn, after) cursors from the store."""

    def __init__(self, store: TurnStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[Cursor, list[asyncio.Future[Answer]]] = {}
        self._asked = asyncio.Event()
        self._ended = False

    async def next(self, turn_id: TurnId, after: int) -> Answer:
        """The rows behind ``after`` as soon as there are any; an empty list with ``True`` when the turn is over."""
        if self._ended:
            rows, _ = (await self._store.read_events([(turn_id, after)]))[turn_id, after]
            return rows, not rows
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        cursor = (turn_id, after)
        self._waiting.setdefault(cursor, []).append(future)
        self.hint()
        try:
            return await future
        finally:
            futures = self._waiting.get(cursor, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del self._waiting[cursor]

    async def end(self) -> None:
        """From now on readers get what is stored and then an end: this process is leaving, clients go on elsewhere.

        Raises UnavailableError when the database is away; readers are ended all the same.
        """
        self._ended = True
        try:
            await self._read_all()
        finally:
            for future in chain.from_iterable(self._waiting.values()):
                if not future.done():
                    future.set_result(([], True))
            self._waiting.clear()

    def hint(self, _turn_id: str = "") -> None:
        """Look again soon."""
        self._asked.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._waiting:
            self.hint()  # started again after a fault: who waits must not wait for news
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._read_all()
            except UnavailableError:
                logger.warning("stored events cannot be read right now")
            await self._clock.sleep(GAP_S)
            if self._waiting:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for the next hint, at most POLL_S."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._asked.wait()
        except TimeoutError:
            self._asked.set()

    async def _read_all(self) -> None:
        cursors = list(self._waiting)
        for start in range(0, len(cursors), CURSORS):
            await self._read(cursors[start : start + CURSORS])

    async def _read(self, cursors: Sequence[Cursor]) -> None:
        for cursor, (rows, over) in (await self._store.read_events(cursors)).items():
            if not (rows or over):
                continue
            for future in self._waiting.pop(cursor, []):
                if not future.done():
                    future.set_result((rows, over))
