"""What a session sends to one route only ever grows at its end: across tools, interrupts, failures, fallbacks and restarts."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.simulator import raw_script
from app.simulator.server import Simulator
from tests.e2e import operator_tools
from tests.e2e.harness import KEY, Client, Replica, replica, tenant
from tests.e2e.operator_tools import MODULE, runs
from tests.e2e.prefix import extends, prefix_breaks, sent_prefix
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
    assert (await client.run(session, "is cut"))[-1].type == "turn.failed"
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
    await running.gateway.tenants.apply(tenant("acme", KEY, urls), generate_key=False)


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
            for faults in ((), ("status=404",), ("status=404",), (), ("status=404",), ()):
                provider.play(*faults)
                await client.run(session, '[[sim tool=lookup args={"q":"a"} tokens=3]]')
    assert len(backup.requests) == 3
    assert prefix_breaks(provider.requests) == []
    assert prefix_breaks(backup.requests) == []


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
