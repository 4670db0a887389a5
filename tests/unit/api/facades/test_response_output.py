"""The items of a response, where its pieces come in an unusual order."""

import json
from typing import Any

from app.api.facades.narration import MessageDone, Piece, Reasoning, Text
from app.api.facades.protocol import Identity
from app.api.facades.response_output import ResponseForm
from app.api.openai_errors import CallError


def told(*pieces: Piece) -> tuple[ResponseForm, list[dict[str, Any]]]:
    """The form that was fed with ``pieces``, and the events that it gave."""
    form = ResponseForm(Identity(suffix="1", created=0), {})
    stream = form.begin("m") + b"".join(form.feed(piece) for piece in pieces)
    return form, events_of(stream)


def events_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.split(b"data: ", 1)[1]) for block in stream.split(b"\n\n") if block and not block.endswith(b"[DONE]")]


def test_reasoning_amid_a_message_is_an_item_behind_it() -> None:
    form, events = told(Reasoning("a"), Text("x"), Reasoning("b"), Reasoning("c"), Text("y"), MessageDone("xy", ()))
    items = form.whole()["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning"]
    assert [item["summary"][0]["text"] for item in items if item["type"] == "reasoning"] == ["a", "bc"]
    assert items[1]["content"][0]["text"] == "xy"
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in done] == list(enumerate(items))
    assert len({item["id"] for item in items}) == 3


def test_reasoning_that_a_failure_ends_is_incomplete() -> None:
    form, _ = told(Reasoning("a"))
    last = events_of(form.fail(CallError(503, "Gone.", code="provider_unavailable")))[-1]
    assert last["type"] == "response.failed"
    assert [(item["type"], item["status"]) for item in last["response"]["output"]] == [("reasoning", "incomplete")]
