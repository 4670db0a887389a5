"""The real clock."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """The machine's clocks, as :class:`app.ports.Clock`."""

    def now(self) -> datetime:
        """The wall clock, aware, UTC."""
        return datetime.now(UTC)

    def unix_ms(self) -> int:
        """The wall clock in unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back and count on while the process is stopped."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        await asyncio.sleep(seconds)
