"""What every :class:`app.ports.TurnStore` does with turns that have no session, and with turns that bring results of client tools."""

import asyncio

import msgspec
import pytest

from app.domain.errors import LeaseLostError
from app.domain.events import FrameEncoder, IterationStarted
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message, Role, ToolCall
from app.domain.openings import NewTurn, OpenTurn, Replayed, StatelessCall, TooManyOpen
from app.domain.turns import EventRow, InterruptReason, NewMessage, RowKind, TurnRequest, TurnState
from app.ports import TurnStore
from tests.contract.steps import DONE, PRUNE_AGES, STOPPED, deltas, opened, step
from tests.contract.worlds import World, taken_over
from tests.integration.store.builders import A, B, a_turn, an_id

HISTORY = (
    Message(role=Role.USER, content="ä\x7f one"),
    Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall("c1", "f", '{"b": 1}'),)),
    Message(role=Role.TOOL, content="done", tool_call_id="c1"),
    Message(role=Role.USER, content=[{"type": "text", "text": "two"}]),
)


def a_call(tenant_id: TenantId, *, owner: ReplicaId = A, key: str | None = None, fingerprint: bytes = b"same") -> NewTurn:
    turn_id = TurnId(an_id("turn"))
    frame = FrameEncoder(turn_id).frame(1, IterationStarted(iteration=1, max_iterations=90))
    return NewTurn(
        id=turn_id,
        tenant_id=tenant_id,
        session_id=None,
        request=TurnRequest(model="m-big"),
        owner=owner,
        message_id=MessageId(an_id("msg")),
        rows=(EventRow(1, 1, RowKind.FACTS, frame),),
        max_queued=16,
        idempotency_key=key,
        fingerprint=fingerprint,
        created_at_ms=1_800_000_000_000,
        stateless=StatelessCall(system_prompt="be kind", tools=b"[]", history=HISTORY),
    )


async def called(turns: TurnStore, tenant_id: TenantId, owner: ReplicaId = A) -> OpenTurn:
    opening = await turns.open(a_call(tenant_id, owner=owner))
    assert isinstance(opening, OpenTurn)
    return opening


async def test_a_stateless_turn_opens_with_its_own_conversation(turns: TurnStore, tenant_id: TenantId) -> None:
    turn = await called(turns, tenant_id)
    assert turn.fence.session_id is None
    assert (turn.system_prompt, turn.tools, turn.next_message_seq) == ("be kind", b"[]", 5)
    assert turn.working_set is not None
    assert [(stored.seq, stored.message) for stored in turn.working_set] == list(enumerate(HISTORY, 1))
    view = await turns.get(tenant_id, turn.fence.turn_id)
    assert view is not None
    assert (view.session_id, view.state, view.request.model) == (None, TurnState.RUNNING, "m-big")


async def test_any_number_of_stateless_turns_run_at_once(turns: TurnStore, tenant_id: TenantId) -> None:
    openings = await asyncio.gather(*(turns.open(a_call(tenant_id)) for _ in range(5)))
    assert all(isinstance(opening, OpenTurn) for opening in openings)


async def test_its_events_and_its_end_are_stored_like_any_others(turns: TurnStore, tenant_id: TenantId) -> None:
    turn = await called(turns, tenant_id)
    turn_id = turn.fence.turn_id
    assert await turns.append_deltas([deltas(turn, 2, 3)]) == {turn_id}
    assert not (await turns.commit(step(turn, closing=DONE, seq=4))).others_wait
    rows, _ = (await turns.read_events([(turn_id, 1)]))[turn_id, 1]
    assert [(row.first, row.last, row.kind) for row in rows] == [(2, 3, RowKind.DELTAS), (4, 4, RowKind.TERMINAL)]
    view = await turns.get(tenant_id, turn_id)
    assert view is not None
    assert (view.state, view.outcome) == (TurnState.COMPLETED, DONE.outcome)


async def test_of_two_closings_of_a_stateless_turn_the_first_counts(turns: TurnStore, tenant_id: TenantId) -> None:
    turn = await called(turns, tenant_id)
    closings = (step(turn, closing=DONE), step(turn, closing=STOPPED, seq=3))
    results = await asyncio.gather(*(turns.commit(commit) for commit in closings), return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, BaseException)] == [LeaseLostError]


async def test_a_stateless_turn_of_a_dead_replica_is_taken_over(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    turn = await called(turns, tenant_id)
    await world.alive(A, -1.0)
    await world.alive(B)
    (taken,) = await taken_over(world, B)
    assert (taken.fence.turn_id, taken.fence.session_id, taken.fence.generation) == (turn.fence.turn_id, None, 2)
    assert (taken.tools, taken.working_set, taken.resumed) == (b"[]", None, True)
    with pytest.raises(LeaseLostError):
        await turns.commit(step(turn, closing=DONE))
    await turns.commit(step(taken, closing=STOPPED))


async def test_a_stateless_turn_is_stopped_by_its_tenant_alone(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    turn = await called(turns, tenant_id)
    turn_id, other = turn.fence.turn_id, await world.tenant()
    assert await turns.get(other, turn_id) is None
    assert await turns.request_cancel(other, turn_id, InterruptReason.REQUESTED) is None
    view = await turns.request_cancel(tenant_id, turn_id, InterruptReason.REQUESTED)
    assert view is not None
    assert await turns.cancel_requests(A) == {turn_id: InterruptReason.REQUESTED}


async def test_nobody_claims_a_stateless_turn(turns: TurnStore, tenant_id: TenantId) -> None:
    await called(turns, tenant_id)
    assert await turns.claim(B, 10) == []


async def test_an_idempotency_key_of_stateless_turns_belongs_to_the_tenant(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    first = a_call(tenant_id, key="/v1/x k")
    assert isinstance(await turns.open(first), OpenTurn)
    assert await turns.open(a_call(tenant_id, key="/v1/x k")) == Replayed(turn_id=first.id, same_body=True)
    assert await turns.open(a_call(tenant_id, key="/v1/x k", fingerprint=b"else")) == Replayed(turn_id=first.id, same_body=False)
    assert await turns.replayed(a_call(tenant_id, key="/v1/x k")) == Replayed(turn_id=first.id, same_body=True)
    assert isinstance(await turns.open(a_call(tenant_id, key="/v1/y k")), OpenTurn)
    assert isinstance(await turns.open(a_call(await world.tenant(), key="/v1/x k")), OpenTurn)


async def test_of_calls_with_one_key_that_come_at_once_one_runs(turns: TurnStore, tenant_id: TenantId) -> None:
    openings = await asyncio.gather(*(turns.open(a_call(tenant_id, key="k")) for _ in range(5)))
    (winner,) = [opening for opening in openings if isinstance(opening, OpenTurn)]
    others = [opening for opening in openings if opening is not winner]
    assert others == [Replayed(turn_id=winner.fence.turn_id, same_body=True)] * 4


async def test_the_same_turn_is_never_opened_twice(turns: TurnStore, tenant_id: TenantId) -> None:
    turn = a_call(tenant_id)
    assert isinstance(await turns.open(turn), OpenTurn)
    assert await turns.open(turn) == Replayed(turn_id=turn.id, same_body=True)


async def test_old_keys_of_stateless_turns_are_forgotten(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    turn = await turns.open(a_call(tenant_id, key="k"))
    assert isinstance(turn, OpenTurn)
    await turns.commit(step(turn, closing=DONE))
    await world.pass_time(25 * 3600.0)
    await turns.prune(PRUNE_AGES)
    assert isinstance(await turns.open(a_call(tenant_id, key="k")), OpenTurn)


async def test_stateless_turns_are_deleted_some_time_after_their_end_and_no_others(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    old, running = await called(turns, tenant_id), await called(turns, tenant_id)
    in_session = await opened(turns, tenant_id, session_id)
    for turn in (old, in_session):
        await turns.commit(step(turn, closing=DONE))
    await world.pass_time(PRUNE_AGES.stateless_s - 60.0)
    young = await called(turns, tenant_id)
    await turns.commit(step(young, closing=DONE))
    await turns.prune(PRUNE_AGES)
    assert await turns.get(tenant_id, old.fence.turn_id) is not None
    await world.pass_time(120.0)
    assert await turns.prune(PRUNE_AGES) == 1
    found = {turn.fence.turn_id: await turns.get(tenant_id, turn.fence.turn_id) for turn in (old, running, in_session, young)}
    assert {turn_id for turn_id, view in found.items() if view is None} == {old.fence.turn_id}
    assert await turns.read_events([(old.fence.turn_id, 0)]) == {(old.fence.turn_id, 0): ([], True)}
    assert await turns.prune(PRUNE_AGES) == 0


async def test_a_stateless_turn_stays_while_its_key_can_name_it(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    turn = await turns.open(a_call(tenant_id, key="k"))
    assert isinstance(turn, OpenTurn)
    await turns.commit(step(turn, closing=DONE))
    await world.pass_time(7_200.0)
    ages = msgspec.structs.replace(PRUNE_AGES, stateless_s=3_600.0)
    await turns.prune(ages)
    assert await turns.open(a_call(tenant_id, key="k")) == Replayed(turn_id=turn.fence.turn_id, same_body=True)
    await world.pass_time(ages.idempotency_s)
    await turns.prune(ages)
    assert await turns.get(tenant_id, turn.fence.turn_id) is None


async def test_stateless_turns_count_where_open_turns_are_limited(turns: TurnStore, tenant_id: TenantId, session_id: SessionId) -> None:
    await opened(turns, tenant_id, session_id)
    limited = msgspec.structs.replace(a_call(tenant_id), max_open=1)
    assert await turns.open(limited) == TooManyOpen()
    assert isinstance(await turns.open(msgspec.structs.replace(limited, max_open=2)), OpenTurn)


async def test_a_turn_brings_results_before_what_the_user_says(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    first = await opened(turns, tenant_id, session_id)
    asked = Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}")))
    call = NewMessage(id=MessageId(an_id("msg")), seq=2, message=asked)
    await turns.commit(msgspec.structs.replace(step(first, call, closing=DONE), next_message_seq=5))
    turn = await turns.open(with_answers(a_turn(tenant_id, session_id), "and?"))
    assert isinstance(turn, OpenTurn)
    stored = await world.messages.working_set(session_id)
    assert [(row.seq, row.message.role, row.message.content) for row in stored[2:]] == [
        (5, Role.TOOL, "one"),
        (6, Role.TOOL, "two"),
        (7, Role.USER, "and?"),
    ]
    assert turn.next_message_seq == 8
    assert turn.working_set is None or [row.message for row in turn.working_set] == [row.message for row in stored]


async def test_a_turn_may_bring_nothing_but_results(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    turn = await turns.open(with_answers(a_turn(tenant_id, session_id), ""))
    assert isinstance(turn, OpenTurn)
    stored = await world.messages.working_set(session_id)
    assert [row.message.role for row in stored] == [Role.TOOL, Role.TOOL]
    assert turn.next_message_seq == 3


def with_answers(turn: NewTurn, said: str) -> NewTurn:
    answers = tuple(Message(role=Role.TOOL, content=text, tool_call_id=call_id) for call_id, text in (("c1", "one"), ("c2", "two")))
    request = msgspec.structs.replace(turn.request, input=said, answers=answers)
    return msgspec.structs.replace(turn, request=request, answer_ids=(MessageId(an_id("msg")), MessageId(an_id("msg"))))
