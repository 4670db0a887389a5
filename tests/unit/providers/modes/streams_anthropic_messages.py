"""The table of replies as servers of ``anthropic_messages`` stream them."""

import json
from collections.abc import Mapping
from typing import Any


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + json.dumps({"type": kind, **members}).encode() + b"\n\n"


USAGE = {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1}
START = event("message_start", message={"id": "m", "type": "message", "role": "assistant", "content": [], "usage": USAGE})


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    pieces = (event("content_block_delta", index=index, delta=delta) for delta in deltas)
    return event("content_block_start", index=index, content_block=begun) + b"".join(pieces) + event("content_block_stop", index=index)


def text(*pieces: str, index: int = 0) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thinking(*pieces: str, index: int = 0, signature: str = "c2ln") -> bytes:
    signed = {"type": "signature_delta", "signature": signature}
    return block(index, {"type": "thinking", "thinking": ""}, *({"type": "thinking_delta", "thinking": piece} for piece in pieces), signed)


def call(index: int, call_id: str, *pieces: str, name: str = "lookup", whole: Any = None) -> bytes:
    begun = {"type": "tool_use", "id": call_id, "name": name, "input": {} if whole is None else whole}
    return block(index, begun, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def finish(label: str, **details: Any) -> bytes:
    usage = {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}}
    return event("message_delta", delta={"stop_reason": label, **details}, usage=usage) + event("message_stop")


STREAMS: Mapping[str, bytes] = {
    "text": START + event("ping") + text("Hé", "y🦊") + finish("end_turn"),
    "reasoning": START + thinking("wh", "y") + text("Hey", index=1) + finish("end_turn"),
    "think-tags": START + text("<thi", "nk>why</think>Hey") + finish("end_turn"),
    "call": START + text("Looking.") + call(1, "c1", "", '{"q":', '"a"}') + finish("tool_use"),
    "parallel-calls": START + call(0, "c1", '{"q":"a"}') + call(1, "c2", '{"q":"b"}') + finish("tool_use"),
    "empty-arguments": START + call(0, "c1", name="now") + finish("tool_use"),
    "calls-under-stop": START + call(0, "c1", '{"q":"a"}') + finish("end_turn"),
    "illegal-name": START + call(0, "c1", "{}", name='see" path="x') + finish("tool_use"),
    "unreadable-arguments": START + call(0, "c1", '{"q": "a') + finish("tool_use"),
    "length": START + text("Once") + finish("max_tokens"),
    "length-in-a-call": START + text("Once") + call(1, "c1", '{"q":"a"}') + finish("max_tokens"),
    "refusal": START + finish("refusal", stop_details={"type": "refusal", "explanation": "I won't."}),
    "filtered": START + text("Once") + finish("refusal", stop_details={"type": "refusal", "explanation": "I won't."}),
    "nothing": START + finish("end_turn"),
    "calls-without-calls": START + finish("tool_use"),
    "text-without-calls": START + text("Hey") + finish("tool_use"),
    "cut": START + text("Once"),
    "error": START + text("Once") + event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
    "error-document": b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
    "comments": b": busy\n\n: busy\n\n",
}
