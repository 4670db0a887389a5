import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from typing_extensions import override

from app.domain.errors import UnavailableError
from app.domain.ids import TurnId
from app.domain.openings import OpenTurn
from app.domain.turns import DeltaBatch, EventRow, RowKind
from app.turns.stored_tail import CURSORS, GAP_S, StoredTail
from tests.fakes.clock import HandClock, settle
from tests.fakes.turns import InMemoryTurns
from tests.unit.turns.stage import Stage


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
async def tail(stage: Stage) -> AsyncIterator[StoredTail]:
    tail = StoredTail(stage.turns, stage.clock)
    running = asyncio.ensure_future(tail.run())
    yield tail
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def store(stage: Stage, turn: OpenTurn, first: int, last: int) -> None:
    frames = b"".join(b"id: %d\n\n" % seq for seq in range(first, last + 1))
    await stage.turns.append_deltas([DeltaBatch(fence=turn.fence, row=EventRow(first, last, RowKind.DELTAS, frames))])


async def answers(clock: HandClock, *asked: "asyncio.Future[tuple[list[EventRow], bool]]") -> list[tuple[list[int], bool]]:
    for _ in range(20):
        await clock.advance(GAP_S)
        if all(future.done() for future in asked):
            break
        await asyncio.sleep(0.02)
    return [([row.first for row in future.result()[0]], future.result()[1]) for future in asked]


async def test_what_is_stored_comes_at_once(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    rows, over = await tail.next(turn.fence.turn_id, 0)
    assert ([row.first for row in rows], over) == ([1], False)


async def test_all_waiting_cursors_of_the_process_share_one_statement(stage: Stage, tail: StoredTail) -> None:
    turns = [await stage.opened() for _ in range(40)]
    asked = [asyncio.ensure_future(tail.next(turn.fence.turn_id, 0)) for turn in turns for _ in range(5)]
    found = await answers(stage.clock, *asked)
    assert found == [([1], False)] * 200
    assert stage.turns.cursors_read == [40]


async def test_a_statement_has_a_bounded_number_of_cursors(stage: Stage, tail: StoredTail) -> None:
    turns = [await stage.opened() for _ in range(CURSORS + 1)]
    asked = [asyncio.ensure_future(tail.next(turn.fence.turn_id, 0)) for turn in turns]
    await answers(stage.clock, *asked)
    assert stage.turns.cursors_read == [CURSORS, 1]


async def test_news_that_nobody_announced_is_found_by_polling(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 1))
    await settle()
    await store(stage, turn, 2, 4)
    assert await answers(stage.clock, asked) == [([2], False)]


async def test_a_hint_is_followed_at_once(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 1))
    await settle()
    await stage.clock.advance(GAP_S)
    await store(stage, turn, 2, 4)
    tail.hint(turn.fence.turn_id)
    await settle()
    assert asked.done()


async def test_nobody_waiting_means_no_statement(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 1))
    await settle()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await stage.clock.advance(GAP_S)
    reads = stage.turns.calls["read_events"]
    for _ in range(30):
        await asyncio.sleep(0.02)
        await stage.clock.advance(GAP_S)
    assert stage.turns.calls["read_events"] <= reads + 1
    assert not tail._waiting


async def test_of_two_readers_at_one_cursor_the_other_stays_when_one_leaves(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    leaving, staying = (asyncio.ensure_future(tail.next(turn.fence.turn_id, 1)) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    await store(stage, turn, 2, 2)
    assert await answers(stage.clock, staying) == [([2], False)]


async def test_a_database_that_is_away_is_waited_for(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    stage.away(True)
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 0))
    await settle()
    await stage.clock.advance(GAP_S)
    assert not asked.done()
    stage.away(False)
    assert await answers(stage.clock, asked) == [([1], False)]


class FaultyTurns(InMemoryTurns):
    """The first reads end in a fault that nobody expects."""

    faults = 2

    @override
    async def read_events(self, cursors: Sequence[tuple[TurnId, int]]) -> dict[tuple[TurnId, int], tuple[list[EventRow], bool]]:
        if self.faults:
            self.faults -= 1
            msg = "a fault"
            raise ValueError(msg)
        return await super().read_events(cursors)


async def test_a_reader_is_not_forgotten_when_the_reading_is_started_again_after_a_fault(stage: Stage) -> None:
    turns = FaultyTurns(stage.sessions, stage.replicas, stage.clock)
    turns.rows = stage.turns.rows
    tail = StoredTail(turns, stage.clock)
    turn = await stage.opened()
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 0))
    for _ in range(2):
        with pytest.raises(ValueError, match="a fault"):
            await tail.run()
    running = asyncio.ensure_future(tail.run())
    assert await answers(stage.clock, asked) == [([1], False)]
    running.cancel()


async def test_at_the_end_readers_get_the_rest_and_then_an_end(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    behind, at_head = (asyncio.ensure_future(tail.next(turn.fence.turn_id, after)) for after in (0, 1))
    await tail.end()
    assert await answers(stage.clock, behind, at_head) == [([1], False), ([], True)]
    assert await tail.next(turn.fence.turn_id, 1) == ([], True)
    assert (await tail.next(turn.fence.turn_id, 0))[1] is False


async def test_readers_are_ended_also_while_the_database_is_away(stage: Stage, tail: StoredTail) -> None:
    turn = await stage.opened()
    asked = asyncio.ensure_future(tail.next(turn.fence.turn_id, 1))
    await settle()
    stage.away(True)
    with pytest.raises(UnavailableError):
        await tail.end()
    assert await answers(stage.clock, asked) == [([], True)]


async def test_a_turn_that_does_not_exist_is_over(stage: Stage, tail: StoredTail) -> None:
    assert await tail.next(TurnId("turn_none"), 0) == ([], True)
