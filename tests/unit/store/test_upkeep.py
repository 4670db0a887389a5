import asyncio

from typing_extensions import override

from app.domain.errors import UnavailableError
from app.ports import ArchiveStore
from app.store.search_index import SearchIndex, SweptTo
from app.store.upkeep import INDEX_S, PRUNE_S, SWEEP_AFTER_S, SWEEP_EVERY_S, StoreUpkeep
from tests.fakes.clock import HandClock, settle


class Index(SearchIndex):
    """Has so many batches left; fails as it is told."""

    def __init__(self) -> None:
        self.left = 0
        self.calls = 0
        self.error: Exception | None = None
        self.swept: list[SweptTo | None] = []
        """Where each batch of a sweep began."""

    @override
    async def sweep(self, after: SweptTo | None) -> SweptTo | None:
        self.swept.append(after)
        return SweptTo("sess_1", len(self.swept)) if len(self.swept) % 3 else None

    @override
    async def catch_up(self) -> int:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.left = max(0, self.left - 1)
        return self.left


class Archive(ArchiveStore):
    def __init__(self) -> None:
        self.removes = [1_000, 3, 0]
        self.ages: list[float] = []

    @override
    async def prune(self, age_s: float) -> int:
        self.ages.append(age_s)
        return self.removes.pop(0) if self.removes else 0


async def test_the_queue_is_worked_off_to_its_end_about_every_second() -> None:
    clock, index = HandClock(), Index()
    index.left = 5
    work = asyncio.ensure_future(StoreUpkeep(index, Archive(), clock, retention_s=None).run())
    await settle()
    assert (index.calls, clock.slept) == (5, [INDEX_S])
    await clock.advance(INDEX_S)
    assert index.calls == 6
    work.cancel()


async def test_a_fault_stops_nothing() -> None:
    clock, index = HandClock(), Index()
    work = asyncio.ensure_future(StoreUpkeep(index, Archive(), clock, retention_s=None).run())
    for error in (UnavailableError("storage_unavailable", "away"), RuntimeError("broken")):
        index.error = error
        await settle()
        await clock.advance(INDEX_S)
    index.error = None
    await clock.advance(INDEX_S)
    assert index.calls >= 4
    assert not work.done()
    work.cancel()


async def test_archived_messages_go_when_they_are_old_and_stay_by_default() -> None:
    for retention_s, ages in ((None, []), (3_600.0, [3_600.0] * 3)):
        clock, archive = HandClock(), Archive()
        work = asyncio.ensure_future(StoreUpkeep(Index(), archive, clock, retention_s=retention_s).run())
        await settle()
        assert archive.ages == []
        await clock.advance(PRUNE_S)
        assert archive.ages == ages
        work.cancel()


async def test_the_index_is_swept_some_time_after_the_start_and_every_day_in_small_steps() -> None:
    clock, index = HandClock(), Index()
    work = asyncio.ensure_future(StoreUpkeep(index, Archive(), clock, retention_s=None).run())
    await settle()
    await clock.advance(SWEEP_AFTER_S - 1)
    assert index.swept == []
    whole = [None, SweptTo("sess_1", 1), SweptTo("sess_1", 2)]
    for steps in (1, 2, 3, 3):
        await clock.advance(INDEX_S)
        assert index.swept == whole[:steps]
    await clock.advance(SWEEP_EVERY_S)
    assert index.swept == [*whole, None]
    work.cancel()
