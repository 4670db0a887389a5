"""Tool calls that fail, come back too large, or name no tool: in every API mode the model is told, and the session goes on."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from app.domain.guardrails import GuardrailThresholds
from app.domain.model import ApiMode
from app.simulator import raw_script
from app.simulator.server import Simulator
from app.tools.results import MAX_OUTPUT, NO_OUTPUT
from tests.e2e import large_tools, operator_tools, watching_tools
from tests.e2e.chains import every_mode, goes_on, problems
from tests.e2e.compacting import SUMMARY, compacting, compactions, says
from tests.e2e.harness import Client, Frame, replica
from tests.e2e.scenes import of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import steady
from tests.e2e.wire_modes import WRITERS, Call, calls_sent, results_sent
from tests.postgres import PostgresServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULES = f"{operator_tools.MODULE},{watching_tools.MODULE},{large_tools.MODULE}"
STOPS = GuardrailThresholds(hard_stop=True)
WIDE = {"context_window": 1_000_000}
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tools_stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    """A gateway with all tools of the tests."""
    async with AsyncExitStack() as stack:
        provider, backup = Simulator(strict=True, picky=True), Simulator(strict=True, picky=True)
        for simulator in (provider, backup):
            await simulator.start()
            stack.push_async_callback(simulator.stop)
        url = await stack.enter_async_context(postgres.database())
        yield Stage(await stack.enter_async_context(replica(url, tool_modules=MODULES)), provider, backup)


@pytest.fixture
def tools(tools_stage: Stage) -> Stage:
    tools_stage.reset()
    watching_tools.reset()
    large_tools.reset()
    return tools_stage


def asks_for(*wanted: tuple[str, dict[str, Any]]) -> str:
    """A user's message that makes the simulator call these tools at once."""
    listed = [{"name": name, "arguments": arguments, "id": f"call_{index}"} for index, (name, arguments) in enumerate(wanted)]
    return f'Work. [[sim calls={json.dumps(listed)} text="Done."]]'


def told(frames: list[Frame]) -> dict[str, str]:
    """What the calls of a turn gave, by id."""
    return {frame.data["tool_call_id"]: frame.data["output"] for frame in of_type(frames, "tool.completed")}


async def stored_results(client: Client, session: str) -> list[str]:
    return [message["content"] for message in await client.messages(session) if message["role"] == "tool"]


FAILURES = {
    "runtime": "RuntimeError",
    "timeout": "TimeoutError",
    "group": "ExceptionGroup",
    "exit": "SystemExit",
    "keyboard": "KeyboardInterrupt",
    "not_json": "object",
}


@every_mode
@pytest.mark.parametrize(("kind", "name"), FAILURES.items(), ids=FAILURES)
async def test_a_failing_call_beside_others_costs_them_nothing(tools: Stage, mode: ApiMode, kind: str, name: str) -> None:
    """C080. The two calls that meet prove that all run at the same time."""
    met: tuple[str, dict[str, Any]] = ("meet", {"party": kind, "size": 2})
    async with steady(tools, mode) as client:
        session = await client.session()
        frames = await client.run(session, asks_for(met, ("boom", {"kind": kind}), met, ("lookup", {"q": "a"})))
        assert (frames[-1].type, frames[-1].data["output"]) == ("turn.completed", "Done.")
        _, sent = tools.provider.requests
        results = results_sent(mode, sent.body)
        assert [call_id for call_id, _ in results] == ["call_0", "call_1", "call_2", "call_3"]
        assert [text for place, (_, text) in enumerate(results) if place != 1] == [f"met {kind}", f"met {kind}", "found a"]
        assert name in results[1][1]
        assert dict(results) == told(frames)
        failed = [frame.data["tool_call_id"] for frame in of_type(frames, "tool.completed") if frame.data["is_error"]]
        assert failed == ([] if kind == "not_json" else ["call_1"])
        await goes_on(client, session, tools.provider)


KINDS = ("one line", "three bytes", "list", "image", "base64", "log", "object", "generator", "long error", "nothing")


@every_mode
async def test_results_that_are_too_long_or_no_text_become_text_that_fits(tools: Stage, mode: ApiMode) -> None:
    """C081."""
    async with steady(tools, mode, **WIDE) as client:
        session = await client.session(toolsets=["operator"])
        frames = await client.run(session, asks_for(*(("produce", {"kind": kind}) for kind in KINDS)))
        assert frames[-1].data.get("output") == "Done.", frames[-1].data
        shown = dict(zip(KINDS, (text for _, text in results_sent(mode, tools.provider.requests[1].body)), strict=True))
        stored = dict(zip(KINDS, await stored_results(client, session), strict=True))
        await goes_on(client, session, tools.provider)
    assert all(len(text) <= MAX_OUTPUT for text in stored.values())
    assert all(len(text.encode()) <= MAX_OUTPUT for text in shown.values())
    for kind in ("one line", "three bytes"):
        assert shown[kind].startswith("BEGIN")
        assert shown[kind].endswith("END")
        assert "\ufffd" not in shown[kind], "no character is cut in two"
    assert "left out here" in shown["three bytes"]
    assert "characters are left out here" in shown["one line"]
    assert shown["list"].startswith('[{"name":"name 0","row":0}')
    assert shown["list"].endswith('"row":29999}]')
    assert shown["image"] == f"[binary data of {len(large_tools.PNG):,} bytes, not shown; a tool returns text as str]"
    assert "characters are left out here" in shown["base64"]
    assert shown["log"].endswith("ERROR: the disk is full"), "the end is where the error is"
    assert json.loads(shown["object"]) == {"a": "é", "b": [1, None]}
    assert "generator" in shown["generator"]
    assert "RuntimeError" in shown["long error"]
    assert shown["nothing"] == NO_OUTPUT
    errors = [KINDS[int(frame.data["tool_call_id"][5:])] for frame in of_type(frames, "tool.completed") if frame.data["is_error"]]
    assert sorted(errors) == ["generator", "long error"]


@every_mode
async def test_cut_results_that_differ_in_what_was_cut_are_no_loop(tools: Stage, mode: ApiMode) -> None:
    async with compacting(tools, mode, window=400_000, guardrails=STOPS) as client:
        session = await client.session(toolsets=["operator"])
        tools.provider.play(*['tool=survey args={"path":"a"}'] * 7, 'text="Seen."')
        frames = await client.run(session, "Look.")
        assert frames[-1].data.get("output") == "Seen.", frames[-1].data
        assert of_type(frames, "guardrail.warning") == []
        assert large_tools.looks["survey"] == 7
        results = await stored_results(client, session)
    assert len(set(results)) == 1, "the model is shown the same seven times"


NAMES = {
    "none": "",
    "attributes": 'view_file" path="/etc/passwd',
    "dots": "browser.tabs.open",
    "too long": "n" * 457,
    "unknown": "no_such_tool",
    "other letters": "файл",
    "blank": " ",
}


@every_mode
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_a_name_that_no_tool_has_is_told_and_sent_back_in_a_legal_form(tools: Stage, mode: ApiMode, name: str) -> None:
    """C082."""
    writer = WRITERS[mode]
    reply = writer.start() + writer.calls(Call(name, '{"q":"a"}', "call_0"), Call("lookup", '{"q":"b"}', "call_1", 1)) + writer.end()
    tools.provider.play(raw_script(reply), 'text="Done."')
    async with steady(tools, mode) as client:
        session = await client.session()
        frames = await client.run(session, "Work.")
        assert (frames[-1].type, frames[-1].data["output"]) == ("turn.completed", "Done."), frames[-1].data
        assert "lookup" in told(frames)["call_0"], "it names the tools that there are"
        assert told(frames)["call_1"] == "found b"
        ids, names, _ = zip(*calls_sent(mode, tools.provider.requests[1].body), strict=True)
        assert ids == ("call_0", "call_1")
        assert LEGAL.fullmatch(names[0])
        assert names[1] == "lookup"
        (asked,) = [message for message in await client.messages(session) if message.get("tool_calls")]
        assert asked["tool_calls"][0]["function"]["name"] == name, "what the model said stays in the transcript"
        await goes_on(client, session, tools.provider)


@every_mode
async def test_a_cycle_is_counted_on_over_a_compaction(tools: Stage, mode: ApiMode) -> None:
    """C075 (5): long arguments fill the window in the middle of the third round."""
    long = "p" * 1_200
    calls = [f"tool={name} args={json.dumps({'path': long})}" for _ in range(9) for name in ("read", "write")]
    tools.backup.play(*[says(SUMMARY)] * 9)
    async with compacting(tools, mode, guardrails=STOPS) as client:
        session = await client.session(toolsets=["operator"])
        tools.provider.play(*calls)
        frames = await client.run(session, "Go round.")
        assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.completed", "guardrail_halt")
        order = [frame.type for frame in frames if frame.type in ("compaction.completed", "guardrail.warning", "guardrail.halt")]
        assert compactions(frames).count("completed gateway") >= 1
        assert order.index("compaction.completed") < order.index("guardrail.halt")
        (halt,) = of_type(frames, "guardrail.halt")
        assert (halt.data["code"], halt.data["count"]) == ("tool_call_cycle_halt", 5)
        assert len(tools.provider.requests) == 10, "five rounds of two calls, as without a compaction"
        tools.provider.clear()
        again = [f"tool={name} args={json.dumps({'path': 'q'})}" for _ in range(4) for name in ("read", "write")]
        tools.provider.play(*again, 'text="Enough."')
        second = await client.run(session, "Once more.")
        assert second[-1].data.get("output") == "Enough.", "a new turn begins with none"
        assert problems(tools.provider, tools.backup) == []
