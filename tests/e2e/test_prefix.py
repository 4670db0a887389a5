"""What a session sends to one route only ever grows at its end: across tools, interrupts, failures, fallbacks and restarts."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.simulator import raw_script
from app.simulator.server import Simulator
from tests.e2e import operator_tools
from tests.e2e.harness import KEY, Client, Replica, replica, tenant
from tests.e2e.operator_tools import MODULE, runs
from tests.e2e.prefix import extends, prefix_breaks, sent_prefix
from tests.e2e.processes import FAST_LEASE, gateway_process
from tests.e2e.wire import DONE, call, calls, chunk

IMPORTED: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a clerk."},
    {"role": "assistant", "content": "Welcome."},
    {"role": "user", "content": "first"},
    {"role": "user", "content": [{"type": "text", "text": "and second"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "gone tool", "arguments": '{ "b" : 1, "a": [1.50] }'}},
            {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": ""},
    {"role": "tool", "tool_call_id": "call_9", "content": "an answer to nothing"},
    {"role": "user", "content": "never answered"},
]


async def interrupted(client: Client, session: str, text: str, at: str) -> None:
    """A turn that is interrupted once it has shown an event of type ``at``."""
    async with client.turn(session, text) as stream:
        frame = await stream.until(at)
        if at == "tool.completed":
            await runs.wait_begun("slow")
        await client.http.delete(f"/turns/{frame.data['turn_id']}")
        assert (await stream.read_to_end())[-1].type == "turn.interrupted"


async def a_life(client: Client, provider: Simulator, session: str) -> None:
    """Turns of every kind."""
    await client.run(session, "[[sim tokens=5]]")
    await client.run(session, '[[sim tool=lookup args={"q":"$round $call"} parallel=3 rounds=2 preamble="Let me see." text="So."]]')
    await client.run(
        session, [{"type": "text", "text": "parts é \x00 🦀"}, {"type": "text", "text": '[[sim text="  padded\\n" reasoning=3]]'}]
    )
    await interrupted(client, session, "[[sim tokens=400 pace_ms=20]]", "message.delta")
    await interrupted(client, session, '[[sim calls=[{"name":"lookup","arguments":{"q":"x"}},{"name":"slow"}]]]', "tool.completed")
    provider.play("status=400 error_message=refused")
    assert (await client.run(session, "fails"))[-1].type == "turn.failed"
    provider.play("text=half cut_after=0", "finish=length tokens=9")
    assert (await client.run(session, "is cut"))[-1].type == "turn.completed"  # it was continued
    odd = call('bad" name', '{"z": 1,   "a": "\\u00e9"}', index=0, id="call_0") | {"extra": 1}
    again = call("lookup", '{"q":', index=0, id="call_0")
    provider.play(
        raw_script(chunk({"content": "<think>hm</think>Look: "}) + calls(odd) + chunk(finish="stop") + DONE),
        raw_script(calls(again) + chunk(finish="tool_calls") + DONE),
    )
    await client.run(session, "odd calls")
    await client.run(session, "[[sim tool=now rounds=9]]", max_iterations=2)


@pytest.fixture
async def backup() -> AsyncIterator[Simulator]:
    simulator = Simulator(strict=True, picky=True)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


@pytest.fixture(autouse=True)
def _clean_tools() -> None:
    operator_tools.reset()


async def prepared(running: Replica, *urls: str) -> None:
    await running.gateway.tenants.apply(tenant("acme", KEY, urls, max_attempts=1), generate_key=False)


@pytest.mark.parametrize("history", [None, IMPORTED], ids=["new session", "imported history"])
@pytest.mark.parametrize("keep_text", [False, True], ids=["drop interrupted text", "keep interrupted text"])
async def test_every_request_of_a_session_extends_the_one_before(
    database_url: str, provider: Simulator, history: list[dict[str, Any]] | None, keep_text: bool
) -> None:
    async with replica(database_url, tool_modules=MODULE) as first:
        await prepared(first, provider.base_url, provider.base_url)
        async with first.client() as client:
            session = await client.session(messages=history, keep_interrupted_text=keep_text)
            await a_life(client, provider, session)
    async with replica(database_url, tool_modules=MODULE) as restarted, restarted.client() as client:
        await client.run(session, "[[sim tokens=5]]")
        await a_life(client, provider, session)
    requests = list(provider.requests)
    assert len(requests) > 30
    assert [request.problems for request in requests if request.problems] == []
    assert prefix_breaks(requests) == []


async def test_a_fallback_leaves_the_prefix_of_both_routes_alone(database_url: str, provider: Simulator, backup: Simulator) -> None:
    async with replica(database_url, tool_modules=MODULE) as running:
        await prepared(running, provider.base_url, backup.base_url)
        async with running.client() as client:
            session = await client.session()
            for faults in ((), ("empty",), ("empty",), (), ("empty",), ()):  # a fault behind which the first route is asked again at once
                provider.play(*faults)
                await client.run(session, '[[sim tool=lookup args={"q":"a"} tokens=3]]')
    assert len(backup.requests) == 3
    assert prefix_breaks(provider.requests) == []
    assert prefix_breaks(backup.requests) == []


async def plain(client: Client, provider: Simulator, session: str) -> None:
    await client.run(session, "[[sim tokens=3]]")


async def tools(client: Client, provider: Simulator, session: str) -> None:
    await client.run(
        session, '[[sim calls=[{"name":"lookup","arguments":{"q":"a"}},{"name":"boom"},{"name":"nothing"}] rounds=2 preamble="So?"]]'
    )


async def stopped_in_text(client: Client, provider: Simulator, session: str) -> None:
    await interrupted(client, session, "[[sim tokens=400 pace_ms=20]]", "message.delta")


async def stopped_in_silence(client: Client, provider: Simulator, session: str) -> None:
    await interrupted(client, session, "[[sim tokens=1 first_ms=20000]]", "turn.started")


async def stopped_in_a_tool(client: Client, provider: Simulator, session: str) -> None:
    operator_tools.reset()
    await interrupted(
        client, session, '[[sim calls=[{"name":"slow"},{"name":"lookup","arguments":{"q":"x"}}] preamble="So?"]]', "tool.completed"
    )


async def refused(client: Client, provider: Simulator, session: str) -> None:
    provider.play("status=400 error_message=refused")
    await client.run(session, "is refused")


async def broken(client: Client, provider: Simulator, session: str) -> None:
    provider.play("tokens=9 drop_after=3", "tokens=9 error_after=3")
    await client.run(session, "breaks on both routes")


async def saved_by_the_second(client: Client, provider: Simulator, session: str) -> None:
    provider.play("tool=now", "tokens=9 cut_after=3")
    await client.run(session, "[[sim tokens=2]]")


async def cut(client: Client, provider: Simulator, session: str) -> None:
    provider.play("tool=lookup finish=length")
    await client.run(session, "is cut")


async def limited(client: Client, provider: Simulator, session: str) -> None:
    await client.run(session, "[[sim tool=now rounds=9]]", max_iterations=1)


KINDS = (plain, tools, stopped_in_text, stopped_in_silence, stopped_in_a_tool, refused, broken, saved_by_the_second, cut, limited)


@pytest.mark.parametrize("seed", range(3))
async def test_turns_of_every_kind_may_follow_one_another(database_url: str, provider: Simulator, seed: int) -> None:
    order = random.Random(seed).sample(KINDS * 2, len(KINDS) * 2)
    async with replica(database_url, tool_modules=MODULE) as running:
        await prepared(running, provider.base_url, provider.base_url)
        async with running.client() as client:
            session = await client.session()
            for kind in order:
                await kind(client, provider, session)
            frames = await client.run(session, '[[sim text="Still here."]]')
            roles = [message["role"] for message in await client.messages(session, view="context")]
    assert frames[-1].data["output"] == "Still here.", [kind.__name__ for kind in order]
    assert roles[-2:] == ["user", "assistant"]
    assert [request.problems for request in provider.requests if request.problems] == []
    assert prefix_breaks(provider.requests) == []


async def handing_over(leaving: Replica) -> None:
    """Return once the replica puts turns back into the queue."""
    async with asyncio.timeout(5):
        while not leaving.gateway.server.departure.should_hand_over():
            await asyncio.sleep(0.01)


async def test_a_turn_that_is_handed_over_goes_on_with_the_prefix_of_its_first_replica(database_url: str, provider: Simulator) -> None:
    async with replica(database_url, tool_modules=MODULE) as first, replica(database_url, tool_modules=MODULE) as second:
        await prepared(first, provider.base_url)
        async with first.client() as client, second.client() as other:
            session = await client.session()
            await client.run(session, "[[sim tokens=3]]")
            asked = '[{"name":"lookup","arguments":{"q":"a"}},{"name":"meet","arguments":{"party":"x","size":2}}]'
            async with client.turn(session, f"[[sim calls={asked} rounds=2]]") as stream:
                await runs.wait_begun("meet x")
                drain = asyncio.create_task(first.gateway.server.drain(5.0))
                await handing_over(first)
                runs.begin("meet x")
                turn_id = stream.frames[0].data["turn_id"] if stream.frames else (await stream.until("turn.started")).data["turn_id"]
                frames = await other.replay(turn_id)
            await drain
            await other.run(session, "[[sim tokens=3]]")
    assert [frame.type for frame in frames].count("turn.resumed") == 1
    assert frames[-1].type == "turn.completed"
    assert (runs.begun["lookup"], runs.begun["meet x"]) == (2, 3), "one of the meetings is the test's own"
    assert [request.problems for request in provider.requests if request.problems] == []
    assert len(provider.requests) == 5
    assert prefix_breaks(provider.requests) == []


KILLED_IN = {
    "text": ("[[sim tokens=400 pace_ms=20]]", "message.delta"),
    "tools": ('[[sim calls=[{"name":"lookup","arguments":{"q":"a"}},{"name":"slow"}]]]', "tool.completed"),
    "text behind tools": ('[[sim tool=lookup args={"q":"a"} tokens=400 pace_ms=20]]', "message.delta"),
}


async def test_what_a_killed_process_leaves_behind_is_extended_by_the_next_one(
    database_url: str, provider: Simulator, tmp_path: Path
) -> None:
    async with (
        replica(database_url, tool_modules=MODULE, lease_ttl_s=2, lease_beat_s=0.4) as survivor,
        gateway_process(database_url, tmp_path, FAST_LEASE) as victim,
        survivor.client() as client,
        httpx.AsyncClient(base_url=victim.url, headers={"Authorization": f"Bearer {KEY}"}) as doomed,
        AsyncExitStack() as streams,
    ):
        await prepared(survivor, provider.base_url)
        open_turns = []
        for name, (text, seen) in KILLED_IN.items():
            session = await client.session()
            await client.run(session, name)
            answer = await doomed.post(f"/sessions/{session}/turns", json={"input": text, "background": True})
            stream = await streams.enter_async_context(client.events(answer.json()["id"]))
            await stream.until(seen)
            open_turns.append((session, stream))
        await victim.kill()
        for session, stream in open_turns:
            end = (await stream.read_to_end())[-1]
            assert (end.type, end.data["reason"]) == ("turn.interrupted", "worker_lost")
            await client.run(session, '[[sim tool=lookup args={"q":"b"} text="Still here."]]')
    assert [request.problems for request in provider.requests if request.problems] == []
    for name in KILLED_IN:
        requests = [request for request in provider.requests if request.body["messages"][1]["content"] == name]
        assert len(requests) == 4 + (name == "text behind tools")
        assert prefix_breaks(requests) == []


async def test_two_sessions_with_the_same_start_send_the_same_bytes(database_url: str, provider: Simulator) -> None:
    sent = []
    for _ in range(2):
        provider.clear()
        async with replica(database_url, tool_modules=MODULE) as running:
            await prepared(running, provider.base_url)
            async with running.client() as client:
                session = await client.session(messages=IMPORTED)
                await client.run(session, '[[sim calls=[{"name":"lookup","arguments":{"q":"a"},"id":"c0"}] text="Same."]]')
                await client.run(session, "and on")
        sent.append([request.raw for request in provider.requests])
    assert sent[0] == sent[1]


async def test_tools_are_sent_sorted_and_without_blanks(database_url: str, provider: Simulator) -> None:
    async with replica(database_url, tool_modules=MODULE) as running:
        await prepared(running, provider.base_url)
        async with running.client() as client:
            await client.run(await client.session())
    (request,) = provider.requests
    tools = request.body["tools"]
    names = [tool["function"]["name"] for tool in tools]
    assert names == sorted(names)
    assert {"get_time", "lookup", "todo"} <= set(names)
    compact = json.dumps(tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert sent_prefix(request.raw).startswith(compact)


def test_the_check_itself_sees_every_kind_of_change() -> None:
    def body(*texts: str, tools: str = "[1]") -> bytes:
        messages = ",".join(f'{{"content":"{text}"}}' for text in texts)
        return f'{{"model":"m","tools":{tools},"messages":[{messages}]}}'.encode()

    assert extends(body("a", "b"), body("a"))
    assert extends(body("a"), body("a"))
    assert not extends(body("a"), body("a", "b"))
    assert not extends(body("x", "b"), body("a"))
    assert not extends(body("a", "b", tools="[1,2]"), body("a"))
    assert not extends(body("b", "a"), body("a"))
    joined = body("a").replace(b'{"content":"a"}', b'{"content":[{"text":"a","cache_control":{"type":"ephemeral"}}]}')
    grown = body("a").replace(b'{"content":"a"}', b'{"content":[{"text":"a"},{"text":"b"}]}')
    assert extends(grown, joined, joins=True)
    assert not extends(grown, joined)
    assert not extends(joined, grown, joins=True)
    assert not extends(grown.replace(b'"a"', b'"x"'), joined, joins=True)
