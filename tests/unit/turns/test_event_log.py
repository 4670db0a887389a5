"""Followers see the same, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.domain.errors import UnavailableError
from app.domain.events import AttemptReset, frame_seq
from app.domain.openings import OpenTurn
from app.domain.turns import SEQ_GAP, MachineState
from app.turns.live import TAIL_BYTES
from app.turns.writer import TurnWriter
from tests.fakes.clock import settle
from tests.unit.turns.stage import TTL_S, A, B, Reader, Replica, Stage, close, deltas, fact, run_tail, types


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
async def here(stage: Stage) -> AsyncIterator[Replica]:
    replica = stage.replica(A)
    await replica.beat()
    tail = await run_tail(replica)
    yield replica
    tail.cancel()


@pytest.fixture
async def there(stage: Stage) -> AsyncIterator[Replica]:
    replica = stage.replica(B)
    await replica.beat()
    tail = await run_tail(replica)
    yield replica
    tail.cancel()


@pytest.fixture
async def turn(stage: Stage) -> OpenTurn:
    return await stage.opened(A)


@pytest.fixture
async def writer(stage: Stage, here: Replica, turn: OpenTurn) -> TurnWriter:
    return stage.writer(here, turn)


async def record(writer: TurnWriter) -> None:
    await writer.record((fact(),), (), MachineState())


async def finish(stage: Stage, *readers: Reader) -> None:
    await stage.until(lambda: all(reader.ended for reader in readers))


async def test_a_reader_here_one_elsewhere_and_one_that_comes_later_see_the_same(stage: Stage, here: Replica, there: Replica) -> None:
    turn = await stage.opened(A)
    writer = stage.writer(here, turn)
    turn_id = turn.fence.turn_id
    readers = [Reader() for _ in range(3)]
    readers[0].attach(here.log, turn_id)
    readers[1].attach(there.log, turn_id)
    for _ in range(5):
        await writer.show(deltas(3))
        await settle()
    await here.log.flush()
    await record(writer)
    await writer.show(deltas(2))
    await close(writer, turn)
    here.log.remove(writer.live)
    readers[2].attach(there.log, turn_id)
    await finish(stage, *readers)
    assert readers[0].frames == readers[1].frames == readers[2].frames == stage.frames(turn_id)
    assert readers[0].seqs == list(range(1, 21))


async def test_deltas_come_to_a_reader_here_before_they_are_stored(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    reader = Reader()
    reader.attach(here.log, turn.fence.turn_id)
    await stage.until(lambda: reader.seqs == [1])
    await writer.show(deltas(2))
    await settle()
    assert reader.seqs == [1, 2, 3]
    assert len(stage.frames(turn.fence.turn_id)) == 1
    await reader.detach()


async def test_what_arrives_together_leaves_together(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    pieces: list[list[int]] = []
    reader = Reader(after=1, on_piece=pieces.append)
    reader.attach(here.log, turn.fence.turn_id)
    await settle()
    await writer.show(deltas(7))
    await settle()
    assert pieces == [list(range(2, 9))]
    await reader.detach()


async def test_a_reader_that_keeps_up_here_costs_the_database_nothing(
    stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter
) -> None:
    reader = Reader(after=1)
    reader.attach(here.log, turn.fence.turn_id)
    for _ in range(20):
        await writer.show(deltas(2))
        await settle()
    await close(writer, turn)
    await settle()
    assert reader.ended
    assert stage.turns.calls["read_events"] == 0


async def test_unstored_deltas_are_withheld_while_the_lease_is_not_valid_and_come_when_they_are_stored(
    stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter
) -> None:
    """No event follows that would wake the reader: the turn may sit in a tool for long."""
    await writer.show(deltas(4))
    await stage.clock.advance(TTL_S)
    reader = Reader(after=1)
    reader.attach(here.log, turn.fence.turn_id)
    await settle()
    assert reader.frames == []
    await here.log.flush()
    await settle()
    assert reader.seqs == [2, 3, 4, 5]
    await reader.detach()


async def test_a_slow_reader_is_served_from_storage_without_a_gap(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    """Memory holds a small tail only; the reader wants all of it."""
    for number in range(40):
        await writer.show(deltas(2, "y" * 500))
        if number % 3 == 0:
            await here.log.flush()
        if number % 10 == 0:
            await record(writer)
    await here.log.flush()
    kept = sum(len(row.frames) for row in writer.live._stored)
    assert kept <= 2 * TAIL_BYTES
    reader = Reader()
    reader.attach(here.log, turn.fence.turn_id)
    await close(writer, turn)
    await finish(stage, reader)
    assert reader.frames == stage.frames(turn.fence.turn_id)


async def test_readers_of_a_lost_turn_go_on_from_storage_and_converge(stage: Stage, here: Replica, there: Replica) -> None:
    turn = await stage.opened(A)
    writer = stage.writer(here, turn)
    turn_id = turn.fence.turn_id
    await writer.show(deltas(3))
    await here.log.flush()
    reader = Reader()
    reader.attach(here.log, turn_id)
    await writer.show(deltas(5))
    await stage.until(lambda: reader.last == 9)
    await stage.clock.advance(TTL_S + 1)
    await there.beat()
    (taken,) = await stage.turns.take_over(B, [], 10, beat=there.lease.stamp)
    other = stage.writer(there, taken)
    await other.record((AttemptReset(attempt=1),), (), MachineState())
    await here.log.flush()
    assert writer.live.lost
    assert writer.live.unstored() is not None, "what was never stored stays unstored"
    await close(other, taken)
    await finish(stage, reader)
    stored = stage.frames(turn_id)
    assert [frame_seq(frame) for frame in stored] == [1, 2, 3, 4, SEQ_GAP + 5, SEQ_GAP + 6]
    assert [frame for frame in reader.frames if frame in stored] == stored
    assert reader.seqs == [*range(1, 10), SEQ_GAP + 5, SEQ_GAP + 6]
    assert types(reader.frames)[9:] == ["attempt.reset", "turn.completed"]


async def test_deltas_of_many_turns_are_stored_in_one_statement(stage: Stage, here: Replica) -> None:
    writers = [stage.writer(here, await stage.opened()) for _ in range(30)]
    for writer in writers:
        await writer.show(deltas(2))
    await here.log.flush()
    assert stage.turns.calls["append_deltas"] == 1
    assert all(writer.live.unstored() is None for writer in writers)
    await here.log.flush()
    assert stage.turns.calls["append_deltas"] == 1


async def test_a_batch_that_fails_falls_back_to_single_turns_and_gives_up_the_broken_one_only(stage: Stage, here: Replica) -> None:
    writers = [stage.writer(here, await stage.opened()) for _ in range(4)]
    broken = writers[1].live
    stage.turns.broken.add(broken.fence.turn_id)
    for writer in writers:
        await writer.show(deltas(2))
    await here.log.flush()
    assert [writer.live.lost for writer in writers] == [False, True, False, False]
    assert [writer.live.unstored() is None for writer in writers] == [True, False, True, True]
    assert not any(writer.live.write.locked() for writer in writers)
    for writer in (writers[0], writers[3]):
        await record(writer)
    await here.log.flush()
    assert stage.turns.calls["append_deltas"] == 5, "a turn that was given up is tried again"


async def test_a_flush_that_the_database_does_not_answer_keeps_everything_and_frees_every_turn(stage: Stage, here: Replica) -> None:
    writers = [stage.writer(here, await stage.opened()) for _ in range(3)]
    for writer in writers:
        await writer.show(deltas(2))
    stage.away(True)
    with pytest.raises(UnavailableError):
        await here.log.flush()
    assert not any(writer.live.write.locked() for writer in writers)
    stage.away(False)
    await here.log.flush()
    assert [len(stage.frames(writer.live.fence.turn_id)) for writer in writers] == [3, 3, 3]


async def test_deltas_that_a_commit_takes_are_not_written_again_by_a_flush_that_waited_for_it(
    stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter
) -> None:
    """The write lock is free for a moment while a commit that waited for it has not gone on yet."""
    await writer.show(deltas(3))
    await writer.live.write.acquire()
    recording = asyncio.ensure_future(record(writer))
    await settle()
    writer.live.write.release()
    await here.log.flush()
    await recording
    piece = writer.live.piece(1, stored_only=False)
    assert piece is not None
    reader = Reader(after=1)
    reader.attach(here.log, turn.fence.turn_id)
    await close(writer, turn)
    await finish(stage, reader)
    assert reader.seqs == [2, 3, 4, 5, 6]
    assert writer.live.stored_seq == 6


async def test_the_flusher_outlives_an_absent_database(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    flushing = asyncio.ensure_future(here.log.run_flusher())
    stage.away(True)
    await writer.show(deltas(2))
    for _ in range(5):
        await stage.clock.advance(0.2)
    stage.away(False)
    await stage.until(lambda: len(stage.frames(turn.fence.turn_id)) == 3)
    flushing.cancel()


async def test_readers_are_counted_while_they_read(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    readers = [Reader() for _ in range(3)]
    for reader in readers:
        reader.attach(here.log, turn.fence.turn_id)
    await settle()
    assert (here.counters.followers, writer.live.followers) == (3, 3)
    await readers[0].detach()
    assert (here.counters.followers, writer.live.followers) == (2, 2)
    await close(writer, turn)
    await finish(stage, *readers[1:])
    assert (here.counters.followers, writer.live.followers) == (0, 0)


async def test_only_watched_turns_are_said_to_be_watched(stage: Stage, here: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    watching = asyncio.ensure_future(here.log.run_watches())
    turn_id = turn.fence.turn_id
    pieces = here.log.follow(turn_id, 0, watched=True)
    await anext(pieces)
    await settle()
    await stage.clock.advance(0.7)
    assert stage.turns.rows[turn_id].watched_until == stage.clock.monotonic() + 2.0
    await pieces.aclose()
    said = stage.turns.calls["watch"]
    await stage.clock.advance(0.7)
    assert stage.turns.calls["watch"] == said
    watching.cancel()
