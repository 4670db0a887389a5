"""The table of replies as servers of ``chat_completions`` stream them."""

import json
from collections.abc import Mapping
from typing import Any

END = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(**members: Any) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": members, "finish_reason": None}]})


def finish(label: str) -> bytes:
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": label}]}) + event({"choices": [], "usage": usage}) + END


def call(index: int, call_id: str, *pieces: str, name: str = "lookup") -> bytes:
    begun = delta(tool_calls=[{"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}])
    return begun + b"".join(delta(tool_calls=[{"index": index, "function": {"arguments": piece}}]) for piece in pieces)


STREAMS: Mapping[str, bytes] = {
    "text": delta(role="assistant", content="") + delta(content="Hé") + delta(content="y🦊") + finish("stop"),
    "reasoning": delta(reasoning_content="wh") + delta(reasoning_content="y") + delta(content="Hey") + finish("stop"),
    "think-tags": delta(content="<thi") + delta(content="nk>why</think>Hey") + finish("stop"),
    "call": delta(content="Looking.") + call(0, "c1", '{"q":', '"a"}') + finish("tool_calls"),
    "parallel-calls": call(0, "c1", '{"q":"a"}') + call(1, "c2", '{"q":"b"}') + finish("tool_calls"),
    "empty-arguments": call(0, "c1", name="now") + finish("tool_calls"),
    "calls-under-stop": call(0, "c1", '{"q":"a"}') + finish("stop"),
    "illegal-name": call(0, "c1", "{}", name='see" path="x') + finish("tool_calls"),
    "unreadable-arguments": call(0, "c1", '{"q": "a') + finish("tool_calls"),
    "length": delta(content="Once") + finish("length"),
    "length-in-a-call": delta(content="Once") + call(0, "c1", '{"q":"a"}') + finish("length"),
    "refusal": delta(refusal="I won't.") + finish("stop"),
    "filtered": delta(content="Once") + finish("content_filter"),
    "nothing": finish("stop"),
    "calls-without-calls": finish("tool_calls"),
    "text-without-calls": delta(content="Hey") + finish("tool_calls"),
    "cut": delta(content="Once"),
    "error": delta(content="Once") + event({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
    "error-document": b'{"error": {"type": "overloaded_error", "message": "Overloaded"}}',
    "comments": b": busy\n\n: busy\n\n",
}
