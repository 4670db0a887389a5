"""The lease: this process's right to own turns, one heartbeat row for all of them.

A replica that has not renewed for a TTL shows nothing and starts no call until it has: time is its own monotonic clock, counted from the
moment before the beat was sent, so it can never believe in its lease longer than the database does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.domain.errors import UnavailableError
from app.domain.ids import ReplicaId
from app.ports import Clock, ReplicaStore

logger = logging.getLogger(__name__)


class Lease:
    """Heartbeats of one replica."""

    def __init__(self, replica: ReplicaId, store: ReplicaStore, clock: Clock, *, ttl_s: float, beat_s: float) -> None:
        self.replica = replica
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._beat_s = beat_s
        self._sent_at: float | None = None
        self._contact_since: float | None = None
        self._renewed = asyncio.Event()
        self._next = asyncio.Event()
        self.stamp = 0
        """What the last beat returned: it is named to the database where others are judged."""

    @property
    def valid(self) -> bool:
        """Whether turns of this replica are surely still its own."""
        return self._sent_at is not None and self._clock.monotonic() - self._sent_at < self._ttl_s

    @property
    def settled(self) -> bool:
        """Whether contact with the database has lasted a full TTL, so that a silent replica really had the chance to speak."""
        return self.valid and self._contact_since is not None and self._clock.monotonic() - self._contact_since >= self._ttl_s

    async def wait_valid(self) -> None:
        """Return as soon as the lease is valid."""
        while not self.valid:
            self._renewed.clear()
            await self._renewed.wait()

    async def wait_beaten(self) -> None:
        """Return right after the next beat that reached the database: none is under way then."""
        self._next.clear()
        await self._next.wait()

    async def beat(self, revalidate: Callable[[], Awaitable[None]]) -> None:
        """Renew once. After a lapse ``revalidate`` drops what others have taken meanwhile, before the lease counts again.

        Raises UnavailableError when the database is away.
        """
        sent_at = self._clock.monotonic()
        lapsed = self._sent_at is not None and not self.valid
        late = self._sent_at is None or sent_at - self._sent_at > 2 * self._beat_s
        try:
            stamp = await self._store.beat(self.replica, self._ttl_s)
            if lapsed:
                logger.warning("the lease had lapsed; checking which turns are still ours")
                await revalidate()
        except UnavailableError:
            self._contact_since = None
            raise
        if late or self._contact_since is None:
            self._contact_since = sent_at
        self._sent_at, self.stamp = sent_at, stamp
        self._renewed.set()
        self._next.set()

    async def run(self, revalidate: Callable[[], Awaitable[None]]) -> None:
        """Beat until cancelled; sooner again while the database is away."""
        while True:
            try:
                await self.beat(revalidate)
                await self._clock.sleep(self._beat_s)
            except UnavailableError:
                logger.warning("the heartbeat did not reach the database")
                await self._clock.sleep(min(1.0, self._beat_s))
