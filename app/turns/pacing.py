"""Pacing: under load, tokens of a turn leave together instead of one by one.

Waking a turn and its readers costs ten times what one more token in the same wake-up costs. So when the process is busy, the stream of a
turn that has shown something rests a moment: what arrives meanwhile stays with the socket and then goes the whole way together. An idle
process never waits, the first token of a turn never waits, and the wait grows and shrinks with the load.
"""

import time
from collections.abc import Callable

from app.ports import Clock
from app.turns.counters import Counters

MEASURE_S = 0.25
BUSY = 0.35
"""Part of a core above which the wait grows."""
IDLE = 0.20
"""Part of a core below which it shrinks."""
MANY_TURNS = 100
"""With fewer turns the load is not that of waking up."""
STEP_S = 0.02
MAX_WAIT_S = 0.25


class Pacing:
    """How long turns wait between two pieces, measured from the CPU time that this process uses."""

    def __init__(self, clock: Clock, counters: Counters, cpu_time: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._counters = counters
        self._cpu_time = cpu_time
        self.wait_s = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        wall, cpu = self._clock.monotonic(), self._cpu_time()
        while True:
            await self._clock.sleep(MEASURE_S)
            now, used = self._clock.monotonic(), self._cpu_time()
            self.adjust((used - cpu) / max(now - wall, MEASURE_S))
            wall, cpu = now, used

    def adjust(self, load: float) -> None:
        """Take one measurement, in parts of a core."""
        if load > BUSY and self._counters.active >= MANY_TURNS:
            self.wait_s = min(MAX_WAIT_S, self.wait_s + STEP_S)
        elif load < IDLE or self._counters.active < MANY_TURNS:
            self.wait_s = max(0.0, self.wait_s - STEP_S)
