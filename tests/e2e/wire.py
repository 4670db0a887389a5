"""Hand-made bytes of chat completions streams, for what no well-behaved provider sends."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    """One event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk with one choice."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return data({"id": "chatcmpl-hand", "object": "chat.completion.chunk", "created": 1, "model": "hand", "choices": [choice], **more})


def bare(**fields: Any) -> bytes:
    """One chunk without choices."""
    return data({"id": "chatcmpl-hand", "object": "chat.completion.chunk", "created": 1, "model": "hand", "choices": [], **fields})


def call(name: str, arguments: Any, **fields: Any) -> dict[str, Any]:
    """A piece of a tool call; ``fields`` are ``id`` and ``index`` where they are wanted."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def calls(*pieces: dict[str, Any]) -> bytes:
    """One chunk with pieces of tool calls."""
    return chunk({"tool_calls": list(pieces)})


def usage(given: int, made: int) -> bytes:
    """The usage chunk."""
    return bare(usage={"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made})
