"""What every :class:`app.ports.Clock` does."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC

import pytest

from app.clock import SystemClock
from app.ports import Clock
from tests.fakes.clock import HandClock, settle


@dataclass(frozen=True, slots=True)
class Timepiece:
    """A clock and the way to let its time pass."""

    clock: Clock
    let_pass: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["system", "hand-driven"])
def timepiece(request: pytest.FixtureRequest) -> Timepiece:
    if request.param == "system":
        return Timepiece(SystemClock(), asyncio.sleep)
    hand = HandClock()
    return Timepiece(hand, hand.advance)


async def test_its_three_times_agree_and_move_on(timepiece: Timepiece) -> None:
    clock = timepiece.clock
    now, unix_ms, monotonic = clock.now(), clock.unix_ms(), clock.monotonic()
    assert now.tzinfo is UTC
    assert now.timestamp() * 1000 == pytest.approx(unix_ms, abs=50)
    await timepiece.let_pass(0.05)
    assert clock.now() > now
    assert clock.unix_ms() >= unix_ms + 49
    assert clock.monotonic() >= monotonic + 0.049


async def test_sleepers_wake_in_the_order_of_their_times_and_not_before(timepiece: Timepiece) -> None:
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        before = timepiece.clock.monotonic()
        await timepiece.clock.sleep(seconds)
        assert timepiece.clock.monotonic() - before >= seconds - 0.001
        woken.append(name)

    tasks = [asyncio.create_task(sleeper("late", 0.06)), asyncio.create_task(sleeper("early", 0.02))]
    await settle(2)
    assert woken == []
    await timepiece.let_pass(0.03)
    await timepiece.let_pass(0.05)
    await asyncio.gather(*tasks)
    assert woken == ["early", "late"]


async def test_a_sleep_can_be_cancelled(timepiece: Timepiece) -> None:
    sleeping = asyncio.create_task(timepiece.clock.sleep(60.0))
    await settle(2)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await timepiece.let_pass(0.01)
