"""Turns that wait, over replicas in one process: at any moment stopped, answered, expired, left or taken up by another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError
from app.domain.ids import TenantId, TurnId
from app.domain.messages import Role, ToolSpec
from app.domain.openings import OpenTurn
from app.domain.tools import INTERRUPTED_OUTPUT
from app.domain.turns import InterruptReason, OnBusy, OnDisconnect, TurnRequest, TurnState
from app.turns.answers import CallResult, Decision, TurnAnswers
from app.turns.server import TurnServer
from app.turns.service import Turns
from tests.fakes.clock import settle
from tests.unit.turns.stage import B, Reader, Stage, Talker, types

BUY = ToolSpec(name="buy", description="The client's.", parameters={"type": "object"})
GIVEN = CallResult(tool_call_id="call_0", output="bought")
DAY_S = 24 * 3600.0
TERMINAL = {"turn.completed", "turn.interrupted", "turn.failed"}


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@asynccontextmanager
async def running(server: TurnServer) -> AsyncIterator[TurnServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def server(stage: Stage) -> AsyncIterator[TurnServer]:
    async with running(stage.server(Talker(rounds=1, go=True))) as server:
        yield server


@pytest.fixture
def turns(stage: Stage, server: TurnServer) -> Turns:
    return stage.service(server, Talker())


async def started(stage: Stage, server: TurnServer, *, on_disconnect: OnDisconnect = OnDisconnect.CONTINUE) -> TurnId:
    """A turn whose model calls a tool of the client."""
    request = TurnRequest(input="hello", client_tools=(BUY,), may_wait=True, on_disconnect=on_disconnect)
    turn = msgspec.structs.replace(stage.new_turn(await stage.session(), owner=server.lease.replica), request=request)
    opening = await server.open(turn, stage.tenant)
    assert isinstance(opening, OpenTurn)
    return turn.id


async def waiting(stage: Stage, server: TurnServer, *, on_disconnect: OnDisconnect = OnDisconnect.CONTINUE) -> TurnId:
    turn_id = await started(stage, server, on_disconnect=on_disconnect)
    await stage.until(lambda: stage.state(turn_id) is TurnState.REQUIRES_ACTION)
    await stage.until(lambda: server.active.count == 0)
    return turn_id


async def gives(turns: Turns, stage: Stage, turn_id: TurnId, *results: CallResult, key: str | None = None) -> bool:
    answered = await turns.answer(stage.tenant.id, turn_id, results or (GIVEN,), idempotency_key=key, fingerprint=b"f")
    return answered.complete


async def check(stage: Stage, turn_id: TurnId) -> None:
    """One terminal event, and a result for the call."""
    assert [name for name in types(stage.frames(turn_id)) if name in TERMINAL] == types(stage.frames(turn_id))[-1:]
    session_id = stage.turns.rows[turn_id].new.session_id
    assert session_id is not None
    rows = await stage.messages.working_set(session_id)
    calls = [call.id for row in rows for call in row.message.tool_calls]
    assert [row.message.tool_call_id for row in rows if row.message.role is Role.TOOL] == calls
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    assert session_id not in stage.sessions.running


async def test_a_turn_that_waits_has_no_task_and_no_reader_waits_for_it(stage: Stage, server: TurnServer) -> None:
    other = stage.replica(B)
    await other.beat()
    tail = asyncio.ensure_future(other.log.tail.run())
    turn_id = await started(stage, server)
    near, far = Reader(), Reader()
    near.attach(server.log, turn_id)
    far.attach(other.log, turn_id)
    await stage.until(lambda: near.ended and far.ended)
    assert types(near.frames)[-1] == "tool.requires_action"
    assert near.frames == far.frames == stage.frames(turn_id)
    assert (server.active.count, server.log.live(turn_id), server.counters.followers) == (0, None, 0)
    late = Reader(after=near.last)
    late.attach(other.log, turn_id)
    await stage.until(lambda: late.ended)
    assert late.frames == []
    tail.cancel()


async def test_an_answer_is_taken_up_by_any_replica_when_the_one_that_took_it_dies_at_once(stage: Stage, server: TurnServer) -> None:
    turn_id = await waiting(stage, server)
    await server.stop()
    answers = TurnAnswers(stage.turns, stage.tenant.id, turn_id, key=None, fingerprint=b"")
    assert (await answers.give([GIVEN])).complete
    assert stage.state(turn_id) is TurnState.QUEUED
    async with running(stage.server(Talker(rounds=1, go=True), B)):
        await stage.until(lambda: stage.state(turn_id) is TurnState.COMPLETED)
    await check(stage, turn_id)
    assert types(stage.frames(turn_id)).count("turn.resumed") == 1


async def test_an_interrupt_at_any_moment_around_the_pause_ends_the_turn_once(stage: Stage, server: TurnServer, turns: Turns) -> None:
    found = set()
    for moment in range(40):
        turn_id = await started(stage, server)
        await settle(moment)
        found.add(stage.state(turn_id))
        view = await turns.interrupt(stage.tenant.id, turn_id)
        assert view.state.terminal, moment
        assert stage.turns.rows[turn_id].reason == "requested"
        await check(stage, turn_id)
    assert found == {TurnState.RUNNING, TurnState.REQUIRES_ACTION}


async def test_an_interrupt_at_any_moment_around_the_answer_ends_the_turn_once(stage: Stage, server: TurnServer, turns: Turns) -> None:
    ends = set()
    for moment in range(60):
        turn_id = await waiting(stage, server)
        answering = asyncio.ensure_future(gives(turns, stage, turn_id))
        await settle(moment)
        await turns.interrupt(stage.tenant.id, turn_id)
        refused = isinstance((await asyncio.gather(answering, return_exceptions=True))[0], ConflictError)
        await stage.until(lambda turn_id=turn_id: stage.state(turn_id).terminal)  # type: ignore[misc]
        await check(stage, turn_id)
        ends.add((refused, stage.state(turn_id)))
    assert ends == {(True, TurnState.INTERRUPTED), (False, TurnState.INTERRUPTED), (False, TurnState.COMPLETED)}


async def test_an_interrupt_while_an_answered_turn_reads_its_session_leaves_no_call_without_a_result(
    stage: Stage, server: TurnServer, turns: Turns
) -> None:
    stage.messages.rounds = 40
    ends = set()
    for moment in range(0, 60, 4):
        turn_id = await waiting(stage, server)
        assert await gives(turns, stage, turn_id)
        await settle(moment)
        await turns.interrupt(stage.tenant.id, turn_id)
        await stage.until(lambda turn_id=turn_id: stage.state(turn_id).terminal)  # type: ignore[misc]
        await check(stage, turn_id)
        assert types(stage.frames(turn_id)).count("tool.completed") == 1
        ends.add(stage.state(turn_id))
    assert TurnState.INTERRUPTED in ends


async def test_a_turn_that_cannot_go_on_from_its_answers_leaves_no_call_without_a_result(
    stage: Stage, server: TurnServer, turns: Turns
) -> None:
    turn_id = await waiting(stage, server)
    stage.tenants.forget(stage.tenant)
    assert await gives(turns, stage, turn_id)
    await stage.until(lambda: stage.state(turn_id) is TurnState.FAILED)
    await check(stage, turn_id)
    assert types(stage.frames(turn_id)).count("tool.completed") == 1


async def test_given_answers_stay_when_the_turn_is_stopped_before_it_goes_on(stage: Stage, server: TurnServer) -> None:
    turn_id = await waiting(stage, server)
    await server.stop()
    answers = TurnAnswers(stage.turns, stage.tenant.id, turn_id, key=None, fingerprint=b"")
    assert (await answers.give([GIVEN])).complete
    await stage.turns.request_cancel(stage.tenant.id, turn_id, InterruptReason.REQUESTED)
    async with running(stage.server(Talker(), B)):
        await stage.until(lambda: stage.state(turn_id).terminal)
    session_id = stage.turns.rows[turn_id].new.session_id
    assert session_id is not None
    results = [row.message.content for row in await stage.messages.working_set(session_id) if row.message.role is Role.TOOL]
    assert results == ["bought"]
    await check(stage, turn_id)


async def test_a_turn_expires_and_the_next_of_its_session_runs(stage: Stage, server: TurnServer) -> None:
    turn_id = await waiting(stage, server)
    session_id = stage.turns.rows[turn_id].new.session_id
    assert session_id is not None
    following = stage.new_turn(session_id, owner=None, on_busy=OnBusy.ENQUEUE)
    await server.open(following, stage.tenant)
    await stage.clock.advance(DAY_S - 60)
    assert stage.state(turn_id) is TurnState.REQUIRES_ACTION
    await stage.clock.advance(61)
    await stage.until(lambda: stage.state(following.id) is TurnState.COMPLETED)
    assert (stage.state(turn_id), stage.turns.rows[turn_id].reason) == (TurnState.INTERRUPTED, "expired")
    assert server.counters.ended["interrupted", "expired"] == 1
    results = [row.message.content for row in await stage.messages.working_set(session_id) if row.message.role is Role.TOOL]
    assert results == [INTERRUPTED_OUTPUT]


async def test_a_turn_that_expired_at_a_replica_that_died_then_is_ended_by_another(stage: Stage, server: TurnServer) -> None:
    turn_id = await waiting(stage, server)
    await server.stop()
    await stage.clock.advance(DAY_S + 1)
    assert [view.id for view in await stage.turns.expire(10)] == [turn_id]
    async with running(stage.server(Talker(), B)):
        await stage.until(lambda: stage.state(turn_id).terminal)
    assert stage.turns.rows[turn_id].reason == "expired"
    await check(stage, turn_id)


async def test_a_client_that_left_leaves_a_turn_that_waits(stage: Stage, server: TurnServer, turns: Turns) -> None:
    turn_id = await waiting(stage, server, on_disconnect=OnDisconnect.CANCEL)
    looks = stage.turns.calls["get"]
    turns.client_left(stage.tenant.id, turn_id)
    await stage.clock.advance(1)
    await stage.until(lambda: stage.turns.calls["cancel_unwatched"])
    await stage.clock.advance(1)
    assert (stage.turns.calls["cancel_unwatched"], stage.turns.calls["get"]) == (1, looks), "that is all: it may be answered meanwhile"
    assert stage.turns.rows[turn_id].cancel_reason is None
    assert await gives(turns, stage, turn_id)
    await stage.until(lambda: stage.state(turn_id) is TurnState.COMPLETED)


async def test_a_turn_that_supersedes_one_that_waits_runs_also_while_the_replica_is_full(stage: Stage) -> None:
    model = Talker(rounds=1)
    async with running(stage.server(model, limit=1)) as server:
        turns = stage.service(server, model)
        turn_id = await waiting(stage, server)
        session_id = stage.turns.rows[turn_id].new.session_id
        assert session_id is not None
        blocking = await server.open(stage.new_turn(await stage.session()), stage.tenant)
        assert isinstance(blocking, OpenTurn)
        request = TurnRequest(input="instead", on_busy=OnBusy.INTERRUPT)
        begun = await turns.start(stage.tenant, session_id, request, idempotency_key=None, fingerprint=b"")
        assert (stage.state(turn_id), stage.turns.rows[turn_id].reason) == (TurnState.INTERRUPTED, "superseded")
        model.go.set()
        await stage.until(lambda: stage.state(begun.turn_id) is TurnState.COMPLETED)


async def test_who_may_answer_and_when(stage: Stage, server: TurnServer, turns: Turns) -> None:
    turn_id = await waiting(stage, server)
    with pytest.raises(NotFoundError):
        await turns.answer(TenantId("ten_x"), turn_id, [GIVEN], idempotency_key=None, fingerprint=b"")
    with pytest.raises(InvalidRequestError) as refused:
        await gives(turns, stage, turn_id, CallResult(tool_call_id="call_0", decision=Decision.DENY))
    assert refused.value.pointer == "/results/0/decision"
    server.departure.draining = True
    with pytest.raises(UnavailableError) as away:
        await gives(turns, stage, turn_id)
    assert away.value.code == "draining"
    server.departure.draining = False
    assert await gives(turns, stage, turn_id, key="k")
    await stage.until(lambda: stage.state(turn_id) is TurnState.COMPLETED)
    assert await gives(turns, stage, turn_id, key="k"), "found again"
    with pytest.raises(ConflictError) as late:
        await gives(turns, stage, turn_id, key="l")
    assert (late.value.code, late.value.turn_id) == ("turn_not_waiting", turn_id)
    with pytest.raises(ConflictError) as other:
        await turns.answer(stage.tenant.id, turn_id, [GIVEN], idempotency_key="k", fingerprint=b"other")
    assert other.value.code == "idempotency_mismatch"


async def test_an_answer_whose_reply_was_lost_is_found_under_its_key(stage: Stage, server: TurnServer, turns: Turns) -> None:
    turn_id = await waiting(stage, server)
    stage.turns.answers_lost = 1
    with pytest.raises(UnavailableError):
        await gives(turns, stage, turn_id, key="k")
    assert await gives(turns, stage, turn_id, key="k")
    await stage.until(lambda: stage.state(turn_id) is TurnState.COMPLETED)
    await check(stage, turn_id)
