"""Places for running tool calls: as many as the process allows at once, handed to the turns that wait by turns."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CallPlaces:
    """At most ``size`` calls at once. Whoever finds none free waits.

    The turns that wait are served one call each, in the order in which they began to wait, and each turn's calls in theirs: a turn with
    hundreds of calls holds nobody up for longer than one round. For one event loop.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._running = 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def size(self) -> int:
        """Calls that may run at once."""
        return self._size

    @property
    def running(self) -> int:
        """Calls that run; above ``size`` for a while after that was lowered."""
        return self._running

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return sum(not place.done() for line in self._lines.values() for place in line)

    def resize(self, size: int) -> None:
        """Allow another number at once: more begin now, or those that run too many end first. What waits goes on waiting."""
        self._size = size
        self._hand_out()

    @asynccontextmanager
    async def taken(self, turn: str) -> AsyncIterator[None]:
        """A place for one call of ``turn``, as long as the block lasts. Cancelled while it waits, it leaves the line."""
        if self._running < self._size and not self._lines:
            self._running += 1
        else:
            await self._wait(turn)
        try:
            yield
        finally:
            self._running -= 1
            self._hand_out()

    async def _wait(self, turn: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(turn, deque()).append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._running -= 1  # it was handed over in the same moment
            self._leave(turn, place)
            self._hand_out()
            raise

    def _leave(self, turn: str, place: asyncio.Future[None]) -> None:
        line = self._lines.get(turn)
        if line is not None and place in line:
            line.remove(place)
            if not line:
                del self._lines[turn]

    def _hand_out(self) -> None:
        while self._running < self._size and self._lines:
            turn, line = self._lines.popitem(last=False)
            place = line.popleft()
            if line:
                self._lines[turn] = line  # behind all others
            if not place.done():
                place.set_result(None)
                self._running += 1
