"""A clock that makes waits short, and one way to let minutes pass for everything that lasts minutes."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from app.store.engine import Database

UNTIMED: dict[str, Any] = {"lease_ttl_s": 3_600.0}
"""Settings of a gateway on such a clock: its lease is judged by the clock and renewed by the machine."""

_AGE = (
    text("""
UPDATE cooldowns SET until_at = until_at - make_interval(secs => :seconds), updated_at = updated_at - make_interval(secs => :seconds),
                     probe_until = probe_until - make_interval(secs => :seconds)
"""),
    text("""
UPDATE rate_windows SET updated_at = updated_at - make_interval(secs => :seconds),
                        seconds = ARRAY(SELECT x - CAST(:seconds AS integer) FROM unnest(seconds) AS x ORDER BY x)
"""),
)


class QuickClock:
    """The machine's clock, ``ahead_s`` put forward and running ``speed`` times as fast."""

    def __init__(self, speed: float = 1.0) -> None:
        self._speed = speed
        self._began = time.monotonic()
        self._began_at = datetime.now(UTC)
        self.ahead_s = 0.0

    @property
    def _passed_s(self) -> float:
        return (time.monotonic() - self._began) * self._speed + self.ahead_s

    def now(self) -> datetime:
        return self._began_at + timedelta(seconds=self._passed_s)

    def unix_ms(self) -> int:
        return int(self.now().timestamp() * 1000)

    def monotonic(self) -> float:
        return self._began + self._passed_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


async def let_pass(seconds: int, clock: QuickClock, database: Database) -> None:
    """Cool-downs and rate windows become ``seconds`` older, in the process and in the database."""
    async with database.transaction() as connection:
        for statement in _AGE:
            await connection.execute(statement, {"seconds": seconds})
    clock.ahead_s += seconds
