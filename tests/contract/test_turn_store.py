"""What every :class:`app.ports.TurnStore` does with turns."""

import asyncio

import msgspec
import pytest

from app.domain.errors import LeaseLostError
from app.domain.ids import MessageId, SessionId, TenantId
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.openings import Busy, NoSession, OpenTurn, Queued, QueueFull, Replayed
from app.domain.turns import Commit, EventRow, InterruptReason, MachineState, NewMessage, OnBusy, RowKind, TurnState
from app.ports import TurnStore
from tests.contract.steps import DONE, PRUNE_AGES, STOPPED, deltas, opened, step
from tests.contract.worlds import TTL_S, World, new_session, taken_over
from tests.integration.store.builders import A, B, a_turn, an_id


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
    assert [type(result) for result in results if isinstance(result, BaseException)] == [LeaseLostError]
    view = await turns.get(tenant_id, turn.fence.turn_id)
    assert view is not None
    assert view.state is (TurnState.INTERRUPTED if isinstance(results[0], BaseException) else TurnState.COMPLETED)
    rows, _ = (await turns.read_events([(turn.fence.turn_id, 1)]))[turn.fence.turn_id, 1]
    assert [row.kind for row in rows] == [RowKind.TERMINAL]


async def test_an_earlier_owner_can_write_nothing(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await world.alive(A, -1.0)
    await world.alive(B)
    (taken,) = await taken_over(world, B)
    assert taken.fence.generation == turn.fence.generation + 1
    with pytest.raises(LeaseLostError):
        await turns.commit(step(turn))
    assert await turns.append_deltas([deltas(turn, 2, 3)]) == set()
    assert await turns.owned(A, [turn.fence.turn_id]) == set()
    await turns.commit(step(taken, closing=STOPPED))


async def test_turns_of_living_replicas_are_left_alone(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    await opened(turns, tenant_id, session_id)
    await world.alive(A, 60.0)
    assert await taken_over(world, B) == []


async def test_nothing_is_taken_when_the_database_stood_still_behind_the_beat(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    """The beats of living replicas may then wait behind the call (a frozen database goes on with everything at once)."""
    await opened(turns, tenant_id, session_id)
    await world.alive(A, -1.0)
    old = await world.replicas.beat(B, TTL_S / 2 - 1.0)  # as long ago
    assert await turns.take_over(B, [], 10, beat=old) == []
    await world.replicas.beat(B, TTL_S)
    assert await turns.take_over(B, [], 10, beat=old) == [], "another beat of B came in between: the call is older than it"
    assert len(await taken_over(world, B)) == 1


async def test_a_replica_takes_back_what_it_owns_without_knowing(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    known = await opened(turns, tenant_id, session_id)
    unknown = await opened(turns, tenant_id, await new_session(world, tenant_id))
    await world.pass_time(TTL_S + 1.0)
    await world.alive(A)
    taken = await taken_over(world, A, [known.fence.turn_id])
    assert [turn.fence.turn_id for turn in taken] == [unknown.fence.turn_id]


async def test_what_a_replica_has_just_opened_is_never_taken_from_it(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    """The list of known turns may be older than the turn: both statements are under way at once."""
    await world.alive(A)
    opening, taken = await asyncio.gather(turns.open(a_turn(tenant_id, session_id)), taken_over(world, A))
    taken += await taken_over(world, A)
    assert isinstance(opening, OpenTurn)
    assert taken == []
    await turns.commit(step(opening, closing=DONE))


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


async def test_old_idempotency_keys_are_forgotten(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await turns.open(a_turn(tenant_id, session_id, key="k"))
    assert isinstance(turn, OpenTurn)
    await turns.commit(step(turn, closing=DONE))
    await world.pass_time(25 * 3600.0)
    await turns.prune(PRUNE_AGES)
    assert isinstance(await turns.open(a_turn(tenant_id, session_id, key="k")), OpenTurn)


async def test_a_commit_says_whether_other_turns_wait(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    assert not (await turns.commit(step(turn))).others_wait
    await turns.open(a_turn(tenant_id, session_id, owner=None))
    turn = msgspec.structs.replace(turn, last_seq=2)
    assert (await turns.commit(step(turn, closing=DONE))).others_wait


async def test_a_turn_that_is_forgotten_leaves_the_context_and_stays_in_the_transcript(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    first = await opened(turns, tenant_id, session_id)
    await turns.commit(step(first, closing=DONE))
    turn = await opened(turns, tenant_id, session_id)
    await turns.commit(msgspec.structs.replace(step(turn, closing=STOPPED), forget=True))
    assert [stored.turn_id for stored in await world.messages.working_set(session_id)] == [first.fence.turn_id]
    page = await world.messages.page(tenant_id, session_id, 10, 0)
    assert page is not None
    assert [stored.archived for stored in page.data] == [False, True]


async def test_an_opening_brings_the_sessions_messages_or_none_at_all(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    for _ in range(3):
        turn = await opened(turns, tenant_id, session_id)
        stored = await world.messages.working_set(session_id)
        brought = turn.working_set
        if brought is not None:
            assert [(message.seq, message.id, message.message) for message in brought] == [
                (message.seq, message.id, message.message) for message in stored
            ]
        answer = NewMessage(id=MessageId(an_id("msg")), seq=turn.next_message_seq, message=Message(role=Role.ASSISTANT, content="ok"))
        await turns.commit(step(turn, answer, closing=DONE))


async def test_an_opening_that_waited_for_the_turn_before_it_never_brings_an_older_history(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    for _ in range(20):
        answer = NewMessage(id=MessageId(an_id("msg")), seq=turn.next_message_seq, message=Message(role=Role.ASSISTANT, content="ok"))
        opening, _ = await asyncio.gather(turns.open(a_turn(tenant_id, session_id)), turns.commit(step(turn, answer, closing=DONE)))
        if not isinstance(opening, OpenTurn):
            opening = await turns.open(a_turn(tenant_id, session_id))
        assert isinstance(opening, OpenTurn)
        stored = await world.messages.working_set(session_id)
        assert opening.working_set is None or [message.id for message in opening.working_set] == [message.id for message in stored]
        turn = opening
