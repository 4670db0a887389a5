"""What callers may do with turns, and what they are told."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError
from app.domain.ids import SessionId, TurnId
from app.domain.turns import SEQ_GAP, InterruptReason, OnBusy, OnDisconnect, TurnRequest, TurnState
from app.turns.server import TurnServer
from app.turns.service import Turns
from tests.fakes.clock import settle
from tests.unit.turns.stage import B, Reader, Stage, Talker, types

LIMIT = 3


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
def model() -> Talker:
    return Talker()


@pytest.fixture
async def server(stage: Stage, model: Talker) -> AsyncIterator[TurnServer]:
    server = stage.server(model, limit=LIMIT)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def turns(stage: Stage, server: TurnServer, model: Talker) -> Turns:
    return stage.service(server, model)


@pytest.fixture
async def session_id(stage: Stage) -> SessionId:
    return await stage.session()


class Caller:
    """Starts turns of one session."""

    def __init__(self, stage: Stage, turns: Turns, session_id: SessionId) -> None:
        self._stage = stage
        self._turns = turns
        self._session_id = session_id

    async def __call__(
        self, on_busy: OnBusy = OnBusy.REJECT, *, background: bool = False, key: str | None = None, body: bytes = b"same"
    ) -> TurnId:
        request = TurnRequest(input="hello", on_busy=on_busy, background=background)
        started = await self._turns.start(self._stage.tenant, self._session_id, request, idempotency_key=key, fingerprint=body)
        return started.turn_id


@pytest.fixture
def post(stage: Stage, turns: Turns, session_id: SessionId) -> Caller:
    return Caller(stage, turns, session_id)


async def fill(stage: Stage, turns: Turns, count: int) -> list[TurnId]:
    return [await Caller(stage, turns, await stage.session())() for _ in range(count)]


async def test_a_turn_starts_with_its_first_events_stored(stage: Stage, post: Caller) -> None:
    turn_id = await post()
    assert types(stage.frames(turn_id)) == ["turn.started", "iteration.started"]
    assert stage.state(turn_id) is TurnState.RUNNING


async def test_a_busy_session_rejects_and_names_the_turn(stage: Stage, turns: Turns, post: Caller) -> None:
    running = await post()
    with pytest.raises(ConflictError) as busy:
        await post()
    assert (busy.value.code, busy.value.turn_id) == ("turn_in_progress", running)
    assert len(stage.turns.rows) == 1


async def test_a_busy_session_queues(stage: Stage, model: Talker, post: Caller) -> None:
    running, waiting = await post(), await post(OnBusy.ENQUEUE)
    assert (stage.state(running), stage.state(waiting)) == (TurnState.RUNNING, TurnState.QUEUED)
    assert b'"reason":"session_busy"' in stage.frames(waiting)[0]
    model.go.set()
    await stage.until(lambda: stage.state(waiting) is TurnState.COMPLETED)


async def test_a_busy_session_is_interrupted(stage: Stage, model: Talker, post: Caller) -> None:
    running = await post()
    patient = await post(OnBusy.ENQUEUE)
    urgent = await post(OnBusy.INTERRUPT)
    assert stage.turns.rows[running].reason == "superseded"
    model.go.set()
    await stage.until(lambda: stage.state(patient) is TurnState.COMPLETED)
    assert [stage.turns.rows[turn_id].started_at_ms for turn_id in (urgent, patient)] == sorted(
        stage.turns.rows[turn_id].started_at_ms or 0 for turn_id in (urgent, patient)
    )


async def test_a_full_queue_refuses(stage: Stage, post: Caller) -> None:
    await post()
    for _ in range(stage.tenant.settings.max_queued_turns):
        await post(OnBusy.ENQUEUE)
    with pytest.raises(ConflictError) as full:
        await post(OnBusy.ENQUEUE)
    assert full.value.code == "queue_full"


async def test_an_unknown_session_is_not_found(stage: Stage, turns: Turns) -> None:
    with pytest.raises(NotFoundError):
        await Caller(stage, turns, SessionId("sess_none"))()


async def test_an_idempotency_key_finds_its_turn_again(turns: Turns, stage: Stage, session_id: SessionId, post: Caller) -> None:
    first = await post(key="k")
    request = TurnRequest(input="hello")
    again = await turns.start(stage.tenant, session_id, request, idempotency_key="k", fingerprint=b"same")
    assert (again.turn_id, again.replayed) == (first, True)
    with pytest.raises(ConflictError) as other:
        await post(key="k", body=b"other")
    assert other.value.code == "idempotency_mismatch"


async def test_at_capacity_a_plain_turn_is_refused_and_one_that_may_wait_is_queued(stage: Stage, turns: Turns, model: Talker) -> None:
    await fill(stage, turns, LIMIT)
    with pytest.raises(UnavailableError) as full:
        await fill(stage, turns, 1)
    assert (full.value.code, full.value.retry_after_s) == ("at_capacity", 2)
    waiting = [
        await Caller(stage, turns, await stage.session())(OnBusy.ENQUEUE),
        await Caller(stage, turns, await stage.session())(background=True),
    ]
    assert [stage.state(turn_id) for turn_id in waiting] == [TurnState.QUEUED] * 2
    assert b'"reason":"at_capacity"' in stage.frames(waiting[0])[0]
    model.go.set()
    await stage.until(lambda: all(stage.state(turn_id) is TurnState.COMPLETED for turn_id in waiting))


async def test_at_capacity_a_repeated_key_still_finds_its_turn(stage: Stage, turns: Turns, post: Caller, session_id: SessionId) -> None:
    first = await post(key="k")
    await fill(stage, turns, LIMIT - 1)
    request = TurnRequest(input="hello")
    again = await turns.start(stage.tenant, session_id, request, idempotency_key="k", fingerprint=b"same")
    assert (again.turn_id, again.replayed) == (first, True)


async def test_many_turns_at_once_do_not_exceed_the_limit(stage: Stage, turns: Turns, server: TurnServer) -> None:
    callers = [Caller(stage, turns, await stage.session()) for _ in range(10)]
    results = await asyncio.gather(*(caller() for caller in callers), return_exceptions=True)
    assert server.active.count == LIMIT
    assert sum(isinstance(result, UnavailableError) for result in results) == 10 - LIMIT


async def test_at_capacity_an_interrupting_turn_still_interrupts(stage: Stage, turns: Turns, post: Caller) -> None:
    running = await post()
    await fill(stage, turns, LIMIT - 1)
    urgent = await post(OnBusy.INTERRUPT)
    await stage.until(lambda: stage.state(urgent) is TurnState.RUNNING)
    assert stage.turns.rows[running].reason == "superseded"


async def test_a_leaving_replica_refuses_new_turns_and_serves_the_others(
    stage: Stage, turns: Turns, server: TurnServer, post: Caller
) -> None:
    turn_id = await post()
    await server.departure.begin()
    assert turns.draining
    with pytest.raises(UnavailableError) as leaving:
        await post(OnBusy.ENQUEUE)
    assert leaving.value.code == "draining"
    assert (await turns.get(stage.tenant.id, turn_id)).state is TurnState.RUNNING
    assert (await turns.interrupt(stage.tenant.id, turn_id)).state is TurnState.INTERRUPTED


async def test_an_interrupt_answers_with_the_ended_turn_and_can_be_repeated(stage: Stage, turns: Turns, post: Caller) -> None:
    turn_id = await post()
    views = [await turns.interrupt(stage.tenant.id, turn_id) for _ in range(3)]
    assert [(view.state, view.reason) for view in views] == [(TurnState.INTERRUPTED, "requested")] * 3
    assert types(stage.frames(turn_id)).count("turn.interrupted") == 1


async def test_a_queued_turn_is_interrupted_at_once_and_leaves_no_message(
    stage: Stage, turns: Turns, session_id: SessionId, post: Caller
) -> None:
    await post()
    waiting = await post(OnBusy.ENQUEUE)
    view = await turns.interrupt(stage.tenant.id, waiting)
    assert (view.state, view.reason) == (TurnState.INTERRUPTED, "requested")
    assert types(stage.frames(waiting)) == ["turn.queued", "turn.interrupted"]
    assert len(await stage.messages.working_set(session_id)) == 1


async def test_an_interrupt_that_meets_the_start_of_a_queued_turn_wins(stage: Stage, turns: Turns, model: Talker, post: Caller) -> None:
    running = await post()
    waiting = await post(OnBusy.ENQUEUE)
    gate = stage.turns.held["commit"] = asyncio.Event()
    interrupting = asyncio.ensure_future(turns.interrupt(stage.tenant.id, waiting))
    await stage.until(lambda: stage.turns.calls["commit"] == 1)
    row = stage.turns.rows[running]
    row.state, row.owner = TurnState.COMPLETED, None
    (claimed,) = await stage.turns.claim(B, 1)
    assert claimed.cancel_reason is InterruptReason.REQUESTED
    gate.set()
    await settle()
    assert (await interrupting).state is TurnState.RUNNING, "its new owner ends it"
    assert types(stage.frames(waiting)) == ["turn.queued"]


async def test_a_turn_of_another_tenant_does_not_exist(stage: Stage, turns: Turns, post: Caller) -> None:
    turn_id = await post()
    other = stage.tenants.add("other", "agw_other")
    for attempt in (turns.get(other.id, turn_id), turns.interrupt(other.id, turn_id), turns.follow(other.id, turn_id, 0)):
        with pytest.raises(NotFoundError):
            await attempt
    assert stage.state(turn_id) is TurnState.RUNNING


async def test_a_cursor_must_be_one_that_the_turn_gave_out(stage: Stage, turns: Turns, model: Talker, post: Caller) -> None:
    turn_id = await post()
    await stage.until(lambda: model.streams == 1)
    await settle()
    for after in (-1, 4, SEQ_GAP):
        with pytest.raises(InvalidRequestError) as bad:
            await turns.follow(stage.tenant.id, turn_id, after)
        assert bad.value.pointer == "/after"
    model.go.set()
    await stage.until(lambda: stage.state(turn_id).terminal)
    last = stage.turns.rows[turn_id].last_seq
    readers = [Reader(), Reader()]
    for reader, after in zip(readers, (last - 1, last), strict=True):
        reader.read(await turns.follow(stage.tenant.id, turn_id, after))
    await stage.until(lambda: all(reader.ended for reader in readers))
    assert [reader.seqs for reader in readers] == [[last], []]
    with pytest.raises(InvalidRequestError):
        await turns.follow(stage.tenant.id, turn_id, last + 1)


async def test_a_cursor_of_deltas_that_were_never_stored_is_accepted_elsewhere(stage: Stage, turns: Turns) -> None:
    turn = await stage.opened(B)
    pieces = await turns.follow(stage.tenant.id, turn.fence.turn_id, 57)
    await pieces.aclose()


async def test_a_reader_of_a_turn_that_ends_with_its_client_is_announced(stage: Stage, turns: Turns, session_id: SessionId) -> None:
    request = TurnRequest(input="hello", on_disconnect=OnDisconnect.CANCEL)
    started = await turns.start(stage.tenant, session_id, request, idempotency_key=None, fingerprint=b"")
    pieces = await turns.follow(stage.tenant.id, started.turn_id, 0)
    assert stage.turns.rows[started.turn_id].watched_until is not None
    await pieces.aclose()


async def test_the_turns_of_a_session_are_listed(stage: Stage, turns: Turns, session_id: SessionId, post: Caller) -> None:
    ids = [await post(), await post(OnBusy.ENQUEUE)]
    page = await turns.page(stage.tenant.id, session_id, 10, None)
    assert sorted(view.id for view in page.data) == sorted(ids)
