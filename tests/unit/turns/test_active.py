"""Turns that run here: interrupts, drain, hand-over."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from app.domain.openings import OpenTurn
from app.domain.turns import InterruptReason, TurnState
from app.turns.active import HAND_OVER_S, Departure
from app.turns.server import TurnServer
from tests.fakes.clock import settle
from tests.unit.turns.stage import TTL_S, A, B, SlowToolbox, Stage, Talker, session_of, types

Starter = Callable[[], Awaitable[OpenTurn]]


@pytest.fixture
async def stage() -> Stage:
    return Stage()


@pytest.fixture
def model() -> Talker:
    return Talker()


@pytest.fixture
def toolbox() -> SlowToolbox:
    return SlowToolbox()


@pytest.fixture
async def server(stage: Stage, model: Talker, toolbox: SlowToolbox) -> AsyncIterator[TurnServer]:
    """Without its background work: only what the test asks for happens."""
    server = stage.server(model, toolbox=toolbox)
    await server.lease.beat(server.active.revalidate)
    yield server
    server.active.interrupt_all()
    await settle(50)


@pytest.fixture
def start(stage: Stage, server: TurnServer) -> Starter:
    async def opened() -> OpenTurn:
        opening = await server.open(stage.new_turn(await stage.session()), stage.tenant)
        assert isinstance(opening, OpenTurn)
        return opening

    return opened


async def under_way(stage: Stage, server: TurnServer, turn: OpenTurn) -> None:
    live = server.log.live(turn.fence.turn_id)
    assert live is not None
    await stage.until(lambda: live.last_seq > 1)


def end_of(stage: Stage, turn: OpenTurn) -> tuple[str, str | None]:
    row = stage.turns.rows[turn.fence.turn_id]
    assert types(stage.frames(turn.fence.turn_id))[-1] == f"turn.{row.state.value}"
    return row.state.value, row.reason


async def test_a_turn_runs_to_its_answer(stage: Stage, server: TurnServer, model: Talker, start: Starter) -> None:
    turn = await start()
    assert (server.active.count, server.active.free, server.active.ids()) == (1, 99, [turn.fence.turn_id])
    model.go.set()
    await stage.until(lambda: server.active.count == 0)
    assert end_of(stage, turn) == ("completed", "answer")
    assert server.log.live(turn.fence.turn_id) is None
    assert server.counters.ended["completed", "answer"] == 1


async def test_an_interrupt_closes_the_providers_stream_and_the_turn(
    stage: Stage, server: TurnServer, model: Talker, start: Starter
) -> None:
    turn = await start()
    await under_way(stage, server, turn)
    assert server.active.cancel(turn.fence.turn_id, InterruptReason.REQUESTED)
    assert await server.active.ended(turn.fence.turn_id, 1.0)
    assert model.streams == 0
    assert end_of(stage, turn) == ("interrupted", "requested")
    assert b'"output":"Hel"' in stage.frames(turn.fence.turn_id)[-1]


async def test_an_interrupt_in_the_moment_of_the_start_closes_the_turn(
    stage: Stage, server: TurnServer, model: Talker, start: Starter
) -> None:
    turn = await start()
    assert server.active.cancel(turn.fence.turn_id, InterruptReason.REQUESTED)
    await settle(50)
    assert end_of(stage, turn) == ("interrupted", "requested")
    assert (server.active.count, server.log.live(turn.fence.turn_id)) == (0, None)
    assert model.streams == 0


async def test_the_first_of_several_interrupts_counts_and_the_closing_is_not_torn(stage: Stage, server: TurnServer, start: Starter) -> None:
    turn = await start()
    await under_way(stage, server, turn)
    gate = stage.turns.held["commit"] = asyncio.Event()
    assert server.active.cancel(turn.fence.turn_id, InterruptReason.SUPERSEDED)
    for _ in range(3):
        assert server.active.cancel(turn.fence.turn_id, InterruptReason.REQUESTED)
        await settle()
    gate.set()
    await stage.until(lambda: server.active.count == 0)
    assert end_of(stage, turn) == ("interrupted", "superseded")
    assert not server.active.cancel(turn.fence.turn_id, InterruptReason.REQUESTED)


async def test_an_interrupt_during_the_last_commit_comes_too_late(stage: Stage, server: TurnServer, model: Talker, start: Starter) -> None:
    turn = await start()
    await under_way(stage, server, turn)
    gate = stage.turns.held["commit"] = asyncio.Event()
    model.go.set()
    await stage.until(lambda: stage.turns.calls["commit"] == 1)
    server.active.cancel(turn.fence.turn_id, InterruptReason.REQUESTED)
    await settle()
    gate.set()
    await stage.until(lambda: server.active.count == 0)
    assert end_of(stage, turn) == ("completed", "answer")
    assert types(stage.frames(turn.fence.turn_id)).count("turn.interrupted") == 0


async def test_an_interrupt_answers_the_open_calls(stage: Stage, toolbox: SlowToolbox) -> None:
    server = stage.server(Talker(rounds=1), toolbox=toolbox)
    await server.lease.beat(server.active.revalidate)
    opening = await server.open(stage.new_turn(await stage.session()), stage.tenant)
    assert isinstance(opening, OpenTurn)
    await stage.until(lambda: toolbox.calls == 1)
    server.active.cancel(opening.fence.turn_id, InterruptReason.REQUESTED)
    await stage.until(lambda: server.active.count == 0)
    kinds = types(stage.frames(opening.fence.turn_id))
    assert kinds.count("tool.started") == kinds.count("tool.completed") == 1
    roles = [row.message.role.value for row in await stage.messages.working_set(session_of(opening))]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_interrupts_from_elsewhere_are_found(stage: Stage, server: TurnServer, start: Starter) -> None:
    turn = await start()
    await under_way(stage, server, turn)
    polling = asyncio.ensure_future(server.active.run_cancel_polls(stage.clock, 0.01, asyncio.Event()))
    stage.turns.away = True
    await stage.until(lambda: stage.turns.calls["cancel_requests"] > 2)
    stage.turns.away = False
    await stage.turns.request_cancel(stage.tenant.id, turn.fence.turn_id, InterruptReason.CLIENT_GONE)
    await stage.until(lambda: server.active.count == 0)
    assert end_of(stage, turn) == ("interrupted", "client_gone")
    polling.cancel()


async def test_after_a_lapse_the_turns_that_others_took_are_dropped_and_the_rest_goes_on(
    stage: Stage, server: TurnServer, model: Talker, start: Starter
) -> None:
    kept, taken = await start(), await start()
    for turn in (kept, taken):
        await under_way(stage, server, turn)
    row = stage.turns.rows[taken.fence.turn_id]
    row.owner, row.generation = B, row.generation + 1
    await stage.clock.advance(TTL_S)
    await server.lease.beat(server.active.revalidate)
    await stage.until(lambda: server.active.count == 1)
    assert row.state is TurnState.RUNNING
    assert server.counters.lost == 1
    model.go.set()
    await stage.until(lambda: server.active.count == 0)
    assert end_of(stage, kept) == ("completed", "answer")
    assert len(stage.frames(taken.fence.turn_id)) == 1


async def test_a_drain_waits_for_turns_that_end_in_time(stage: Stage, server: TurnServer, model: Talker, start: Starter) -> None:
    turn = await start()
    draining = asyncio.ensure_future(server.active.drain(60.0))
    await settle()
    model.go.set()
    await asyncio.wait_for(draining, 5.0)
    assert end_of(stage, turn) == ("completed", "answer")


async def test_a_drain_closes_what_does_not_end_in_time_as_shutdown(stage: Stage, server: TurnServer, start: Starter) -> None:
    turns = [await start() for _ in range(3)]
    began = asyncio.get_running_loop().time()
    await server.active.drain(HAND_OVER_S + 0.1)
    assert asyncio.get_running_loop().time() - began < 1.0
    assert [end_of(stage, turn) for turn in turns] == [("interrupted", "shutdown")] * 3


async def test_a_drain_returns_also_when_a_turn_cannot_be_closed(stage: Stage, server: TurnServer, start: Starter) -> None:
    turn = await start()
    stage.turns.away = True
    began = asyncio.get_running_loop().time()
    await server.active.drain(0.0)
    assert asyncio.get_running_loop().time() - began < HAND_OVER_S + 0.5
    assert stage.state(turn.fence.turn_id) is TurnState.RUNNING
    stage.turns.away = False
    await stage.until(lambda: server.active.count == 0)


@pytest.mark.parametrize(("others", "state"), [(False, TurnState.COMPLETED), (True, TurnState.QUEUED)], ids=["alone", "not-alone"])
async def test_a_turn_at_a_boundary_is_handed_over_only_when_another_replica_lives(
    stage: Stage, toolbox: SlowToolbox, others: bool, state: TurnState
) -> None:
    server = stage.server(Talker(rounds=1, go=True), toolbox=toolbox)
    await server.lease.beat(server.active.revalidate)
    opening = await server.open(stage.new_turn(await stage.session()), stage.tenant)
    assert isinstance(opening, OpenTurn)
    await stage.until(lambda: toolbox.calls == 1)
    if others:
        await stage.replicas.beat(B, TTL_S)
    await server.departure.begin()
    toolbox.go.set()
    await stage.until(lambda: server.active.count == 0)
    assert stage.state(opening.fence.turn_id) is state


async def test_a_replica_that_cannot_ask_for_others_keeps_its_turns(stage: Stage) -> None:
    departure = Departure(A, stage.replicas)
    assert not departure.should_hand_over()
    await stage.replicas.beat(B, TTL_S)
    stage.replicas.away = True
    await departure.begin()
    assert departure.draining
    assert not departure.should_hand_over()
