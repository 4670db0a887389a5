import asyncio

from app.turns.counters import Counters
from app.turns.pacing import BUSY, IDLE, MANY_TURNS, MAX_WAIT_S, MEASURE_S, STEP_S, Pacing
from tests.fakes.clock import HandClock, settle


def test_an_idle_process_never_waits() -> None:
    pacing = Pacing(HandClock(), Counters(active=MANY_TURNS))
    for _ in range(10):
        pacing.adjust(IDLE - 0.1)
    assert pacing.wait_s == 0.0


def test_the_wait_grows_with_the_load_up_to_its_bound_and_goes_back() -> None:
    pacing = Pacing(HandClock(), Counters(active=MANY_TURNS))
    pacing.adjust(BUSY + 0.1)
    assert pacing.wait_s == STEP_S
    for _ in range(20):
        pacing.adjust(1.0)
    assert pacing.wait_s == MAX_WAIT_S
    pacing.adjust((BUSY + IDLE) / 2)
    assert pacing.wait_s == MAX_WAIT_S
    for _ in range(20):
        pacing.adjust(0.0)
    assert pacing.wait_s == 0.0


async def test_the_load_is_the_cpu_time_used_since_the_last_look() -> None:
    clock, used = HandClock(), [0.0]
    pacing = Pacing(clock, Counters(active=MANY_TURNS), lambda: used[0])
    running = asyncio.ensure_future(pacing.run())
    await settle()
    used[0] += 0.9 * MEASURE_S
    await clock.advance(MEASURE_S)
    assert pacing.wait_s == STEP_S
    used[0] += 0.1 * MEASURE_S
    await clock.advance(MEASURE_S)
    assert pacing.wait_s == 0.0
    running.cancel()


def test_few_turns_never_wait_however_busy_the_process_is() -> None:
    pacing = Pacing(HandClock(), Counters(active=MANY_TURNS - 1))
    pacing.adjust(1.0)
    assert pacing.wait_s == 0.0
