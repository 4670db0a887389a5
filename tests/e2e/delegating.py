"""Turns that start turns: how tests bring them about, and what they look for in what came of it."""

import json
from collections.abc import Sequence
from typing import Any

from app.simulator.log import RecordedRequest
from app.simulator.server import Simulator
from tests.e2e.harness import TERMINAL, Client, Frame
from tests.e2e.scenes import of_type

FOR_EVER = '[[sim tool=lookup args={"q":"$round"} rounds=9999]]'
"""A goal that never comes to an end by itself."""

TOOLSETS = ["core", "delegation", "operator"]
"""Of sessions that may delegate."""
BARE = ["core", "delegation"]
"""The same where the operator has no tools of his own."""


def says(text: str) -> str:
    """A goal that is answered at once."""
    return f"[[sim text={json.dumps(text)}]]"


def looks_up(times: int, text: str) -> str:
    """A goal that takes so many rounds of a tool, and the answer."""
    return f'[[sim tool=lookup args={{"q":"$round"}} rounds={times} text={json.dumps(text)}]]'


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "All done.", rounds: int = 1) -> str:
    """A message that makes the simulator call these tools."""
    listed = [{"name": name, "arguments": arguments} for name, arguments in wanted]
    return f"[[sim calls={json.dumps(listed)} rounds={rounds} text={json.dumps(text)}]]"


def delegates(*goals: str, text: str = "All done.", rounds: int = 1, **arguments: Any) -> str:
    """A message that makes the simulator hand these goals to sub-agents, all in one answer."""
    return calls(*(("delegate_task", {"goal": goal, **arguments}) for goal in goals), text=text, rounds=rounds)


async def results(client: Client, session: str) -> list[str]:
    """The results of all calls of a session, in order."""
    return [message["content"] for message in await client.messages(session) if message["role"] == "tool"]


async def cards(client: Client, session: str, **query: Any) -> list[dict[str, Any]]:
    """The session's board."""
    response = await client.http.get(f"/sessions/{session}/kanban", params=query)
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


async def child_turns(client: Client, frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """The children that a stream tells of, and all turns below them."""
    found = []
    for frame in of_type(frames, "subagent.started"):
        turn_id = frame.data["child_turn_id"]
        found += [await client.get(turn_id), *await child_turns(client, await client.replay(turn_id))]
    return found


async def check(client: Client, provider: Simulator, session: str, frames: Sequence[Frame]) -> None:
    """What always holds: one terminal event, an end for each beginning, a result for each call, and a provider that refused nothing."""
    assert [frame.type for frame in frames if frame.type in TERMINAL] == [frames[-1].type]
    begun = [frame.data["child_turn_id"] for frame in of_type(frames, "subagent.started")]
    assert sorted(frame.data["child_turn_id"] for frame in of_type(frames, "subagent.completed")) == sorted(begun)
    assert len(set(begun)) == len(begun)
    transcript = await client.messages(session)
    asked = [call["id"] for message in transcript for call in message.get("tool_calls") or ()]
    assert sorted(message["tool_call_id"] for message in transcript if message["role"] == "tool") == sorted(asked)
    parent = await client.get(frames[0].data["turn_id"])
    ended = of_type(frames, "subagent.completed")
    used = parent["children"] or {"iterations": 0, "usage": {"output_tokens": 0}}
    assert used["iterations"] == sum(frame.data["iterations"] for frame in ended)
    assert used["usage"]["output_tokens"] == sum(frame.data["usage"]["output_tokens"] for frame in ended)
    assert parent["children"] == frames[-1].data["children"]
    for child in await child_turns(client, frames):
        assert child["ended_at"] is not None
        assert child["ended_at"] <= parent["ended_at"], "a child outlived its parent"
    strict(provider)


def strict(*providers: Simulator) -> None:
    """The providers have refused nothing."""
    assert [request.problems for provider in providers for request in provider.requests if request.problems] == []


def of_children(provider: Simulator) -> list[RecordedRequest]:
    """The model calls of children: their prompt is not the session's."""
    return [request for request in provider.requests if b"You are a sub-agent" in request.raw]
