"""Turns without a session: what holds for every turn holds for them, with nothing but a row and events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.domain.errors import UnavailableError
from app.domain.messages import Message, Role, ToolSpec
from app.domain.openings import StatelessCall
from app.domain.turns import CompletedReason, InterruptReason, TurnRequest, TurnState
from app.turns.server import TurnServer
from app.turns.service import Started, Turns
from tests.fakes.clock import settle
from tests.unit.turns.stage import TTL_S, A, B, SlowToolbox, Stage, Talker, types

BUY = b'[{"name":"buy","description":"Buys.","parameters":{"type":"object"}}]'
HISTORY = (Message(role=Role.USER, content="hi"), Message(role=Role.ASSISTANT, content="yes?"), Message(role=Role.USER, content="buy"))


def call(tools: bytes = b"[]") -> StatelessCall:
    return StatelessCall(system_prompt="be kind", tools=tools, history=HISTORY)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@asynccontextmanager
async def running(server: TurnServer) -> AsyncIterator[TurnServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def start(stage: Stage, turns: Turns, *, tools: bytes = b"[]", key: str | None = None, client: tuple[ToolSpec, ...] = ()) -> Started:
    request = TurnRequest(client_tools=client)
    return await turns.start(stage.tenant, None, request, idempotency_key=key, fingerprint=b"same", stateless=call(tools))


async def test_a_plain_call_takes_two_statements(stage: Stage) -> None:
    model = Talker(go=True)
    async with running(stage.server(model)) as server:
        before = stage.turns.calls.copy()
        started = await start(stage, stage.service(server, model))
        await stage.until(lambda: stage.state(started.turn_id).terminal)
        made = stage.turns.calls - before
        assert {name: made[name] for name in ("open", "commit", "session_model", "get")} == {
            "open": 1,
            "commit": 1,
            "session_model": 0,
            "get": 0,
        }
    (request,) = model.requests
    assert (request.system, request.messages) == ("be kind", HISTORY)
    assert types(stage.frames(started.turn_id))[-2:] == ["message.completed", "turn.completed"]
    assert b'"session_id":null' in stage.frames(started.turn_id)[0]
    assert b'"session_id":null' in stage.frames(started.turn_id)[-1]


async def test_results_of_our_tools_are_shown_to_the_model_and_stored_nowhere_else(stage: Stage) -> None:
    model = Talker(rounds=2, go=True)
    async with running(stage.server(model)) as server:
        started = await start(stage, stage.service(server, model), tools=BUY)
        await stage.until(lambda: stage.state(started.turn_id).terminal)
    assert stage.state(started.turn_id) is TurnState.COMPLETED
    assert [message.role for message in model.requests[-1].messages[3:]] == [Role.ASSISTANT, Role.TOOL] * 2
    assert stage.turns.rows[started.turn_id].new.stateless == call(BUY)


async def test_calls_of_client_tools_end_the_turn_unanswered(stage: Stage) -> None:
    model = Talker(rounds=9)
    buy = ToolSpec(name="buy", description="Buys.", parameters={"type": "object"})
    async with running(stage.server(model)) as server:
        started = await start(stage, stage.service(server, model), client=(buy,))
        await stage.until(lambda: stage.state(started.turn_id).terminal)
    assert stage.turns.rows[started.turn_id].reason == CompletedReason.TOOL_CALLS
    assert types(stage.frames(started.turn_id))[2:] == ["message.completed", "turn.completed"]
    assert len(model.requests) == 1


async def test_a_full_replica_refuses_and_queues_nothing(stage: Stage) -> None:
    model = Talker()
    async with running(stage.server(model, limit=1)) as server:
        turns = stage.service(server, model)
        await start(stage, turns)
        with pytest.raises(UnavailableError) as raised:
            await start(stage, turns)
        assert raised.value.code == "at_capacity"
        assert len(stage.turns.rows) == 1


async def test_an_interrupt_ends_it_with_its_partial_text(stage: Stage) -> None:
    model = Talker()
    async with running(stage.server(model)) as server:
        turns = stage.service(server, model)
        started = await start(stage, turns)
        await stage.until(lambda: model.streams == 1)
        await settle(3)
        view = await turns.interrupt(stage.tenant.id, started.turn_id)
        assert (view.state, view.reason, view.session_id) == (TurnState.INTERRUPTED, "requested", None)
        assert b'"output":"Hel"' in (view.outcome or b"")
        assert model.streams == 0


async def test_a_repeated_key_finds_the_call_again(stage: Stage) -> None:
    model = Talker(go=True)
    async with running(stage.server(model)) as server:
        turns = stage.service(server, model)
        first = await start(stage, turns, key="/v1/x k")
        again = await start(stage, turns, key="/v1/x k")
        assert (again.turn_id, again.replayed) == (first.turn_id, True)


async def test_a_drain_hands_no_stateless_turn_over(stage: Stage) -> None:
    await stage.replicas.beat(B, TTL_S)
    toolbox = SlowToolbox()
    model = Talker(rounds=1)
    server = stage.server(model, toolbox=toolbox)
    await server.start()
    started = await start(stage, stage.service(server, model), tools=BUY)
    await stage.until(lambda: toolbox.calls == 1)
    draining = asyncio.ensure_future(server.drain(2.1))
    await settle(3)
    toolbox.go.set()
    await draining
    assert types(stage.frames(started.turn_id))[-1] == "turn.interrupted"
    assert "turn.queued" not in types(stage.frames(started.turn_id))
    assert stage.turns.rows[started.turn_id].reason == InterruptReason.SHUTDOWN
    await server.stop()


async def test_a_lost_one_is_ended_once_its_open_calls_answered(stage: Stage) -> None:
    toolbox = SlowToolbox()
    model = Talker(rounds=1)
    stopped = stage.server(model, B, toolbox=toolbox)
    await stopped.lease.beat(stopped.active.revalidate)
    started = await start(stage, stage.service(stopped, model), tools=BUY)
    await stage.until(lambda: toolbox.calls == 1)
    async with running(stage.server(Talker(), A, toolbox=toolbox)):
        await stage.until(lambda: stage.state(started.turn_id).terminal, step_s=0.5)
    kinds = types(stage.frames(started.turn_id))
    assert kinds[-2:] == ["tool.completed", "turn.interrupted"]
    assert "attempt.reset" not in kinds
    assert stage.turns.rows[started.turn_id].reason == InterruptReason.WORKER_LOST
    toolbox.go.set()
    await stopped.stop()
    assert types(stage.frames(started.turn_id)) == kinds, "the earlier owner wrote"


async def test_one_lost_amid_its_text_is_reset_and_ended(stage: Stage) -> None:
    model = Talker()
    stopped = stage.server(model, B)
    await stopped.lease.beat(stopped.active.revalidate)
    started = await start(stage, stage.service(stopped, model))
    await stage.until(lambda: model.streams == 1)
    await settle(3)
    await stopped.log.flush()
    async with running(stage.server(Talker(), A)):
        await stage.until(lambda: stage.state(started.turn_id).terminal, step_s=0.5)
    assert types(stage.frames(started.turn_id))[-3:] == ["message.delta", "attempt.reset", "turn.interrupted"]
    assert b'"output":"Hel"' in stage.frames(started.turn_id)[-1]
    await stopped.stop()
