import asyncio

import msgspec
import pytest

from app.domain.errors import LeaseLostError
from app.domain.events import TurnQueued, frame_seq
from app.domain.model import Usage
from app.domain.openings import OpenTurn
from app.domain.quotas import DayShare, Spent
from app.domain.tenants import TenantSettings
from app.domain.turns import MachineState, RowKind, TurnState
from app.turns.day_shares import DayShares
from app.turns.live import MAX_UNSTORED_BYTES
from app.turns.writer import RETRY_S, TurnWriter, uninterrupted
from tests.fakes.clock import settle
from tests.unit.turns.stage import BEAT_S, TTL_S, B, Replica, Stage, close, deltas, fact, said, session_of, types

STATE = MachineState(iteration=2)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
async def replica(stage: Stage) -> Replica:
    replica = stage.replica()
    await replica.beat()
    return replica


@pytest.fixture
async def turn(stage: Stage) -> OpenTurn:
    return await stage.opened()


@pytest.fixture
async def writer(stage: Stage, replica: Replica, turn: OpenTurn) -> TurnWriter:
    return stage.writer(replica, turn)


def seqs(stage: Stage, turn: OpenTurn) -> list[int]:
    return [frame_seq(frame) for frame in stage.frames(turn.fence.turn_id)]


async def test_facts_are_stored_together_with_the_deltas_before_them(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.show(deltas(2))
    await writer.show(deltas(1))
    assert seqs(stage, turn) == [1]
    await writer.record((fact(), fact()), (), STATE)
    rows = stage.turns.rows[turn.fence.turn_id].rows()
    assert [(row.first, row.last, row.kind) for row in rows[1:]] == [(2, 4, RowKind.DELTAS), (5, 6, RowKind.FACTS)]
    assert stage.turns.rows[turn.fence.turn_id].machine == STATE
    assert stage.turns.calls["commit"] == 1


async def test_a_fact_is_not_shown_before_it_is_stored(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    gate = stage.turns.held["commit"] = asyncio.Event()
    recording = asyncio.ensure_future(writer.record((fact(),), (), STATE))
    await settle()
    piece = writer.live.piece(1, stored_only=False)
    assert piece is not None
    assert piece.frames == b""
    gate.set()
    await recording
    piece = writer.live.piece(1, stored_only=False)
    assert piece is not None
    assert piece.last == 2


async def test_a_message_and_its_calls_take_their_places(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.record((fact(),), (said(turn, turn.next_message_seq, "hi"),), STATE)
    rows = await stage.messages.working_set(session_of(turn))
    assert [(row.seq, row.message.content) for row in rows] == [(1, "hello"), (2, "hi")]


async def test_the_end_is_one_terminal_row_and_frees_the_session(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.show(deltas(1))
    await close(writer, turn)
    assert writer.closed
    assert stage.state(turn.fence.turn_id) is TurnState.COMPLETED
    assert types(stage.frames(turn.fence.turn_id)) == ["iteration.started", "message.delta", "turn.completed"]
    await stage.opened(session_id=turn.fence.session_id)


async def test_a_hand_over_puts_the_turn_back_into_the_queue(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.hand_over(TurnQueued(session_id=turn.fence.session_id, reason="handed_over"))
    assert writer.closed
    (claimed,) = await stage.turns.claim(B, 1)
    assert (claimed.fence.turn_id, claimed.resumed, claimed.last_seq) == (turn.fence.turn_id, True, 2)


async def test_a_commit_waits_for_the_database_and_is_applied_once(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.show(deltas(3))
    stage.away(True)
    recording = asyncio.ensure_future(writer.record((fact(),), (said(turn, 2, "hi"),), STATE))
    for wait_s in (*RETRY_S, RETRY_S[-1], RETRY_S[-1]):
        await settle()
        await stage.clock.advance(wait_s)
    assert not recording.done()
    stage.away(False)
    await stage.clock.advance(RETRY_S[-1])
    await recording
    assert seqs(stage, turn) == [1, 2, 3, 4, 5]
    assert len(await stage.messages.working_set(session_of(turn))) == 2


@pytest.mark.parametrize("lost", [1, 2], ids=["once", "twice"])
async def test_a_commit_whose_answer_was_lost_is_recognised(stage: Stage, turn: OpenTurn, writer: TurnWriter, lost: int) -> None:
    stage.turns.answers_lost = lost
    await writer.show(deltas(2))
    recording = asyncio.ensure_future(writer.record((fact(),), (said(turn, 2, "hi"),), STATE))
    for wait_s in RETRY_S:
        await settle()
        await stage.clock.advance(wait_s)
    await recording
    stage.turns.answers_lost = 0
    await writer.record((fact(3),), (), STATE)
    await close(writer, turn)
    assert seqs(stage, turn) == [1, 2, 3, 4, 5, 6]
    assert len(await stage.messages.working_set(session_of(turn))) == 2


async def test_deltas_whose_flush_was_applied_without_an_answer_are_neither_lost_nor_doubled(
    stage: Stage, replica: Replica, turn: OpenTurn, writer: TurnWriter
) -> None:
    await writer.show(deltas(2))
    stage.turns.answers_lost = 1
    with pytest.raises(Exception, match="cannot be reached"):
        await replica.log.flush()
    await writer.show(deltas(3))
    await replica.log.flush()
    await writer.show(deltas(1))
    stage.turns.answers_lost = 1
    with pytest.raises(Exception, match="cannot be reached"):
        await replica.log.flush()
    await writer.show(deltas(1))
    await close(writer, turn)
    assert seqs(stage, turn) == list(range(1, 10))


async def test_a_write_of_an_earlier_owner_stops_it_for_good(stage: Stage, replica: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    await writer.show(deltas(1))
    (taken,) = await take_over(stage)
    with pytest.raises(LeaseLostError):
        await writer.record((fact(),), (said(turn, 2, "hi"),), STATE)
    assert writer.live.lost
    with pytest.raises(LeaseLostError):
        await writer.show(deltas(1))
    with pytest.raises(LeaseLostError):
        await close(writer, turn)
    assert seqs(stage, turn) == [1]
    assert stage.turns.calls["commit"] == 1, "a lost turn asked the database again"
    await close(stage.writer(stage.replica(B), taken), taken)


async def take_over(stage: Stage) -> list[OpenTurn]:
    """The first owner is silent for a TTL; another one takes its turns. Its own lease is kept valid, as if its clock stood still."""
    stage.replicas.expires_at.clear()
    return await stage.turns.take_over(B, [], 10, beat=await stage.replicas.beat(B, TTL_S))


async def test_a_cancellation_during_a_commit_waits_for_its_answer(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    gate = stage.turns.held["commit"] = asyncio.Event()
    recording = asyncio.ensure_future(writer.record((fact(),), (), STATE))
    await settle()
    for _ in range(3):
        recording.cancel()
        await settle()
        assert not recording.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert writer.live.last_seq == 2
    assert seqs(stage, turn) == [1, 2]
    stage.turns.held.clear()
    await close(writer, turn)
    assert seqs(stage, turn) == [1, 2, 3]


async def test_a_cancellation_during_a_failing_commit_is_raised_with_the_failure_as_its_cause(stage: Stage, writer: TurnWriter) -> None:
    gate = stage.turns.held["commit"] = asyncio.Event()
    recording = asyncio.ensure_future(writer.record((fact(),), (), STATE))
    await settle()
    recording.cancel()
    await take_over(stage)
    gate.set()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await recording
    assert isinstance(cancelled.value.__cause__, LeaseLostError)


async def test_what_is_not_interrupted_gives_its_result() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await uninterrupted(answer()) == 42


async def test_nothing_is_shown_while_the_lease_is_not_valid(stage: Stage, replica: Replica, turn: OpenTurn, writer: TurnWriter) -> None:
    await stage.clock.advance(TTL_S)
    showing = asyncio.ensure_future(writer.show(deltas(1)))
    await settle()
    assert writer.live.last_seq == 1
    await replica.beat()
    await showing
    assert writer.live.last_seq == 2


async def test_a_turn_stops_reading_when_storage_stalls(stage: Stage, replica: Replica, writer: TurnWriter) -> None:
    stage.away(True)
    shown = 0

    async def stream() -> None:
        nonlocal shown
        while True:
            await writer.show(deltas(1, "z" * 10_000))
            shown += 1

    streaming = asyncio.ensure_future(stream())
    await settle(200)
    assert writer.live.unstored_bytes < MAX_UNSTORED_BYTES + 20_000
    stalled_at = shown
    await settle(200)
    assert shown == stalled_at
    stage.away(False)
    await replica.log.flush()
    await settle(5)
    assert shown > stalled_at
    streaming.cancel()


async def test_a_stalled_turn_that_is_lost_stops(stage: Stage, replica: Replica, writer: TurnWriter) -> None:
    await writer.show(deltas(1, "z" * (MAX_UNSTORED_BYTES + 1)))
    showing = asyncio.ensure_future(writer.show(deltas(1)))
    await settle()
    assert not showing.done()
    await take_over(stage)
    await replica.log.flush()
    with pytest.raises(LeaseLostError):
        await showing


async def test_the_lease_of_a_writer_outlives_a_missed_beat(stage: Stage, replica: Replica, writer: TurnWriter) -> None:
    await stage.clock.advance(2 * BEAT_S)
    await writer.show(deltas(1))
    assert writer.live.last_seq == 2


async def test_each_step_of_a_tenant_with_a_quota_of_a_day_counts_what_is_new(stage: Stage, turn: OpenTurn, writer: TurnWriter) -> None:
    shares = DayShares()
    tenant = msgspec.structs.replace(stage.tenant, settings=TenantSettings(tokens_per_day=1_000))
    writer.share = shares.open(tenant, turn.state.counted)
    await writer.record((fact(),), (), MachineState(usage=Usage(output_tokens=100), cost_usd=0.5))
    assert stage.turns.day(tenant.id).tokens == 100
    assert writer.share.share() == DayShare(tokens=1_000)
    stage.turns.answers_lost = 1
    recording = asyncio.ensure_future(writer.record((fact(),), (), MachineState(usage=Usage(output_tokens=150), cost_usd=0.75)))
    await stage.until(recording.done)
    assert (stage.turns.day(tenant.id).tokens, stage.turns.day(tenant.id).cost_usd) == (150, 0.75)
    assert stage.turns.rows[turn.fence.turn_id].machine.counted == Spent(150, 0.75)
    await writer.record((fact(),), (), MachineState(usage=Usage(output_tokens=180), cost_usd=0.75))
    assert stage.turns.day(tenant.id).tokens == 180


async def test_the_end_of_a_turn_that_was_counted_before_adds_the_rest_alone(stage: Stage, replica: Replica, turn: OpenTurn) -> None:
    counted = msgspec.structs.replace(turn, state=MachineState(usage=Usage(output_tokens=100), counted=Spent(100, 0.0)))
    writer = stage.writer(replica, counted)
    await close(writer, counted, MachineState(usage=Usage(output_tokens=130)))
    assert stage.turns.day(stage.tenant.id).tokens == 30
