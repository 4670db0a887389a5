"""The table of replies as servers of ``responses`` stream them."""

import json
from collections.abc import Mapping
from typing import Any


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **members}).encode() + b"\n\n"


START = event("response.created", response={"id": "resp_1", "object": "response", "status": "in_progress", "output": []})
USAGE = {
    "input_tokens": 11,
    "output_tokens": 7,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens_details": {"reasoning_tokens": 2},
}


def item(place: int, begun: dict[str, Any], ended: dict[str, Any], events: bytes) -> bytes:
    return (
        event("response.output_item.added", output_index=place, item=begun)
        + events
        + event("response.output_item.done", output_index=place, item={**begun, **ended})
    )


def said(*pieces: str, place: int = 0, kind: str = "output_text", key: str = "text") -> bytes:
    whole = "".join(pieces)
    where = {"item_id": "msg_1", "output_index": place, "content_index": 0}
    events = b"".join(event(f"response.{kind}.delta", **where, delta=piece) for piece in pieces)
    events += event(f"response.{kind}.done", **where, **{key: whole})
    begun = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    return item(place, begun, {"content": [{"type": kind, key: whole}]}, events)


def thought(*pieces: str, place: int = 0) -> bytes:
    where = {"item_id": "rs_1", "output_index": place, "summary_index": 0}
    events = b"".join(event("response.reasoning_summary_text.delta", **where, delta=piece) for piece in pieces)
    summary = [{"type": "summary_text", "text": "".join(pieces)}]
    begun = {"id": "rs_1", "type": "reasoning", "summary": []}
    return item(place, begun, {"summary": summary, "encrypted_content": "gAAA"}, events)


def call(place: int, call_id: str, *pieces: str, name: str = "lookup") -> bytes:
    where = {"item_id": f"fc_{call_id}", "output_index": place}
    whole = "".join(pieces)
    events = b"".join(event("response.function_call_arguments.delta", **where, delta=piece) for piece in pieces)
    events += event("response.function_call_arguments.done", **where, arguments=whole)
    begun = {"id": f"fc_{call_id}", "type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
    return item(place, begun, {"arguments": whole}, events)


def finish(status: str = "completed", reason: str | None = None) -> bytes:
    details = None if reason is None else {"reason": reason}
    return event(f"response.{status}", response={"id": "resp_1", "status": status, "incomplete_details": details, "usage": USAGE})


STREAMS: Mapping[str, bytes] = {
    "text": START + said("Hé", "y🦊") + finish(),
    "reasoning": START + thought("wh", "y") + said("Hey", place=1) + finish(),
    "think-tags": START + said("<thi", "nk>why</think>Hey") + finish(),
    "call": START + said("Looking.") + call(1, "c1", '{"q":', '"a"}') + finish(),
    "parallel-calls": START + call(0, "c1", '{"q":"a"}') + call(1, "c2", '{"q":"b"}') + finish(),
    "empty-arguments": START + call(0, "c1", name="now") + finish(),
    "calls-under-stop": START + call(0, "c1", '{"q":"a"}') + finish() + b"data: [DONE]\n\n",
    "illegal-name": START + call(0, "c1", "{}", name='see" path="x') + finish(),
    "unreadable-arguments": START + call(0, "c1", '{"q": "a') + finish(),
    "length": START + said("Once") + finish("incomplete", "max_output_tokens"),
    "length-in-a-call": START + said("Once") + call(1, "c1", '{"q":"a"}') + finish("incomplete", "max_output_tokens"),
    "refusal": START + said("I won't.", kind="refusal", key="refusal") + finish(),
    "filtered": START + said("Once") + finish("incomplete", "content_filter"),
    "nothing": START + finish(),
    "calls-without-calls": START + thought("why") + finish(),
    "text-without-calls": START + said("Hey") + finish(),
    "cut": START + said("Once"),
    "error": START + said("Once") + event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
    "error-document": b'{"object": "response", "status": "failed", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
    "comments": b": busy\n\n: busy\n\n",
}
