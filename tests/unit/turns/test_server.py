"""The turn server with its background work: queue, recovery, interrupts, readers that left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from typing_extensions import override

from app.domain.ids import ReplicaId, SessionId, TurnId
from app.domain.messages import StoredMessage
from app.domain.openings import NewTurn, OpenTurn, Queued
from app.domain.quotas import Spent
from app.domain.tenants import TenantSettings
from app.domain.turns import SEQ_GAP, InterruptReason, OnBusy, TurnState
from app.turns.server import RECOVER_LIMIT, TurnServer
from tests.fakes.clock import settle
from tests.fakes.sessions import InMemoryMessages
from tests.unit.turns.stage import BEAT_S, TTL_S, A, B, Reader, SlowToolbox, Stage, Talker, session_of, types


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
def model() -> Talker:
    return Talker()


@asynccontextmanager
async def running(server: TurnServer) -> AsyncIterator[TurnServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def server(stage: Stage, model: Talker) -> AsyncIterator[TurnServer]:
    async with running(stage.server(model)) as server:
        yield server


async def opened(stage: Stage, server: TurnServer, turn: NewTurn | None = None) -> OpenTurn:
    opening = await server.open(turn or stage.new_turn(await stage.session(), owner=server.lease.replica), stage.tenant)
    assert isinstance(opening, OpenTurn)
    return opening


async def queued(stage: Stage, server: TurnServer, session_id: SessionId, on_busy: OnBusy = OnBusy.ENQUEUE) -> TurnId:
    turn = stage.new_turn(session_id, owner=None, on_busy=on_busy)
    assert await server.open(turn, stage.tenant) == Queued(turn_id=turn.id)
    return turn.id


def reasons(stage: Stage, *turn_ids: TurnId) -> list[str | None]:
    return [stage.turns.rows[turn_id].reason for turn_id in turn_ids]


async def test_queued_turns_of_a_session_run_one_after_another_in_order(stage: Stage, server: TurnServer, model: Talker) -> None:
    first = await opened(stage, server)
    session_id = session_of(first)
    waiting = [await queued(stage, server, session_id) for _ in range(3)]
    await stage.until(lambda: model.streams == 1)
    assert [stage.state(turn_id) for turn_id in waiting] == [TurnState.QUEUED] * 3
    model.go.set()
    await stage.until(lambda: all(stage.state(turn_id) is TurnState.COMPLETED for turn_id in waiting))
    messages = await stage.messages.working_set(session_id)
    assert [row.message.role.value for row in messages] == ["user", "assistant"] * 4
    assert [row.turn_id for row in messages[::2]] == [first.fence.turn_id, *waiting]
    assert types(stage.frames(waiting[0]))[:3] == ["iteration.started", "turn.started", "iteration.started"]


async def test_queued_turns_are_claimed_only_while_there_is_room(stage: Stage, model: Talker) -> None:
    async with running(stage.server(model, limit=2)) as server:
        waiting = [await queued(stage, server, await stage.session()) for _ in range(5)]
        await stage.until(lambda: server.active.count == 2)
        for _ in range(20):
            await stage.clock.advance(0.01)
            await asyncio.sleep(0.005)
            assert server.active.count <= 2
        assert [stage.state(turn_id) for turn_id in waiting].count(TurnState.RUNNING) == 2
        model.go.set()
        await stage.until(lambda: all(stage.state(turn_id) is TurnState.COMPLETED for turn_id in waiting))


async def test_turns_that_are_just_being_opened_count_as_running(stage: Stage, model: Talker) -> None:
    server = stage.server(model, limit=3)
    stage.turns.held["open"] = asyncio.Event()
    openings = [asyncio.ensure_future(opened(stage, server)) for _ in range(2)]
    await settle()
    assert server.free == 1
    stage.turns.held["open"].set()
    await asyncio.gather(*openings)
    assert server.free == 1
    await server.stop()


async def test_turns_of_a_silent_replica_are_ended_within_45_s(stage: Stage, server: TurnServer, model: Talker) -> None:
    await stage.replicas.beat(B, TTL_S)
    lost = await stage.opened(B)
    began = stage.clock.monotonic()
    await stage.until(lambda: stage.state(lost.fence.turn_id).terminal, step_s=0.25)
    assert stage.clock.monotonic() - began <= 45.0
    assert reasons(stage, lost.fence.turn_id) == ["worker_lost"]
    assert types(stage.frames(lost.fence.turn_id)) == ["iteration.started", "attempt.reset", "turn.interrupted"]
    assert stage.turns.rows[lost.fence.turn_id].last_seq > SEQ_GAP
    assert model.requests == [], "a lost turn was run again"
    await stage.until(lambda: server.counters.recovered == 1)
    await opened(stage, server, stage.new_turn(session_of(lost)))


async def test_others_are_not_judged_before_a_full_ttl_of_own_contact(stage: Stage, server: TurnServer) -> None:
    lost = await stage.opened(B)
    for _ in range(int(TTL_S) - 1):
        await stage.clock.advance(1.0)
    assert stage.state(lost.fence.turn_id) is TurnState.RUNNING
    stage.away(True)
    await stage.clock.advance(BEAT_S)
    stage.away(False)
    for _ in range(int(TTL_S) - 2):
        await stage.clock.advance(1.0)
    assert stage.state(lost.fence.turn_id) is TurnState.RUNNING
    await stage.until(lambda: stage.state(lost.fence.turn_id).terminal, step_s=0.5)


async def test_open_calls_of_a_lost_turn_are_answered_and_not_run_again(stage: Stage) -> None:
    toolbox = SlowToolbox()
    stopped = stage.server(Talker(rounds=1), B, toolbox=toolbox)
    await stopped.lease.beat(stopped.active.revalidate)
    lost = await opened(stage, stopped)
    await stage.until(lambda: toolbox.calls == 1)
    async with running(stage.server(Talker(), toolbox=toolbox)):
        await stage.until(lambda: stage.state(lost.fence.turn_id).terminal, step_s=0.5)
    kinds = types(stage.frames(lost.fence.turn_id))
    assert kinds[-2:] == ["tool.completed", "turn.interrupted"]
    assert "attempt.reset" not in kinds
    rows = await stage.messages.working_set(session_of(lost))
    assert [row.message.role.value for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert "effect is unknown" in str(rows[2].message.content)
    assert toolbox.calls == 1
    await stopped.stop()
    assert types(stage.frames(lost.fence.turn_id)) == kinds, "the earlier owner wrote"


async def test_an_own_turn_that_nobody_runs_is_ended(stage: Stage, server: TurnServer) -> None:
    """The answer to its opening never came."""
    stage.turns.answers_lost = 1
    turn = stage.new_turn(await stage.session())
    with pytest.raises(Exception, match="cannot be reached"):
        await server.open(turn, stage.tenant)
    assert stage.state(turn.id) is TurnState.RUNNING
    await stage.until(lambda: stage.state(turn.id).terminal, step_s=0.25)
    assert reasons(stage, turn.id) == ["worker_lost"]


async def test_a_turn_that_is_opened_while_lost_ones_are_looked_for_stays_ours(stage: Stage, server: TurnServer, model: Talker) -> None:
    gate = stage.turns.held["take_over"] = asyncio.Event()
    recovering = asyncio.ensure_future(server.recover())
    await settle()
    turn = await opened(stage, server)
    await stage.clock.advance(1.0)
    gate.set()
    await recovering
    model.go.set()
    await stage.until(lambda: stage.state(turn.fence.turn_id).terminal)
    assert reasons(stage, turn.fence.turn_id) == ["answer"]


class PickyMessages(InMemoryMessages):
    """The history of one session cannot be read."""

    broken: SessionId | None = None

    @override
    async def working_set(self, session_id: SessionId) -> list[StoredMessage]:
        if session_id == self.broken:
            msg = "a bad row"
            raise ValueError(msg)
        return await super().working_set(session_id)


async def test_a_lost_turn_that_cannot_be_ended_does_not_keep_the_others_open(stage: Stage) -> None:
    picky = stage.messages = PickyMessages(stage.sessions)
    lost = [await stage.opened(B) for _ in range(3)]
    picky.broken = lost[0].fence.session_id
    async with running(stage.server(Talker())):
        await stage.until(lambda: all(stage.state(turn.fence.turn_id).terminal for turn in lost[1:]), step_s=0.5)
    assert stage.state(lost[0].fence.turn_id) is TurnState.RUNNING


async def test_more_lost_turns_than_one_look_takes_are_ended_too(stage: Stage) -> None:
    lost = [await stage.opened(B) for _ in range(RECOVER_LIMIT + 5)]
    async with running(stage.server(Talker())) as server:
        await stage.until(lambda: server.counters.recovered == len(lost), step_s=0.5)
        assert all(stage.state(turn.fence.turn_id).terminal for turn in lost)
    assert stage.clock.monotonic() <= 45.0


async def test_of_two_replicas_that_find_a_lost_turn_one_ends_it(stage: Stage) -> None:
    lost = [await stage.opened(ReplicaId("rep_gone")) for _ in range(10)]
    async with running(stage.server(Talker(), A)) as first, running(stage.server(Talker(), B)) as second:
        await stage.until(lambda: first.counters.recovered + second.counters.recovered == 10, step_s=0.5)
    for turn in lost:
        assert types(stage.frames(turn.fence.turn_id)).count("turn.interrupted") == 1


async def test_a_draining_replica_takes_nothing_new(stage: Stage, server: TurnServer) -> None:
    lost = await stage.opened(B)
    await server.departure.begin()
    waiting = await queued(stage, server, await stage.session())
    for _ in range(60):
        await stage.clock.advance(1.0)
    assert [stage.state(lost.fence.turn_id), stage.state(waiting)] == [TurnState.RUNNING, TurnState.QUEUED]


async def test_a_drain_ends_readers_and_what_they_saw_is_stored(stage: Stage, server: TurnServer, model: Talker) -> None:
    turn = await opened(stage, server)
    waiting = await queued(stage, server, session_of(turn))
    readers = [Reader(), Reader()]
    readers[0].attach(server.log, turn.fence.turn_id)
    readers[1].attach(server.log, waiting)
    await stage.until(lambda: readers[0].last > 1 and readers[1].last == 1)
    await server.drain(2.05)
    await stage.until(lambda: all(reader.ended for reader in readers))
    assert readers[0].frames == stage.frames(turn.fence.turn_id)
    assert types(readers[0].frames)[-1] == "turn.interrupted"
    assert readers[1].frames == stage.frames(waiting)
    assert stage.state(waiting) is TurnState.QUEUED


async def test_a_turn_handed_over_is_taken_up_by_the_other_replica_and_read_there(stage: Stage) -> None:
    toolbox = SlowToolbox()
    leaving = stage.server(Talker(rounds=1, go=True), A, toolbox=toolbox)
    staying = stage.server(Talker(rounds=1, go=True), B, toolbox=toolbox)
    async with running(leaving), running(staying):
        turn = await opened(stage, leaving)
        reader = Reader()
        reader.attach(leaving.log, turn.fence.turn_id)
        await stage.until(lambda: toolbox.calls == 1)
        draining = asyncio.ensure_future(leaving.drain(10.0))
        await settle()
        toolbox.go.set()
        await asyncio.wait_for(draining, 5.0)
        await reader.detach()
        reader.attach(staying.log, turn.fence.turn_id)
        await stage.until(lambda: reader.ended)
    assert reader.frames == stage.frames(turn.fence.turn_id)
    assert types(reader.frames).count("tool.started") == 1
    assert types(reader.frames)[-1] == "turn.completed"
    assert "turn.resumed" in types(reader.frames)
    assert toolbox.calls == 1


async def test_an_interrupt_that_came_before_the_start_ends_the_turn_without_a_model_call(
    stage: Stage, server: TurnServer, model: Talker
) -> None:
    turn = stage.new_turn(await stage.session(), owner=None)
    await stage.turns.open(turn)
    await stage.turns.request_cancel(stage.tenant.id, turn.id, InterruptReason.REQUESTED)
    await stage.until(lambda: stage.state(turn.id).terminal)
    assert reasons(stage, turn.id) == ["requested"]
    assert model.requests == []


@pytest.mark.parametrize("deaf", [False, True], ids=["announced", "polled"])
async def test_an_interrupt_reaches_the_owner_from_any_replica(stage: Stage, server: TurnServer, model: Talker, deaf: bool) -> None:
    stage.hub.deaf = deaf
    turn = await opened(stage, server)
    await stage.until(lambda: model.streams == 1)
    elsewhere = stage.server(Talker(), B)
    await stage.turns.request_cancel(stage.tenant.id, turn.fence.turn_id, InterruptReason.REQUESTED)
    assert not elsewhere.interrupt(turn.fence.turn_id, InterruptReason.REQUESTED)
    await stage.until(lambda: stage.state(turn.fence.turn_id).terminal)
    assert model.streams == 0
    assert reasons(stage, turn.fence.turn_id) == ["requested"]


async def test_a_turn_whose_client_left_ends_when_nobody_reads_it(stage: Stage, server: TurnServer) -> None:
    turn = await opened(stage, server)
    turn_id = turn.fence.turn_id
    reader = Reader()
    reader.attach(server.log, turn_id)
    await stage.until(lambda: reader.frames)
    server.abandon(stage.tenant.id, turn_id)
    for _ in range(10):
        await stage.clock.advance(0.3)
    assert stage.state(turn_id) is TurnState.RUNNING
    await reader.detach()
    await stage.until(lambda: stage.state(turn_id).terminal)
    assert reasons(stage, turn_id) == ["client_gone"]


async def test_a_queued_turn_whose_client_left_ends_without_a_start(stage: Stage, server: TurnServer) -> None:
    turn = await opened(stage, server)
    waiting = await queued(stage, server, session_of(turn))
    server.abandon(stage.tenant.id, waiting)
    await stage.until(lambda: stage.state(waiting).terminal)
    assert reasons(stage, waiting) == ["client_gone"]
    assert types(stage.frames(waiting))[-1] == "turn.interrupted"
    assert stage.state(turn.fence.turn_id) is TurnState.RUNNING


async def test_background_work_that_breaks_goes_on(stage: Stage, model: Talker) -> None:
    turns = stage.turns
    server = stage.server(model)
    async with running(server):
        faults = {"claim": 2, "take_over": 2, "cancel_requests": 2, "prune": 1}
        original = turns._enter

        async def faulty(name: str) -> None:
            await original(name)
            if faults.get(name, 0):
                faults[name] -= 1
                msg = "a fault"
                raise ValueError(msg)

        object.__setattr__(turns, "_enter", faulty)
        lost = await stage.opened(B)
        waiting = await queued(stage, server, await stage.session())
        await stage.until(lambda: stage.state(waiting) is TurnState.RUNNING)
        await stage.turns.request_cancel(stage.tenant.id, waiting, InterruptReason.REQUESTED)
        await stage.until(lambda: stage.state(waiting).terminal, step_s=0.2)
        await stage.until(lambda: stage.state(lost.fence.turn_id).terminal, step_s=0.5)
        await stage.until(lambda: faults["prune"] == 0, step_s=5.0)
        assert server.lease.valid


async def test_an_absent_database_interrupts_nothing(stage: Stage, server: TurnServer, model: Talker) -> None:
    turn = await opened(stage, server)
    reader = Reader()
    reader.attach(server.log, turn.fence.turn_id)
    await stage.until(lambda: reader.last > 1)
    stage.away(True)
    model.go.set()
    for _ in range(15):
        await stage.clock.advance(1.0)
    stage.away(False)
    await stage.until(lambda: reader.ended)
    assert types(reader.frames)[-1] == "turn.completed"
    assert reader.frames == stage.frames(turn.fence.turn_id)
    assert reader.seqs == list(range(1, len(reader.seqs) + 1))


async def test_stopping_interrupts_what_still_runs_and_gives_the_lease_back(stage: Stage, model: Talker) -> None:
    server = stage.server(model)
    await server.start()
    turn = await opened(stage, server)
    await stage.until(lambda: model.streams == 1)
    await server.stop()
    assert reasons(stage, turn.fence.turn_id) == ["shutdown"]
    assert not stage.replicas.is_alive(A)


async def test_a_turn_that_waited_starts_with_what_is_left_of_the_day_then(stage: Stage, server: TurnServer, model: Talker) -> None:
    stage.tenant = stage.tenants.add("acme", "agw_key", settings=TenantSettings(tokens_per_day=1_000))
    turn = await opened(stage, server)
    waiting = await queued(stage, server, session_of(turn))
    await stage.until(lambda: model.streams == 1)
    stage.turns.used[stage.tenant.id, stage.clock.now().date()] = Spent(1_000)
    asked = len(model.requests)
    model.go.set()
    await stage.until(lambda: stage.state(waiting) is TurnState.COMPLETED)
    assert reasons(stage, turn.fence.turn_id, waiting) == ["answer", "budget_exhausted"]
    assert len(model.requests) == asked
    assert stage.usage.calls["today"] == 1


async def played(settings: TenantSettings, rounds: int) -> tuple[int, ...]:
    """How often a turn with so many tool calls asked the stores of turns and of use."""
    stage = Stage()
    stage.tenant = stage.tenants.add("acme", "agw_key", settings=settings)
    async with running(stage.server(Talker(rounds=rounds, go=True))) as server:
        turn = await opened(stage, server)
        await stage.until(lambda: stage.state(turn.fence.turn_id) is TurnState.COMPLETED)
    return stage.turns.calls["open"], stage.turns.calls["commit"], stage.usage.calls["today"]


@pytest.mark.parametrize("rounds", [0, 3])
async def test_a_quota_of_a_day_costs_a_turn_that_runs_no_call_to_the_database(rounds: int) -> None:
    plain = await played(TenantSettings(), rounds)
    assert plain == (1, 1 + 2 * rounds, 0)
    assert await played(TenantSettings(tokens_per_day=1_000_000, cost_usd_per_day=100.0), rounds) == plain
