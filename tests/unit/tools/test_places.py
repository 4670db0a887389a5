"""Places for running calls: bounded, fair between turns, and of any number at any time."""

import asyncio

import pytest

from app.tools.places import CallPlaces


class Crowd:
    """Calls that hold a place until they are let go. ``began`` names them in the order in which they began."""

    def __init__(self, places: CallPlaces) -> None:
        self.places = places
        self.began: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, *names: str) -> None:
        """Calls by name; the first letter is the turn."""
        for name in names:
            self._go[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._hold(name))
        await settled()

    async def end(self, *names: str) -> None:
        """Let calls go that run."""
        for name in names:
            self._go[name].set()
            await self._tasks[name]
        await settled()

    async def cancel(self, name: str) -> None:
        """Cancel a call, wherever it is."""
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await settled()

    async def end_all(self) -> None:
        """Let everybody go."""
        for go in self._go.values():
            go.set()
        await asyncio.wait(self._tasks.values())

    def cancel_soon(self, name: str) -> None:
        """Cancel a call without letting anything else happen first."""
        self._tasks[name].cancel()

    def let_go(self, name: str) -> None:
        """Let a call go without letting anything else happen first."""
        self._go[name].set()

    async def _hold(self, name: str) -> None:
        async with self.places.taken(name[0]):
            self.began.append(name)
            await self._go[name].wait()


async def settled() -> None:
    """Everything that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_more_run_than_there_are_places() -> None:
    crowd = Crowd(CallPlaces(2))
    await crowd.join("a1", "a2", "a3")
    assert (crowd.began, crowd.places.running, crowd.places.waiting) == (["a1", "a2"], 2, 1)
    await crowd.end("a2")
    assert (crowd.began, crowd.places.running, crowd.places.waiting) == (["a1", "a2", "a3"], 2, 0)
    await crowd.end_all()
    assert crowd.places.running == 0


async def test_turns_that_wait_are_served_by_turns_and_their_calls_in_order() -> None:
    crowd = Crowd(CallPlaces(1))
    await crowd.join("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for _ in range(6):
        await crowd.end(crowd.began[-1])
    assert crowd.began == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    await crowd.end_all()


async def test_more_places_let_what_waits_begin_at_once() -> None:
    crowd = Crowd(CallPlaces(1))
    await crowd.join("a1", "a2", "a3", "a4")
    crowd.places.resize(3)
    await settled()
    assert (crowd.began, crowd.places.size, crowd.places.waiting) == (["a1", "a2", "a3"], 3, 1)
    await crowd.end_all()


async def test_fewer_places_interrupt_nobody_and_lose_nobody() -> None:
    crowd = Crowd(CallPlaces(3))
    await crowd.join("a1", "a2", "a3", "a4", "a5")
    crowd.places.resize(1)
    await settled()
    assert (crowd.places.running, crowd.places.waiting) == (3, 2)
    await crowd.end("a1", "a2")
    assert (crowd.began, crowd.places.running) == (["a1", "a2", "a3"], 1)
    await crowd.end("a3")
    await crowd.end("a4")
    assert crowd.began[-1] == "a5"
    await crowd.end_all()


@pytest.mark.parametrize("name", ["a1", "a2", "b1"])
async def test_a_cancelled_call_leaves_its_place_to_the_others(name: str) -> None:
    crowd = Crowd(CallPlaces(1))
    await crowd.join("a1", "a2", "b1")
    await crowd.cancel(name)
    for other in ("a1", "a2", "b1"):
        if other != name:
            await crowd.end(other)
    assert (crowd.places.running, crowd.places.waiting) == (0, 0)


async def test_a_place_that_was_handed_to_a_call_cancelled_in_the_same_moment_is_handed_on() -> None:
    crowd = Crowd(CallPlaces(1))
    await crowd.join("a1", "b1", "c1")
    crowd.let_go("a1")
    while crowd.places.waiting == 2:
        await asyncio.sleep(0)
    crowd.cancel_soon("b1")
    await settled()
    assert (crowd.began, crowd.places.running, crowd.places.waiting) == (["a1", "c1"], 1, 0)
    await crowd.end_all()
    assert crowd.places.running == 0
