"""What every :class:`app.ports.TurnStore` does with events, and with those who read them."""

import msgspec

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.turns import SEQ_GAP, InterruptReason, RowKind, TurnState, Unwatched
from app.ports import TurnStore
from tests.contract.steps import DONE, PRUNE_AGES, deltas, opened, step
from tests.contract.worlds import World, new_session, taken_over
from tests.integration.store.builders import A, B


async def test_ids_go_on_far_above_the_last_stored_delta_after_a_takeover(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    await turns.append_deltas([deltas(turn, 2, 57)])
    await world.alive(A, -1.0)
    (taken,) = await taken_over(world, B)
    assert taken.last_seq == 57 + SEQ_GAP


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
    assert await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE) is Unwatched.SETTLED
    view = await turns.request_cancel(tenant_id, turn_id, InterruptReason.REQUESTED)
    assert view is not None
    assert (view.state, view.reason) == (TurnState.COMPLETED, "answer")


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


async def test_a_read_elsewhere_keeps_a_turn_whose_client_left(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    turn = await opened(turns, tenant_id, session_id)
    turn_id = turn.fence.turn_id
    await turns.watch([turn_id], 60.0)
    assert await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE) is Unwatched.WATCHED
    await turns.watch([turn_id], -1.0)
    assert await turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE) is Unwatched.MARKED
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
    assert await turns.prune(PRUNE_AGES) == 1
    turn_id = old.fence.turn_id
    assert [row.kind for row in (await turns.read_events([(turn_id, 0)]))[turn_id, 0][0]] == [RowKind.FACTS, RowKind.TERMINAL]
    assert await turns.prune(PRUNE_AGES) == 0
