"""Tool calls that fail, are interrupted, swallow their interrupt or do not exist; the session stays usable throughout."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from app.domain.tools import INTERRUPTED_OUTPUT
from app.simulator import raw_script
from app.simulator.server import Simulator
from tests.e2e.harness import Client, Frame, text_of
from tests.e2e.operator_tools import runs
from tests.e2e.stage import Stage
from tests.e2e.wire import DONE, call, calls, chunk

AT_ONCE_S = 1.0
"""What an interrupt may take when tools obey."""
CLEANUP_S = 0.5
"""What calls get on top to clean up."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def provider(stage: Stage) -> Simulator:
    return stage.provider


@pytest_asyncio.fixture(loop_scope="module")
async def client(stage: Stage) -> AsyncIterator[Client]:
    async with stage.client() as client:
        yield client


async def next_turn_works(client: Client, session: str, provider: Simulator) -> None:
    frames = await client.run(session, '[[sim text="Still here."]]')
    assert frames[-1].type == "turn.completed"
    assert text_of(frames) == "Still here."
    assert [request.problems for request in provider.requests if request.problems] == []


def asks_for(*wanted: tuple[str, dict[str, Any]]) -> str:
    """A user's message that makes the simulator call these tools, with ids c0, c1, …"""
    listed = [{"name": name, "arguments": arguments, "id": f"c{index}"} for index, (name, arguments) in enumerate(wanted)]
    return f'[[sim calls={json.dumps(listed)} text="Done."]]'


def results_sent(provider: Simulator, number: int) -> list[tuple[str, str]]:
    """The results at the end of a request, in the order in which they were sent."""
    messages = provider.requests[number].body["messages"]
    last = max(place for place, message in enumerate(messages) if message.get("tool_calls"))
    return [(message["tool_call_id"], message["content"]) for message in messages[last + 1 :] if message["role"] == "tool"]


def outputs(frames: list[Frame]) -> dict[str, str]:
    return {frame.data["tool_call_id"]: frame.data["output"] for frame in frames if frame.type == "tool.completed"}


async def delete(client: Client, turn_id: str) -> float:
    """Interrupt a turn; returns when that was, on the loop's clock."""
    response = await client.http.delete(f"/turns/{turn_id}")
    assert response.status_code in (200, 202), response.text
    return asyncio.get_running_loop().time()


async def test_calls_run_at_once_and_are_answered_in_call_order(client: Client, provider: Simulator) -> None:
    session = await client.session()
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("slow", {"seconds": 0.3}),
        ("meet", {"party": "a", "size": 2}),
        ("meet", {"party": "a", "size": 2}),
        ("lookup", {"q": "z"}),
    ]
    frames = await client.run(session, asks_for(*wanted))
    completed = [frame.data["tool_call_id"] for frame in frames if frame.type == "tool.completed"]
    assert completed[-1] == "c0", "the slowest result is shown last, when it is there"
    assert results_sent(provider, 1) == [("c0", "slept 0.3 s"), ("c1", "met a"), ("c2", "met a"), ("c3", "found z")]
    assert [message.get("tool_call_id") for message in await client.messages(session)][2:6] == ["c0", "c1", "c2", "c3"]
    await next_turn_works(client, session, provider)


FAILURES = {
    "runtime": "RuntimeError",
    "timeout": "TimeoutError",
    "group": "ExceptionGroup",
    "exit": "SystemExit",
    "keyboard": "KeyboardInterrupt",
}


@pytest.mark.parametrize(("kind", "told"), FAILURES.items(), ids=FAILURES)
async def test_one_failing_call_costs_its_siblings_nothing(client: Client, provider: Simulator, kind: str, told: str) -> None:
    session = await client.session()
    frames = await client.run(session, asks_for(("lookup", {"q": "a"}), ("boom", {"kind": kind}), ("slow", {"seconds": 0.2})))
    sent = results_sent(provider, 1)
    assert [call_id for call_id, _ in sent] == ["c0", "c1", "c2"]
    assert sent[0][1] == "found a"
    assert told in sent[1][1]
    assert sent[2][1] == "slept 0.2 s"
    errors = {frame.data["tool_call_id"]: frame.data["is_error"] for frame in frames if frame.type == "tool.completed"}
    assert errors == {"c0": False, "c1": True, "c2": False}
    assert frames[-1].data["output"] == "Done."
    await next_turn_works(client, session, provider)


async def test_a_result_that_is_no_json_is_described(client: Client, provider: Simulator) -> None:
    session = await client.session()
    frames = await client.run(session, asks_for(("boom", {"kind": "not_json"}), ("lookup", {"q": "a"})))
    sent = results_sent(provider, 1)
    assert "object" in sent[0][1]
    assert "0x" not in sent[0][1], "an address changes from run to run"
    assert sent[1] == ("c1", "found a")
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client, session, provider)


async def test_an_interrupt_keeps_finished_results_and_says_unknown_of_the_rest(client: Client, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, asks_for(("lookup", {"q": "a"}), ("slow", {}), ("slow", {}))) as stream:
        await stream.until("tool.completed")
        await runs.wait_begun("slow", 2)
        since = await delete(client, stream.frames[0].data["turn_id"])
        frames = await stream.read_to_end()
    assert asyncio.get_running_loop().time() - since < AT_ONCE_S
    assert frames[-1].type == "turn.interrupted"
    assert frames[-1].data["reason"] == "requested"
    assert outputs(frames) == {"c0": "found a", "c1": INTERRUPTED_OUTPUT, "c2": INTERRUPTED_OUTPUT}
    stored = [message for message in await client.messages(session) if message["role"] == "tool"]
    assert [(message["tool_call_id"], message["content"]) for message in stored] == list(outputs(frames).items())
    assert [message.get("is_error", False) for message in stored] == [False, True, True]
    assert len(provider.requests) == 1
    await next_turn_works(client, session, provider)
    assert results_sent(provider, 1) == [("c0", "found a"), ("c1", INTERRUPTED_OUTPUT), ("c2", INTERRUPTED_OUTPUT)]
    assert runs.ended["slow"] == 0


@pytest.mark.parametrize("name", ["catch_exception", "swallow_cancel", "ignore_cancel"])
async def test_a_tool_that_swallows_its_cancellation_does_not_keep_the_turn_alive(client: Client, provider: Simulator, name: str) -> None:
    session = await client.session()
    async with client.turn(session, asks_for((name, {}), ("slow", {}))) as stream:
        await stream.until("tool.started")
        await runs.wait_begun(name)
        await runs.wait_begun("slow")
        since = await delete(client, stream.frames[0].data["turn_id"])
        frames = await stream.read_to_end()
    assert asyncio.get_running_loop().time() - since < AT_ONCE_S + CLEANUP_S
    assert frames[-1].type == "turn.interrupted"
    assert outputs(frames) == {"c0": INTERRUPTED_OUTPUT, "c1": INTERRUPTED_OUTPUT}
    if name == "ignore_cancel":
        runs.begin("let go")
        await runs.wait_ended(name)
    assert len(provider.requests) == 1, "no model call follows an interrupt, whatever the tool returned"
    await next_turn_works(client, session, provider)
    assert (await client.get(frames[-1].data["turn_id"]))["status"] == "interrupted"


async def test_a_cancellation_out_of_the_tool_itself_is_a_failed_call(client: Client, provider: Simulator) -> None:
    session = await client.session()
    frames = await client.run(session, asks_for(("cancel_itself", {}), ("lookup", {"q": "a"}), ("slow", {"seconds": 0.2})))
    sent = results_sent(provider, 1)
    assert "CancelledError" in sent[0][1]
    assert sent[1:] == [("c1", "found a"), ("c2", "slept 0.2 s")]
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client, session, provider)


BAD_NAMES = {
    "attributes": 'view_file" path="/etc',
    "dots": "browser.tabs.open",
    "too long": "x" * 457,
    "unknown": "no_such_tool",
    "not ascii": "поиск",
    "with NUL": "a\x00b",
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_an_invented_tool_name_is_answered_and_replayed_in_a_legal_form(client: Client, provider: Simulator, name: str) -> None:
    provider.play(raw_script(calls(call(name, "{}", index=0, id="c0")) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    completed = next(frame for frame in frames if frame.type == "tool.completed")
    assert completed.data["is_error"]
    assert "lookup" in completed.data["output"], "it names the tools that there are"
    replayed = provider.requests[1].body["messages"][-2]["tool_calls"][0]["function"]["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", replayed)
    stored = [message for message in await client.messages(session) if message.get("tool_calls")]
    assert stored[0]["tool_calls"][0]["function"]["name"] == name.replace("\x00", "\ufffd")
    await next_turn_works(client, session, provider)


async def test_a_call_without_a_name_is_answered_as_well(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(calls(call("", '{"q":"a"}', index=0, id="c0")) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    assert "lookup" in outputs(frames)["c0"]
    await next_turn_works(client, session, provider)


BAD_ARGUMENTS = {
    "broken": '{"q": "a',
    "a list": '["a"]',
    "a number": "7",
    "two objects": '{"q":"a"}{"q":"b"}',
    "missing field": "{}",
    "wrong type": '{"q": 7}',
}


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
async def test_unusable_arguments_are_a_result_that_says_so(client: Client, provider: Simulator, arguments: str) -> None:
    provider.play(raw_script(calls(call("lookup", arguments, index=0, id="c0")) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert runs.begun["lookup"] == 0
    completed = next(frame for frame in frames if frame.type == "tool.completed")
    assert completed.data["is_error"]
    assert "arguments" in completed.data["output"]
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client, session, provider)


async def test_the_iteration_limit_ends_a_turn_that_would_call_tools_for_ever(client: Client, provider: Simulator) -> None:
    session = await client.session()
    frames = await client.run(session, "[[sim tool=now rounds=50]]", max_iterations=3)
    assert runs.begun["now"] == 3
    assert len(provider.requests) == 4  # the last one asks for a closing word
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["reason"] == "budget_exhausted"
    assert frames[-1].data["output"]
    assert frames[-1].data["iterations"] == 3
    await next_turn_works(client, session, provider)
