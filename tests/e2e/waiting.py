"""Turns that wait for somebody: how tests bring them about, answer them, and look at what came of it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.simulator.server import Simulator
from tests.e2e import approval_tools
from tests.e2e.harness import TERMINAL, Client, Frame, Stream
from tests.e2e.scenes import TOOL_MODULES

MODULES = f"{TOOL_MODULES},{approval_tools.MODULE}"
LOCATE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "locate",
        "description": "Says where the user is.",
        "parameters": {"type": "object", "properties": {"precise": {"type": "boolean"}}},
    },
}
"""A tool of the client."""
ASK = ("clarify", {"question": "Which one?", "choices": ["the red one", "the blue one"]})
PURGE = ("purge", {"place": "attic"})


def asks_for(*wanted: tuple[str, dict[str, Any]], text: str = "Done.") -> str:
    """A user's message that makes the simulator call these tools, with ids c0, c1, …"""
    listed = [{"name": name, "arguments": arguments, "id": f"c{index}"} for index, (name, arguments) in enumerate(wanted)]
    return f"[[sim calls={json.dumps(listed)} text={json.dumps(text)}]]"


async def wait_for(client: Client, session_id: str, *wanted: tuple[str, dict[str, Any]], **body: Any) -> list[Frame]:
    """A turn whose calls wait; its stream must end there."""
    frames = await client.run(session_id, asks_for(*wanted), **{"tools": [LOCATE], **body})
    assert frames[-1].type == "tool.requires_action", [frame.type for frame in frames]
    return frames


def turn_of(frames: list[Frame]) -> str:
    """The turn that frames are of."""
    return str(frames[0].data["turn_id"])


async def post(
    client: Client, turn_id: str, *results: dict[str, Any], headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    """Answers as one response, whatever it is."""
    return await client.http.post(f"/turns/{turn_id}/tool_results", json={"results": list(results), **body}, headers=headers)


@asynccontextmanager
async def answering(client: Client, turn_id: str, *results: dict[str, Any], headers: dict[str, str] | None = None) -> AsyncIterator[Stream]:
    """Answers, and the rest of the stream."""
    url = f"/turns/{turn_id}/tool_results"
    async with client.http.stream("POST", url, json={"results": list(results)}, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


async def answer(client: Client, turn_id: str, *results: dict[str, Any]) -> list[Frame]:
    """The rest of the stream to its end."""
    async with answering(client, turn_id, *results) as stream:
        return await stream.read_to_end()


def gives(call_id: str, output: str) -> dict[str, Any]:
    """The output of a call."""
    return {"tool_call_id": call_id, "output": output}


def decides(call_id: str, decision: str, **reason: str) -> dict[str, Any]:
    """A decision about a call."""
    return {"tool_call_id": call_id, "decision": decision, **reason}


def results_sent(provider: Simulator) -> list[tuple[str, str]]:
    """The results at the end of the newest request, in the order in which they were sent."""
    messages = provider.requests[-1].body["messages"]
    last = max(place for place, message in enumerate(messages) if message.get("tool_calls"))
    return [(message["tool_call_id"], message["content"]) for message in messages[last + 1 :] if message["role"] == "tool"]


def check_stream(frames: list[Frame]) -> None:
    """Ids rise, one terminal event at the end, and as many results as calls."""
    assert [frame.seq for frame in frames] == sorted({frame.seq for frame in frames})
    assert [frame.type for frame in frames if frame.type in TERMINAL] == [frames[-1].type]


def strict(provider: Simulator) -> None:
    """The provider has refused nothing."""
    assert [request.problems for request in provider.requests if request.problems] == []
