import asyncio

import msgspec
import pytest

from app.domain.errors import LeaseLostError
from app.domain.events import FrameEncoder, IterationStarted
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.turns import (
    SEQ_GAP,
    Busy,
    Closing,
    Commit,
    DeltaBatch,
    EventRow,
    InterruptReason,
    MachineState,
    NewMessage,
    NoSession,
    OnBusy,
    OpenTurn,
    Queued,
    QueueFull,
    Replayed,
    RowKind,
    TurnState,
)
from app.ports import TurnStore
from tests.contract.worlds import TTL_S, World, new_session
from tests.integration.store.builders import A, B, a_turn, an_id


@pytest.fixture
def turns(world: World) -> TurnStore:
    return world.turns


@pytest.fixture
async def tenant_id(world: World) -> TenantId:
    return await world.tenant()


@pytest.fixture
async def session_id(world: World, tenant_id: TenantId) -> SessionId:
    return await new_session(world, tenant_id)


async def opened(turns: TurnStore, tenant_id: TenantId, session_id: SessionId, owner: ReplicaId = A) -> OpenTurn:
    opening = await turns.open(a_turn(tenant_id, session_id, owner=owner))
    assert isinstance(opening, OpenTurn)
    return opening


def step(
    turn: OpenTurn,
    *messages: NewMessage,
    closing: Closing | None = None,
    hand_over: bool = False,
    state: MachineState | None = None,
    seq: int | None = None,
) -> Commit:
    seq = turn.last_seq + 1 if seq is None else seq
    frame = FrameEncoder(turn.fence.turn_id).frame(seq, IterationStarted(iteration=2, max_iterations=90))
    kind = RowKind.TERMINAL if closing else RowKind.FACTS
    return Commit(
        fence=turn.fence,
        previous_seq=turn.last_seq,
        last_seq=seq,
        rows=(EventRow(seq, seq, kind, frame),),
        messages=messages,
        next_message_seq=max((message.seq + 1 for message in messages), default=0),
        state=state or turn.state,
        closing=closing,
        hand_over=hand_over,
    )


def deltas(turn: OpenTurn, first: int, last: int) -> DeltaBatch:
    return DeltaBatch(fence=turn.fence, row=EventRow(first, last, RowKind.DELTAS, b"id: %d\n\n" % first))


DONE = Closing(state=TurnState.COMPLETED, reason="answer", outcome=b'{"output":"x"}')
STOPPED = Closing(state=TurnState.INTERRUPTED, reason="requested", outcome=b'{"output":""}')


async def test_opening_stores_the_user_message_with_the_turn(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    stored = await world.messages.working_set(session_id)
    assert [(message.seq, message.message.role, message.message.content) for message in stored] == [(1, Role.USER, "hello")]
    assert turn.next_message_seq == 2
    assert turn.system_prompt == "be kind"
    view = await turns.get(tenant_id, turn.fence.turn_id)
    assert view is not None
    assert view.state is TurnState.RUNNING


async def test_a_session_of_another_tenant_is_no_session(turns: TurnStore, world: World, session_id: SessionId) -> None:
    other = await world.tenant()
    assert await turns.open(a_turn(other, session_id)) == NoSession()


async def test_a_busy_session_takes_no_second_turn_and_keeps_nothing_of_it(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=turn.fence.turn_id)
    assert len(await world.messages.working_set(session_id)) == 1


async def test_of_many_openings_at_once_one_wins_and_the_history_stays_a_line(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    for round_number in range(1, 11):
        openings = await asyncio.gather(*(turns.open(a_turn(tenant_id, session_id)) for _ in range(5)))
        winners = [opening for opening in openings if isinstance(opening, OpenTurn)]
        assert len(winners) == 1
        assert sum(isinstance(opening, Busy) for opening in openings) == 4
        await turns.commit(step(winners[0], closing=DONE))
        seqs = [message.seq for message in await world.messages.working_set(session_id)]
        assert seqs == list(range(1, round_number + 1))


async def test_an_opening_that_meets_the_closing_of_the_turn_before_it_gets_the_next_places(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    for _ in range(20):
        answer = NewMessage(id=MessageId(an_id("msg")), seq=turn.next_message_seq, message=Message(role=Role.ASSISTANT, content="ok"))
        opening, _ = await asyncio.gather(turns.open(a_turn(tenant_id, session_id)), turns.commit(step(turn, answer, closing=DONE)))
        if not isinstance(opening, OpenTurn):
            assert isinstance(opening, Busy)
            opening = await turns.open(a_turn(tenant_id, session_id))
        assert isinstance(opening, OpenTurn)
        assert opening.next_message_seq == turn.next_message_seq + 2
        turn = opening
    roles = [message.message.role for message in await world.messages.working_set(session_id)]
    assert roles == [Role.USER, Role.ASSISTANT] * 20 + [Role.USER]


async def test_an_idempotency_key_finds_its_turn_again(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    first = a_turn(tenant_id, session_id, key="k")
    assert isinstance(await turns.open(first), OpenTurn)
    assert await turns.open(a_turn(tenant_id, session_id, key="k")) == Replayed(turn_id=first.id, same_body=True)
    assert await turns.open(a_turn(tenant_id, session_id, key="k", fingerprint=b"other")) == Replayed(turn_id=first.id, same_body=False)


async def test_an_idempotency_key_belongs_to_its_session(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    assert isinstance(await turns.open(a_turn(tenant_id, session_id, key="k")), OpenTurn)
    assert isinstance(await turns.open(a_turn(tenant_id, await new_session(world, tenant_id), key="k")), OpenTurn)


async def test_queued_turns_are_claimed_in_order_when_their_session_is_free(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    running = await opened(turns, tenant_id, session_id)
    waiting = [a_turn(tenant_id, session_id, owner=None) for _ in range(3)]
    for turn in waiting:
        assert await turns.open(turn) == Queued(turn_id=turn.id)
    assert await turns.claim(B, 10) == []
    await turns.commit(step(running, closing=DONE))
    (first,) = await turns.claim(B, 10)
    assert first.fence.turn_id == waiting[0].id
    assert first.fence.owner == B
    assert first.next_message_seq == 3
    assert await turns.claim(A, 10) == []
    assert len(await world.messages.working_set(session_id)) == 2


async def test_an_interrupting_turn_goes_before_those_that_wait(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    running = await opened(turns, tenant_id, session_id)
    patient = a_turn(tenant_id, session_id, owner=None)
    urgent = a_turn(tenant_id, session_id, owner=None, on_busy=OnBusy.INTERRUPT)
    await turns.open(patient)
    await turns.open(urgent)
    await turns.commit(step(running, closing=STOPPED))
    assert [turn.fence.turn_id for turn in await turns.claim(A, 10)] == [urgent.id]


async def test_a_turn_does_not_jump_the_queue(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    running = await opened(turns, tenant_id, session_id)
    waiting = a_turn(tenant_id, session_id, owner=None)
    await turns.open(waiting)
    await turns.commit(step(running, closing=DONE))
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=waiting.id)


async def test_the_queue_of_a_session_is_bounded_also_for_those_that_come_at_once(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    await opened(turns, tenant_id, session_id)
    openings = await asyncio.gather(*(turns.open(a_turn(tenant_id, session_id, owner=None, max_queued=3)) for _ in range(5)))
    assert sum(isinstance(opening, Queued) for opening in openings) == 3
    assert sum(isinstance(opening, QueueFull) for opening in openings) == 2


async def test_two_replicas_never_claim_the_same_turn(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    for _ in range(20):
        await turns.open(a_turn(tenant_id, await new_session(world, tenant_id), owner=None))
    claims = await asyncio.gather(*(turns.claim(owner, 7) for owner in (A, B, A, B)))
    ids = [turn.fence.turn_id for claimed in claims for turn in claimed]
    assert len(ids) == len(set(ids))


async def test_a_commit_stores_all_of_its_parts_byte_for_byte(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    message = Message(role=Role.ASSISTANT, content="ä\n\u2028", tool_calls=(ToolCall("c1", "f", '{"b": 1, "a":2}'),), reasoning="why")
    note = Message(role=Role.ASSISTANT, content="[note]", kind=MessageKind.NOTE)
    state = MachineState(iteration=3, attempts=4)
    first = NewMessage(id=MessageId("msg_1"), seq=2, message=message)
    await turns.commit(step(turn, first, NewMessage(id=MessageId("msg_2"), seq=4, message=note), state=state))
    stored = await world.messages.working_set(session_id)
    assert [(entry.seq, entry.message) for entry in stored[1:]] == [(2, message), (4, note)]
    view = await turns.get(tenant_id, turn.fence.turn_id)
    assert view is not None
    assert (view.machine, view.last_seq) == (state, 2)


async def test_a_repeated_commit_is_recognised_and_changes_nothing(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    commit = step(turn, NewMessage(id=MessageId("msg_1"), seq=2, message=Message(role=Role.ASSISTANT, content="once")))
    await turns.commit(commit)
    await turns.commit(commit)
    assert len(await world.messages.working_set(session_id)) == 2


async def test_a_repeated_hand_over_is_recognised(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    commit = step(turn, hand_over=True)
    await turns.commit(commit)
    await turns.commit(commit)
    (resumed,) = await turns.claim(B, 1)
    assert resumed.resumed
    assert resumed.next_message_seq == 2


async def test_of_two_closings_the_first_counts(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    closings = (step(turn, closing=DONE), step(turn, closing=STOPPED, seq=3))
    results = await asyncio.gather(*(turns.commit(commit) for commit in closings), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [LeaseLostError]
    view = await turns.get(tenant_id, turn.fence.turn_id)
    assert view is not None
    assert view.state is (TurnState.COMPLETED if results[0] is None else TurnState.INTERRUPTED)
    rows, _ = (await turns.read_events([(turn.fence.turn_id, 1)]))[turn.fence.turn_id, 1]
    assert [row.kind for row in rows] == [RowKind.TERMINAL]


async def test_an_earlier_owner_can_write_nothing(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await world.alive(A, -1.0)
    await world.alive(B)
    (taken,) = await turns.take_over(B, [], 10)
    assert taken.fence.generation == turn.fence.generation + 1
    with pytest.raises(LeaseLostError):
        await turns.commit(step(turn))
    assert await turns.append_deltas([deltas(turn, 2, 3)]) == set()
    assert await turns.owned(A, [turn.fence.turn_id]) == set()
    await turns.commit(step(taken, closing=STOPPED))


async def test_ids_go_on_far_above_the_last_stored_delta_after_a_takeover(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await turns.append_deltas([deltas(turn, 2, 57)])
    await world.alive(A, -1.0)
    (taken,) = await turns.take_over(B, [], 10)
    assert taken.last_seq == 57 + SEQ_GAP


async def test_turns_of_living_replicas_are_left_alone(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    await opened(turns, tenant_id, session_id)
    await world.alive(A, 60.0)
    assert await turns.take_over(B, [], 10) == []


async def test_a_replica_takes_back_what_it_owns_without_knowing(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    known = await opened(turns, tenant_id, session_id)
    unknown = await opened(turns, tenant_id, await new_session(world, tenant_id))
    await world.pass_time(TTL_S + 1.0)
    await world.alive(A)
    taken = await turns.take_over(A, [known.fence.turn_id], 10)
    assert [turn.fence.turn_id for turn in taken] == [unknown.fence.turn_id]


async def test_what_a_replica_has_just_opened_is_never_taken_from_it(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    """The list of known turns may be older than the turn: both statements are under way at once."""
    await world.alive(A)
    opening, taken = await asyncio.gather(turns.open(a_turn(tenant_id, session_id)), turns.take_over(A, [], 10))
    taken += await turns.take_over(A, [], 10)
    assert isinstance(opening, OpenTurn)
    assert taken == []
    await turns.commit(step(opening, closing=DONE))


async def test_deltas_whose_answer_was_lost_are_stored_again_together_with_later_ones(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.append_deltas([deltas(turn, 2, 4)])
    await turns.append_deltas([deltas(turn, 2, 9)])
    await turns.append_deltas([deltas(turn, 2, 4)])
    rows, _ = (await turns.read_events([(turn_id, 1)]))[turn_id, 1]
    assert [(row.first, row.last) for row in rows] == [(2, 9)]


async def test_a_commit_takes_along_deltas_of_which_some_were_stored_before(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.append_deltas([deltas(turn, 2, 4)])
    commit = step(turn, closing=DONE, seq=13)
    await turns.commit(msgspec.structs.replace(commit, rows=(deltas(turn, 2, 12).row, *commit.rows)))
    rows, _ = (await turns.read_events([(turn_id, 0)]))[turn_id, 0]
    assert [(row.first, row.last) for row in rows] == [(1, 1), (2, 12), (13, 13)]


async def test_a_reader_in_the_middle_of_a_row_gets_the_row(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.append_deltas([deltas(turn, 2, 9)])
    rows, over = (await turns.read_events([(turn_id, 5)]))[turn_id, 5]
    assert ([(row.first, row.last) for row in rows], over) == ([(2, 9)], False)


async def test_one_read_is_bounded(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    for seq in range(2, 152):
        await turns.append_deltas([deltas(turn, seq, seq)])
    seen: list[int] = []
    while len(seen) < 151:
        rows, _ = (await turns.read_events([(turn_id, seen[-1] if seen else 0)]))[turn_id, seen[-1] if seen else 0]
        assert 0 < len(rows) <= 64
        seen += [row.first for row in rows]
    assert seen == list(range(1, 152))


async def test_a_turn_that_ended_is_neither_watched_nor_stopped(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.commit(step(turn, closing=DONE))
    await turns.watch([turn_id], 60.0)
    assert await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE)
    view = await turns.request_cancel(tenant_id, turn_id, InterruptReason.REQUESTED)
    assert view is not None
    assert (view.state, view.reason) == (TurnState.COMPLETED, "answer")


async def test_a_session_that_wants_a_model_says_so_to_its_tenant_only(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    session_id = await new_session(world, tenant_id, model="m-big")
    assert await turns.session_model(tenant_id, session_id) == "m-big"
    assert await turns.session_model(await world.tenant(), session_id) is None
    assert await turns.session_model(tenant_id, await new_session(world, tenant_id)) is None


async def test_turns_are_listed_newest_first_in_pages(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    made = [a_turn(tenant_id, session_id, owner=None) for _ in range(5)]
    for turn in made:
        await turns.open(turn)
    newest_first = sorted((turn.id for turn in made), reverse=True)
    first = await turns.list_for_session(tenant_id, session_id, 3, None)
    second = await turns.list_for_session(tenant_id, session_id, 3, first.next_cursor)
    assert [view.id for view in first.data + second.data] == newest_first
    assert (first.next_cursor, second.next_cursor) == (newest_first[2], None)


async def test_an_interrupt_before_the_start_is_known_to_who_starts_it(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = a_turn(tenant_id, session_id, owner=None)
    await turns.open(turn)
    view = await turns.request_cancel(tenant_id, turn.id, InterruptReason.REQUESTED)
    assert view is not None
    assert view.state is TurnState.QUEUED
    (claimed,) = await turns.claim(A, 1)
    assert claimed.cancel_reason is InterruptReason.REQUESTED


async def test_deltas_of_several_turns_are_stored_together_and_repeats_are_harmless(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    one = await opened(turns, tenant_id, session_id)
    two = await opened(turns, tenant_id, await new_session(world, tenant_id))
    batch = [deltas(one, 2, 4), deltas(two, 2, 2)]
    ids = {one.fence.turn_id, two.fence.turn_id}
    assert await turns.append_deltas(batch) == ids
    assert await turns.append_deltas(batch) == ids
    found = await turns.read_events([(one.fence.turn_id, 1), (two.fence.turn_id, 0), (TurnId("turn_none"), 0)])
    assert [(row.first, row.last) for row in found[one.fence.turn_id, 1][0]] == [(2, 4)]
    assert [row.first for row in found[two.fence.turn_id, 0][0]] == [1, 2]
    assert found[TurnId("turn_none"), 0] == ([], True)


async def test_reading_behind_the_end_says_that_nothing_follows(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    assert (await turns.read_events([(turn_id, 1)]))[turn_id, 1] == ([], False)
    await turns.commit(step(turn, closing=DONE))
    assert (await turns.read_events([(turn_id, 2)]))[turn_id, 2] == ([], True)


async def test_the_first_wish_to_stop_counts_and_reaches_the_owner(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.request_cancel(tenant_id, turn_id, InterruptReason.SUPERSEDED)
    await turns.request_cancel(tenant_id, turn_id, InterruptReason.REQUESTED)
    assert await turns.cancel_requests(A) == {turn_id: InterruptReason.SUPERSEDED}
    assert await turns.cancel_requests(B) == {}
    await turns.commit(step(turn, closing=STOPPED))
    assert await turns.cancel_requests(A) == {}


async def test_another_tenants_turn_cannot_be_read_or_stopped(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    other = await world.tenant()
    assert await turns.get(other, turn.fence.turn_id) is None
    assert await turns.request_cancel(other, turn.fence.turn_id, InterruptReason.REQUESTED) is None
    assert await turns.cancel_requests(A) == {}
    assert (await turns.list_for_session(other, session_id, 10, None)).data == ()


async def test_a_queued_turn_can_be_closed_until_somebody_claims_it(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = a_turn(tenant_id, session_id, owner=None)
    await turns.open(turn)
    view = await turns.get(tenant_id, turn.id)
    assert view is not None
    close = Commit(
        fence=view.fence,
        previous_seq=1,
        last_seq=2,
        rows=(EventRow(2, 2, RowKind.TERMINAL, b"id: 2\n\n"),),
        state=view.machine,
        closing=STOPPED,
    )
    (claimed,) = await turns.claim(A, 1)
    with pytest.raises(LeaseLostError):
        await turns.commit(close)
    await turns.commit(step(claimed, closing=DONE))


async def test_a_read_elsewhere_keeps_a_turn_whose_client_left(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.watch([turn_id], 60.0)
    assert not await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE)
    await turns.watch([turn_id], -1.0)
    assert await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE)
    assert await turns.cancel_requests(A) == {turn_id: InterruptReason.CLIENT_GONE}


async def test_pruning_takes_deltas_of_old_turns_and_leaves_the_facts(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    old = await opened(turns, tenant_id, session_id)
    await turns.append_deltas([deltas(old, 2, 9)])
    await turns.commit(step(old, closing=DONE, seq=10))
    fresh = await opened(turns, tenant_id, await new_session(world, tenant_id))
    await turns.append_deltas([deltas(fresh, 2, 9)])
    await world.pass_time(86_000.0)
    assert await turns.prune(3600.0, 86_400.0) == 1
    turn_id = old.fence.turn_id
    assert [row.kind for row in (await turns.read_events([(turn_id, 0)]))[turn_id, 0][0]] == [RowKind.FACTS, RowKind.TERMINAL]
    assert await turns.prune(3600.0, 86_400.0) == 0


async def test_old_idempotency_keys_are_forgotten(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await turns.open(a_turn(tenant_id, session_id, key="k"))
    assert isinstance(turn, OpenTurn)
    await turns.commit(step(turn, closing=DONE))
    await world.pass_time(25 * 3600.0)
    await turns.prune(3600.0, 86_400.0)
    assert isinstance(await turns.open(a_turn(tenant_id, session_id, key="k")), OpenTurn)
