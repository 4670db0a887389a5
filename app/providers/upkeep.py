"""The provider layer's background work: it reads what other replicas know of targets, and forgets what is old."""

import logging
from typing import Final

from app.domain.errors import UnavailableError
from app.ports import Clock, HealthStore, RateWindowStore
from app.providers.health import QUIET_S, HealthBoard

logger = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
PRUNE_S: Final = 60.0


class Upkeep:
    """Runs until cancelled; a fault is logged and the work goes on."""

    def __init__(self, board: HealthBoard, health: HealthStore, windows: RateWindowStore, clock: Clock) -> None:
        self._board = board
        self._health = health
        self._windows = windows
        self._clock = clock

    async def run(self) -> None:
        """Refresh about every second, prune about every minute."""
        prune_at = self._clock.monotonic() + PRUNE_S
        while True:
            try:
                await self._board.refresh()
                if self._clock.monotonic() >= prune_at:
                    prune_at += PRUNE_S
                    await self.prune()
            except UnavailableError:
                pass  # the board has said so already
            except Exception:
                logger.exception("looking after the health of targets failed")  # a boundary: background work goes on
            await self._clock.sleep(REFRESH_S)

    async def prune(self) -> None:
        """Forget targets that have been quiet for long, and rate windows that hold nothing. Raises UnavailableError."""
        await self._health.prune(QUIET_S)
        await self._windows.prune()
