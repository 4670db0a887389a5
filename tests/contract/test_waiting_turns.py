"""What every :class:`app.ports.TurnStore` does with turns that wait for somebody."""

import asyncio
import time

import msgspec
import pytest

from app.domain.errors import ConflictError, LeaseLostError
from app.domain.events import FrameEncoder, TurnQueued
from app.domain.ids import MessageId, SessionId, TenantId
from app.domain.messages import Message, Role, ToolCall
from app.domain.openings import Busy, OpenTurn, Queued, Replayed, TooManyOpen
from app.domain.turns import (
    Commit,
    EventRow,
    GivenAnswer,
    InterruptReason,
    MachineState,
    NewMessage,
    OnBusy,
    RowKind,
    TurnAnswer,
    TurnState,
    TurnView,
    Unwatched,
)
from app.domain.waiting import CallAnswer, PausedBatch, WaitingCall, WaitingKind
from app.ports import TurnStore
from tests.contract.steps import DONE, STOPPED, opened, step
from tests.contract.worlds import MemoryWorld, World, new_session, taken_over
from tests.integration.store.builders import A, B, a_turn, an_id

PAUSED = PausedBatch(
    place=2,
    size=1,
    waiting=(WaitingCall(index=0, call=ToolCall("c1", "locate", '{"a":1}'), kind=WaitingKind.CLIENT_TOOL),),
    digests={0: "abc"},
)
STATE = MachineState(iteration=3, paused=PAUSED)
ANSWERED = msgspec.structs.replace(
    STATE,
    paused=msgspec.structs.replace(PAUSED, waiting=(msgspec.structs.replace(PAUSED.waiting[0], answer=CallAnswer(output="here")),)),
)


def until(world: World, in_s: float) -> int:
    """A time in the world's future, in unix ms."""
    now_ms = world.clock.unix_ms() if isinstance(world, MemoryWorld) else time.time_ns() // 1_000_000
    return now_ms + round(in_s * 1000)


def pause(turn: OpenTurn, world: World, in_s: float = 3_600.0) -> Commit:
    """The step that lets a turn wait."""
    return msgspec.structs.replace(step(turn, state=STATE), waits_until_ms=until(world, in_s))


async def paused(world: World, tenant_id: TenantId, session_id: SessionId, in_s: float = 3_600.0) -> TurnView:
    turn = await opened(world.turns, tenant_id, session_id)
    await world.turns.commit(pause(turn, world, in_s))
    return await seen(world, tenant_id, turn)


async def seen(world: World, tenant_id: TenantId, turn: OpenTurn | TurnView) -> TurnView:
    view = await world.turns.get(tenant_id, turn.id if isinstance(turn, TurnView) else turn.fence.turn_id)
    assert view is not None
    return view


def answers(tenant_id: TenantId, view: TurnView, *, complete: bool = True, key: str | None = None) -> TurnAnswer:
    seq = view.last_seq + 1
    frame = FrameEncoder(view.id).frame(seq, TurnQueued(session_id=view.session_id, reason="answered"))
    return TurnAnswer(
        tenant_id=tenant_id,
        turn_id=view.id,
        previous_seq=view.last_seq,
        last_seq=seq,
        state=ANSWERED,
        complete=complete,
        row=EventRow(seq, seq, RowKind.FACTS, frame) if complete else None,
        key=key,
        fingerprint=b"f",
    )


async def test_a_turn_that_pauses_belongs_to_nobody_and_is_read_to_its_last_event(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    assert (view.state, view.fence.owner, view.machine) == (TurnState.REQUIRES_ACTION, None, STATE)
    assert view.expires_at_ms is not None
    assert abs(view.expires_at_ms - until(world, 3_600.0)) < 60_000
    assert await turns.owned(A, [view.id]) == set()
    assert await turns.claim(A, 10) == []
    await world.alive(A, -1)
    await world.alive(B)
    assert await taken_over(world, B) == []
    rows, _ = (await turns.read_events([(view.id, 0)]))[view.id, 0]
    assert (rows[-1].last, rows[-1].kind) == (view.last_seq, RowKind.FACTS)
    assert (await turns.read_events([(view.id, view.last_seq)]))[view.id, view.last_seq] == ([], True)


async def test_a_pause_whose_answer_was_lost_counts_once(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    commit = pause(turn, world)
    await turns.commit(commit)
    await turns.commit(commit)
    view = await seen(world, tenant_id, turn)
    assert await turns.answer(answers(tenant_id, view))
    with pytest.raises(LeaseLostError):
        await turns.commit(commit)


async def test_a_pause_whose_answer_was_lost_is_known_also_when_the_turn_was_taken_up_since(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    commit = pause(turn, world)
    await turns.commit(commit)
    await turns.request_cancel(tenant_id, turn.fence.turn_id, InterruptReason.REQUESTED)
    assert len(await turns.claim(B, 10)) == 1
    await turns.commit(commit)
    view = await seen(world, tenant_id, turn)
    assert (view.state, view.fence.owner) == (TurnState.RUNNING, B)


async def test_nobody_writes_a_turn_that_waits(world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await turns.commit(pause(turn, world))
    view = await seen(world, tenant_id, turn)
    for fence in (turn.fence, view.fence):
        late = msgspec.structs.replace(step(turn, closing=DONE, seq=view.last_seq + 1), previous_seq=view.last_seq, fence=fence)
        with pytest.raises(LeaseLostError):
            await turns.commit(late)


async def test_a_turn_that_waits_holds_its_session(world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    view = await paused(world, tenant_id, session_id)
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=view.id)
    waiting = a_turn(tenant_id, session_id, owner=None, on_busy=OnBusy.INTERRUPT)
    assert isinstance(await turns.open(waiting), Queued)
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=view.id)
    assert await turns.claim(A, 10) == []
    session = await world.sessions.get(tenant_id, session_id)
    assert session is not None
    assert session.active_turn_id == view.id
    with pytest.raises(ConflictError) as refused:
        await world.sessions.delete(tenant_id, session_id)
    assert refused.value.turn_id == view.id
    assert await turns.answer(answers(tenant_id, view))
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=view.id)
    with pytest.raises(ConflictError):
        await world.sessions.delete(tenant_id, session_id)
    claimed = await turns.claim(B, 10)
    assert [turn.fence.turn_id for turn in claimed] == [view.id]
    await turns.commit(step(claimed[0], closing=DONE))
    assert [turn.fence.turn_id for turn in await turns.claim(B, 10)] == [waiting.id]


async def test_an_answered_turn_is_claimed_before_all_others_and_goes_on(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    older = a_turn(tenant_id, await new_session(world, tenant_id), owner=None, on_busy=OnBusy.INTERRUPT)
    assert isinstance(await turns.open(older), Queued)
    view = await paused(world, tenant_id, session_id)
    assert await turns.answer(answers(tenant_id, view))
    answered = await seen(world, tenant_id, view)
    assert (answered.state, answered.machine, answered.last_seq) == (TurnState.QUEUED, ANSWERED, view.last_seq + 1)
    rows, over = (await turns.read_events([(view.id, view.last_seq)]))[view.id, view.last_seq]
    assert ([row.first for row in rows], over) == ([answered.last_seq], False)
    assert (await turns.read_events([(view.id, answered.last_seq)]))[view.id, answered.last_seq] == ([], False)
    (turn,) = await turns.claim(B, 1)
    assert (turn.fence.owner, turn.resumed, turn.state, turn.cancel_reason) == (B, True, ANSWERED, None)
    assert turn.fence.generation == view.fence.generation + 1
    assert [stored.message.role for stored in await world.messages.working_set(session_id)] == [Role.USER]
    await turns.commit(step(turn, closing=DONE))
    assert (await seen(world, tenant_id, view)).state is TurnState.COMPLETED


async def test_answers_count_only_for_the_turn_as_it_was_read(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    assert not await turns.answer(answers(await world.tenant(), view))
    assert not await turns.answer(msgspec.structs.replace(answers(tenant_id, view), previous_seq=view.last_seq - 1))
    assert await turns.answer(answers(tenant_id, view, complete=False))
    partly = await seen(world, tenant_id, view)
    assert (partly.state, partly.machine, partly.expires_at_ms) == (TurnState.REQUIRES_ACTION, ANSWERED, view.expires_at_ms)
    assert (await turns.read_events([(view.id, view.last_seq)]))[view.id, view.last_seq] == ([], True)
    assert not await turns.answer(answers(tenant_id, view)), "made of the turn before the other answer"
    assert await turns.answer(answers(tenant_id, partly))
    assert not await turns.answer(answers(tenant_id, await seen(world, tenant_id, view))), "it waits no more"


async def test_of_many_answers_at_once_one_counts(world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    view = await paused(world, tenant_id, session_id)
    assert sorted(await asyncio.gather(*(turns.answer(answers(tenant_id, view)) for _ in range(5)))) == [False] * 4 + [True]


async def test_answers_are_found_again_under_their_key_for_a_day(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    assert await turns.given_answer(view.id, "k") is None
    assert await turns.answer(answers(tenant_id, view, complete=False, key="k"))
    partly = await seen(world, tenant_id, view)
    assert await turns.answer(answers(tenant_id, partly, key="l"))
    assert not await turns.answer(answers(tenant_id, partly, key="never"))
    assert await turns.given_answer(view.id, "k") == GivenAnswer(fingerprint=b"f", after=view.last_seq, complete=False)
    assert await turns.given_answer(view.id, "l") == GivenAnswer(fingerprint=b"f", after=partly.last_seq, complete=True)
    assert await turns.given_answer(view.id, "never") is None


async def test_a_turn_that_is_stopped_while_it_waits_is_there_for_whoever_ends_it(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    stopped = await turns.request_cancel(tenant_id, view.id, InterruptReason.SUPERSEDED)
    assert stopped is not None
    assert stopped.state is TurnState.QUEUED
    assert not await turns.answer(answers(tenant_id, view))
    assert await turns.open(a_turn(tenant_id, session_id)) == Busy(turn_id=view.id)
    seq = stopped.last_seq + 1
    row = EventRow(seq, seq, RowKind.TERMINAL, b"id: %d\n\n" % seq)
    result = NewMessage(id=MessageId(an_id("msg")), seq=3, message=Message(role=Role.TOOL, content="no", tool_call_id="c1"))
    closing = Commit(
        fence=stopped.fence,
        previous_seq=stopped.last_seq,
        last_seq=seq,
        rows=(row,),
        messages=(result,),
        next_message_seq=4,
        state=stopped.machine,
        closing=STOPPED,
    )
    await turns.commit(closing)
    assert (await seen(world, tenant_id, view)).state is TurnState.INTERRUPTED
    opening = await turns.open(a_turn(tenant_id, session_id))
    assert isinstance(opening, OpenTurn)
    assert opening.next_message_seq == 5


async def test_a_stopped_turn_that_nobody_ended_is_claimed_with_the_reason(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    await turns.request_cancel(tenant_id, view.id, InterruptReason.REQUESTED)
    (turn,) = await turns.claim(B, 10)
    assert (turn.fence.turn_id, turn.cancel_reason, turn.state) == (view.id, InterruptReason.REQUESTED, STATE)


async def test_a_turn_that_is_to_be_stopped_does_not_begin_to_wait(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await turns.request_cancel(tenant_id, turn.fence.turn_id, InterruptReason.REQUESTED)
    await turns.commit(pause(turn, world))
    assert (await seen(world, tenant_id, turn)).state is TurnState.QUEUED
    (claimed,) = await turns.claim(B, 10)
    assert (claimed.fence.turn_id, claimed.cancel_reason) == (turn.fence.turn_id, InterruptReason.REQUESTED)


async def test_only_turns_whose_time_is_over_expire(world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    view = await paused(world, tenant_id, session_id, in_s=100.0)
    assert view.id not in {late.id for late in await turns.expire(1_000)}
    await world.pass_time(101.0)
    assert view.id in {late.id for late in await turns.expire(1_000)}
    assert view.id not in {late.id for late in await turns.expire(1_000)}
    (turn,) = [turn for turn in await turns.claim(B, 1_000) if turn.fence.turn_id == view.id]
    assert turn.cancel_reason is InterruptReason.EXPIRED


async def test_a_turn_that_was_answered_in_time_does_not_expire(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id, in_s=100.0)
    assert await turns.answer(answers(tenant_id, view))
    await world.pass_time(101.0)
    assert view.id not in {late.id for late in await turns.expire(1_000)}
    (turn,) = [turn for turn in await turns.claim(B, 1_000) if turn.fence.turn_id == view.id]
    assert turn.cancel_reason is None


async def test_a_client_that_left_does_not_stop_a_turn_that_waits(
    world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    view = await paused(world, tenant_id, session_id)
    assert await turns.cancel_unwatched(view.id, InterruptReason.CLIENT_GONE) is Unwatched.SETTLED
    assert (await seen(world, tenant_id, view)).state is TurnState.REQUIRES_ACTION
    assert await turns.answer(answers(tenant_id, view))
    assert await turns.cancel_unwatched(view.id, InterruptReason.CLIENT_GONE) is Unwatched.MARKED
    (turn,) = await turns.claim(B, 10)
    assert turn.cancel_reason is InterruptReason.CLIENT_GONE


async def test_turns_that_wait_count_as_open(world: World, turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    new = a_turn(tenant_id, session_id, key="k")
    turn = await turns.open(new)
    assert isinstance(turn, OpenTurn)
    await turns.commit(pause(turn, world))
    other = msgspec.structs.replace(a_turn(tenant_id, session_id, owner=None), max_open=1)
    assert await turns.open(other) == TooManyOpen()
    view = await seen(world, tenant_id, turn)
    assert await turns.answer(answers(tenant_id, view))
    assert await turns.open(other) == TooManyOpen()
    assert await turns.open(msgspec.structs.replace(new, max_open=1)) == Replayed(turn_id=new.id, same_body=True)
