"""An interrupt reaches everything within a second, wherever it comes in, and leaves a session that goes on."""

import asyncio
from typing import Any

import pytest

from app.simulator.script import RawEnd, RawPiece, RawScript
from app.simulator.server import Simulator
from tests.e2e.harness import Client, Frame, Replica, Stream, types
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import INTERRUPT_S, assert_closed, assert_goes_on, first_turn_id, now, of_type, opened, request_number
from tests.e2e.wire import chunk

NOTE = "interrupted"
ONLY_A_NEWLINE = RawScript(pieces=(RawPiece(data=chunk({"role": "assistant", "content": "\n"})),), end=RawEnd.HOLD)
HELLO_WOR = RawScript(pieces=(RawPiece(data=chunk({"role": "assistant", "content": "Hello wor"})),), end=RawEnd.HOLD)


def said_by_assistant(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


MOMENTS = {
    "before any delta": ("[[sim silent]]", None, "iteration.started", ""),
    "mid-text": ("count", HELLO_WOR, "message.delta", "Hello wor"),
    "mid-reasoning": ("[[sim reasoning=500 pace_ms=20 tokens=5]]", None, "reasoning.delta", ""),
    "only a newline": ("newline", ONLY_A_NEWLINE, "iteration.started", ""),
}


async def test_what_an_interrupted_turn_leaves_behind(client: Client, provider: Simulator) -> None:
    for name, (text, script, event, output) in MOMENTS.items():
        provider.clear()
        session = await client.session()
        if script is not None:
            provider.play(script)
        async with client.turn(session, text) as stream:
            turn_id = first_turn_id([await stream.until(event)])
            record = await request_number(provider, 1)
            since = now()
            answer = await client.http.delete(f"/turns/{turn_id}")
            frames = await stream.read_to_end()
        assert now() - since < INTERRUPT_S, name
        assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (200, "interrupted", "requested"), name
        await assert_closed(provider, record, since)
        assert types(frames)[-1] == "turn.interrupted", name
        assert len(of_type(frames, "turn.interrupted")) == 1, name
        assert frames[-1].data["output"] == answer.json()["output"] == output, name
        assert [(message["role"], message["content"]) for message in await client.messages(session)] == [("user", text)], name
        context = await client.messages(session, view="context")
        assert [message["role"] for message in context] == ["user", "assistant"], name
        assert NOTE in context[1]["content"], name
        assert not context[1].get("reasoning"), name
        sent = await assert_goes_on(client, provider, session)
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"], name
        assert said_by_assistant(sent) == [context[1]["content"]], name


async def test_a_session_may_keep_the_text_of_interrupted_turns(client: Client, provider: Simulator) -> None:
    for script, kept in ((HELLO_WOR, "Hello wor"), (ONLY_A_NEWLINE, None)):
        provider.clear()
        session = await client.session(keep_interrupted_text=True)
        provider.play(script)
        async with client.turn(session) as stream:
            turn_id = first_turn_id([await stream.until("message.delta" if kept else "iteration.started")])
            await request_number(provider, 1)
            await client.http.delete(f"/turns/{turn_id}")
        (said,) = said_by_assistant(await assert_goes_on(client, provider, session))
        assert "nterrupted" in said
        if kept is None:
            continue
        assert said.startswith(kept)
        assert [message["content"] for message in await client.messages(session)][:2] == ["hello", said]


async def test_a_tool_is_interrupted_and_its_call_is_answered(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        session = await client.session()
        calls = '[[sim calls=[{"name":"lookup","arguments":{"q":"a"}},{"name":"slow"},{"name":"slow"}]]]'
        async with client.turn(session, calls) as stream:
            turn_id = first_turn_id([await stream.until("tool.completed")])
            await runs.wait_begun("slow", 2)
            since = now()
            answer = await client.http.delete(f"/turns/{turn_id}")
            frames = await stream.read_to_end()
        assert now() - since < INTERRUPT_S
        assert answer.json()["reason"] == "requested"
        outputs = {frame.data["tool_call_id"]: frame.data for frame in of_type(frames, "tool.completed")}
        assert len(outputs) == len(of_type(frames, "tool.completed")) == 3
        assert sorted(data["is_error"] for data in outputs.values()) == [False, True, True]
        assert all("effect is unknown" in data["output"] for data in outputs.values() if data["is_error"])
        sent = await assert_goes_on(client, provider, session)
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool", "tool", "assistant", "user"]
        assert sent[3]["content"] == "found a"
        assert NOTE in sent[6]["content"]
        assert runs.ended["slow"] == 0


async def test_a_turn_that_waits_in_the_queue_never_runs(client: Client, second: Replica, provider: Simulator) -> None:
    session = await client.session()
    async with second.client() as elsewhere, client.turn(session, "[[sim tokens=500 pace_ms=20]]") as running:
        await running.until("message.delta")
        for canceller in (client, elsewhere):
            async with client.turn(session, "never said", on_busy="enqueue") as waiting:
                turn_id = first_turn_id([await waiting.until("turn.queued")])
                since = now()
                answer = await canceller.http.delete(f"/turns/{turn_id}")
                assert (answer.status_code, answer.json()["status"]) == (200, "interrupted")
                assert types(await waiting.read_to_end()) == ["turn.queued", "turn.interrupted"]
                assert now() - since < INTERRUPT_S
        await client.http.delete(f"/turns/{first_turn_id(running.frames)}")
        await running.read_to_end()
    assert len(provider.requests) == 1
    sent = await assert_goes_on(client, provider, session)
    assert "never said" not in str(sent)


BUSY = {"[[sim tokens=500 pace_ms=20]]": "message.delta", "[[sim silent]]": "iteration.started", "[[sim tool=slow]]": "tool.started"}


@pytest.mark.parametrize("listening", [True, False], ids=["with LISTEN", "polling alone"])
async def test_the_replica_that_does_not_own_the_turn_interrupts_it(database_url: str, provider: Simulator, *, listening: bool) -> None:
    settings = {} if listening else {"direct_database_url": "postgresql://nobody@127.0.0.1:1/none"}
    async with opened(database_url, provider, **settings) as (_, client), opened(database_url, provider, **settings) as (_, elsewhere):
        for text, event in BUSY.items():
            provider.clear()
            session = await client.session()
            async with client.turn(session, text) as own:
                turn_id = first_turn_id([await own.until(event)])
                record = await request_number(provider, 1)
                since, read = await interrupt_from_afar(own, elsewhere, turn_id)
            assert now() - since < INTERRUPT_S
            await provider.wait_for_end(record, INTERRUPT_S)
            assert [frame.raw for frame in read[0]] == [frame.raw for frame in read[1]]
            assert len(of_type(read[0], "turn.interrupted")) == 1
            await assert_goes_on(elsewhere, provider, session)


async def interrupt_from_afar(own: Stream, elsewhere: Client, turn_id: str) -> tuple[float, tuple[list[Frame], list[Frame]]]:
    """When it was asked for, and what the owner's reader and one of the other replica read."""
    async with elsewhere.events(turn_id) as remote:
        since = now()
        answer = await elsewhere.http.delete(f"/turns/{turn_id}")
        assert answer.status_code in {200, 202}
        return since, await asyncio.gather(own.read_to_end(), remote.read_to_end())


async def test_interrupting_is_idempotent_and_the_record_stays(client: Client, second: Replica) -> None:
    session = await client.session()
    async with client.turn(session, "[[sim silent]]") as stream, second.client() as elsewhere:
        turn_id = first_turn_id([await stream.until("iteration.started")])
        first = await client.http.post(f"/turns/{turn_id}/cancel")
        assert (first.status_code, first.json()["status"]) == (200, "interrupted")
        for caller in (client, elsewhere):
            again = [await caller.http.delete(f"/turns/{turn_id}"), await caller.http.post(f"/turns/{turn_id}/cancel")]
            assert [(answer.status_code, answer.json()) for answer in again] == [(200, first.json())] * 2
        assert len(of_type(await stream.read_to_end(), "turn.interrupted")) == 1
        assert await client.get(turn_id) == first.json()


async def test_interrupting_a_finished_turn_changes_nothing(client: Client) -> None:
    session = await client.session()
    frames = await client.run(session)
    before = await client.get(first_turn_id(frames))
    answer = await client.http.delete(f"/turns/{first_turn_id(frames)}")
    assert (answer.status_code, answer.json()) == (200, before)
    assert before["status"] == "completed"
    assert [frame.raw for frame in await client.replay(first_turn_id(frames))] == [frame.raw for frame in frames]


async def test_an_interrupt_that_races_with_start_or_end_leaves_one_terminal_event(
    client: Client, second: Replica, provider: Simulator
) -> None:
    session = await client.session()
    async with second.client() as elsewhere:
        for number in range(16):
            answer = await client.http.post(f"/sessions/{session}/turns", json={"input": "[[sim tokens=3]]", "background": True})
            turn_id = answer.json()["id"]
            await (client, elsewhere)[number % 2].http.delete(f"/turns/{turn_id}")
            frames = await client.replay(turn_id)
            ends = [frame.type for frame in frames if frame.type in {"turn.completed", "turn.interrupted", "turn.failed"}]
            assert ends in (["turn.completed"], ["turn.interrupted"])
            assert f"turn.{(await client.get(turn_id))['status']}" == ends[0]
    assert [request.problems for request in provider.requests] == [()] * len(provider.requests)
    await assert_goes_on(client, provider, session)
