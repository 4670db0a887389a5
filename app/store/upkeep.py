"""The storage's background work: the search index, and the end of archived messages."""

import logging
from typing import Final

from app.domain.errors import UnavailableError
from app.ports import ArchiveStore, Clock
from app.store.search_index import SearchIndex, SweptTo

logger = logging.getLogger(__name__)

INDEX_S: Final = 1.0
PRUNE_S: Final = 60.0
SWEEP_AFTER_S: Final = 600.0
"""After the start: by then replicas of an earlier version, which do not note what they write, have left."""
SWEEP_EVERY_S: Final = 86_400.0


class StoreUpkeep:
    """Runs until cancelled; a fault is logged and the work goes on.

    ``retention_s`` is how old archived messages get, ``None``: they stay.
    """

    def __init__(self, index: SearchIndex, archive: ArchiveStore, clock: Clock, *, retention_s: float | None) -> None:
        self._index = index
        self._archive = archive
        self._clock = clock
        self._retention_s = retention_s
        self._sweep_at = clock.monotonic() + SWEEP_AFTER_S
        self._swept_to: SweptTo | None = None

    async def run(self) -> None:
        """Index about every second, prune about every minute, look for what is missing in the index about every day."""
        prune_at = self._clock.monotonic() + PRUNE_S
        while True:
            try:
                while await self._index.catch_up():
                    pass
                if self._clock.monotonic() >= prune_at:
                    prune_at += PRUNE_S
                    await self.prune()
                if self._clock.monotonic() >= self._sweep_at:
                    await self._sweep()
            except UnavailableError:
                pass  # who serves requests says so
            except Exception:
                logger.exception("indexing or pruning messages failed")  # a boundary: background work goes on
            await self._clock.sleep(INDEX_S)

    async def _sweep(self) -> None:
        """One batch in each round, so that a large table is read slowly."""
        self._swept_to = await self._index.sweep(self._swept_to)
        if self._swept_to is None:
            self._sweep_at = self._clock.monotonic() + SWEEP_EVERY_S

    async def prune(self) -> None:
        """Delete archived messages that are older than they are kept. Raises UnavailableError."""
        if self._retention_s is not None:
            while await self._archive.prune(self._retention_s):
                pass
