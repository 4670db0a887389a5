"""Time."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Time. Tests put a hand-driven one in its place."""

    def now(self) -> datetime:
        """The wall clock, aware, UTC."""

    def unix_ms(self) -> int:
        """The wall clock in unix milliseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back and count on while the process is stopped."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; cancellable."""
