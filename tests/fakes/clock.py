"""A clock that a test drives by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class HandClock:
    """Time stands still until :meth:`advance`; sleepers wake when their time has come."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.slept: list[float] = []
        """Every wait that was asked for, in seconds."""

    def now(self) -> datetime:
        return START + timedelta(seconds=self._now_s)

    def unix_ms(self) -> int:
        return int(self.now().timestamp() * 1000)

    def monotonic(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_s + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` and let everything run that this wakes."""
        self._now_s += seconds
        due = [future for at, future in self._sleepers if at <= self._now_s]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self._now_s]
        for future in due:
            if not future.done():
                future.set_result(None)
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let every task run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)
