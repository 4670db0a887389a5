"""Commits that carry a compaction: all of it or nothing, and what the next turn begins with."""

import asyncio

import msgspec
import pytest

from app.domain.compaction import CompactionReason, CompactionResult, ContextMark, ContextState, Fruitless, ResultClip
from app.domain.errors import LeaseLostError
from app.domain.ids import MessageId, SessionId, TenantId
from app.domain.messages import Message, MessageKind, Role
from app.domain.model import Usage
from app.domain.openings import Kept, OpenTurn
from app.domain.turns import Closing, Commit, Compaction, NewMessage, OnBusy, TurnKind, TurnRequest, TurnState
from app.ports import TurnStore
from tests.contract.steps import DONE, opened, step
from tests.contract.worlds import World, new_session, taken_over
from tests.integration.store.builders import A, B, a_turn, an_id

STATE = ContextState(
    mark=ContextMark(tokens=0, up_to_seq=0, window=8_000, ratio=1.25),
    clips=(ResultClip(3, 240),),
    fruitless=Fruitless(count=1, preflight=True),
)
FAILED = ContextState(fruitless=Fruitless(failures=1, cool_until_ms=60_000))


def compaction(summary: str | None, *seqs: int, memory: str | None = None) -> Compaction:
    result = CompactionResult(
        reason=CompactionReason.GATEWAY, archived_seqs=seqs, summary=summary, clips=STATE.clips, tokens_before=900, tokens_after=90
    )
    return Compaction(id=an_id("sum"), result=result, memory=memory, usage=Usage(input_tokens=7), cost_usd=0.5)


def compacting(turn: OpenTurn, made: Compaction, *messages: NewMessage) -> Commit:
    return msgspec.structs.replace(step(turn, *messages), context=STATE, compaction=made)


def behind(commit: Commit, closing: Closing = DONE) -> Commit:
    """The end of the turn, behind a commit."""
    return msgspec.structs.replace(
        commit,
        previous_seq=commit.last_seq,
        last_seq=commit.last_seq + 1,
        rows=(msgspec.structs.replace(commit.rows[0], first=commit.last_seq + 1, last=commit.last_seq + 1),),
        messages=(),
        next_message_seq=0,
        closing=closing,
        compaction=None,
        context=None,
    )


async def kept(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> Kept:
    """What the next turn of the session begins with."""
    return (await opened(turns, tenant_id, session_id)).kept


@pytest.fixture
async def grown(world: World, tenant_id: TenantId) -> SessionId:
    """A session of six messages."""
    roles = (Role.USER, Role.ASSISTANT) * 3
    return await new_session(world, tenant_id, *(Message(role=role, content=f"{number}") for number, role in enumerate(roles, 1)))


async def test_a_compaction_archives_rows_and_leaves_its_summary(
    turns: TurnStore, world: World, tenant_id: TenantId, grown: SessionId
) -> None:
    turn = await opened(turns, tenant_id, grown)
    note = Message(role=Role.USER, content="[todo]", kind=MessageKind.NOTE)
    commit = compacting(turn, compaction("so far", 1, 2, 3, 4, memory="tea"), NewMessage(id=MessageId("msg_n"), seq=8, message=note))
    await turns.commit(commit)
    await turns.commit(commit)
    assert [row.seq for row in await world.messages.working_set(grown)] == [5, 6, 7, 8]
    page = await world.messages.page(tenant_id, grown, 100, 0)
    assert page is not None
    assert [(row.seq, row.archived) for row in page.data][:6] == [(1, True), (2, True), (3, True), (4, True), (5, False), (6, False)]
    await turns.commit(behind(commit))
    assert await kept(turns, tenant_id, grown) == Kept(memory="tea", summary="so far", context=STATE)


async def test_notes_that_are_outdated_leave_with_it(turns: TurnStore, world: World, tenant_id: TenantId, grown: SessionId) -> None:
    turn = await opened(turns, tenant_id, grown)
    made = compaction("so far", 1, 2)
    result = msgspec.structs.replace(made.result, outdated_seqs=(5,))
    await turns.commit(compacting(turn, msgspec.structs.replace(made, result=result)))
    assert [row.seq for row in await world.messages.working_set(grown)] == [3, 4, 6, 7]


async def test_the_next_summary_takes_the_place_of_the_one_before_and_a_trim_leaves_it(
    turns: TurnStore, world: World, tenant_id: TenantId, grown: SessionId
) -> None:
    for made in (compaction("first", 1, 2), compaction("second", 3, memory="tea"), compaction(None, 4, 5, memory="tea")):
        turn = await opened(turns, tenant_id, grown)
        commit = compacting(turn, made)
        await turns.commit(commit)
        await turns.commit(behind(commit))
    turn = await opened(turns, tenant_id, grown)
    assert turn.kept == Kept(memory="tea", summary="second", context=STATE)
    assert [row.seq for row in await world.messages.working_set(grown)] == [6, 7, 8, 9, 10]


async def test_a_compaction_of_an_earlier_owner_changes_nothing(
    turns: TurnStore, world: World, tenant_id: TenantId, grown: SessionId
) -> None:
    await world.alive(A, -1.0)
    await world.alive(B)
    turn = await opened(turns, tenant_id, grown)
    (taken,) = await taken_over(world, B)
    with pytest.raises(LeaseLostError):
        await turns.commit(compacting(turn, compaction("late", 1, 2)))
    assert len(await world.messages.working_set(grown)) == 7
    await turns.commit(msgspec.structs.replace(step(taken), closing=DONE, fence=taken.fence))
    assert await kept(turns, tenant_id, grown) == Kept()


async def test_what_a_failed_compaction_leaves_is_kept_without_any_message(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    commit = msgspec.structs.replace(step(turn), context=FAILED)
    await turns.commit(commit)
    await turns.commit(behind(commit))
    assert await kept(turns, tenant_id, session_id) == Kept(context=FAILED)


async def test_a_compaction_that_waited_in_line_brings_no_message(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    session_id = await new_session(world, tenant_id)
    running = await opened(turns, tenant_id, session_id)
    request = TurnRequest(kind=TurnKind.COMPACTION, on_busy=OnBusy.ENQUEUE)
    await turns.open(msgspec.structs.replace(a_turn(tenant_id, session_id, owner=None), request=request))
    await turns.commit(step(running, closing=DONE))
    (claimed,) = await turns.claim(A, 10)
    assert claimed.request.kind is TurnKind.COMPACTION
    assert claimed.next_message_seq == running.next_message_seq
    assert [row.seq for row in await world.messages.working_set(session_id)] == [1]


async def test_compactions_and_openings_of_one_session_wait_for_one_another(
    turns: TurnStore, tenant_id: TenantId, grown: SessionId
) -> None:
    for _ in range(10):
        turn = await opened(turns, tenant_id, grown)
        commit = compacting(turn, compaction("so far", 1, 2))
        others = (turns.open(a_turn(tenant_id, grown, owner=None)) for _ in range(3))
        await asyncio.gather(turns.commit(commit), *others)
        await turns.commit(behind(commit))
        while claimed := await turns.claim(A, 10):
            for one in claimed:
                await turns.commit(step(one, closing=DONE))
    page = await turns.list_for_session(tenant_id, grown, 100, None)
    assert {view.state for view in page.data} == {TurnState.COMPLETED}


async def test_an_end_that_keeps_a_context_and_openings_wait_for_one_another(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    for _ in range(20):
        ending = turns.commit(msgspec.structs.replace(step(turn, closing=DONE), context=FAILED))
        _, *openings = await asyncio.gather(ending, *(turns.open(a_turn(tenant_id, session_id, owner=A)) for _ in range(4)))
        begun = [opening for opening in openings if isinstance(opening, OpenTurn)]
        assert len(begun) <= 1
        turn = begun[0] if begun else await opened(turns, tenant_id, session_id)
        assert turn.kept.context == FAILED
