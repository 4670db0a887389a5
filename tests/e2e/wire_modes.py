"""Hand-made bytes of streams in the three API modes, under the same names: one test says them all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.domain.model import ApiMode
from tests.e2e import wire


def event(kind: str, **fields: Any) -> bytes:
    """One event with its name on a line of its own, as Responses and Messages send them."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}, ensure_ascii=False).encode())


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as it is on the wire; ``arguments`` may be what no well-behaved provider sends."""

    name: str
    arguments: Any
    id: Any
    index: int = 0


class Writer(Protocol):
    """Writes one reply, piece by piece."""

    def start(self, given: int = 5) -> bytes:
        """What comes before any content; ``given`` are the input tokens, where the protocol tells them there."""

    def text(self, *pieces: str) -> bytes:
        """A text in pieces."""

    def calls(self, *calls: Call) -> bytes:
        """Tool calls."""

    def end(self, given: int = 5, made: int = 7, label: str = "") -> bytes:
        """The end with usage; ``label`` is the protocol's own word for why."""


class Chat:
    """Chat Completions."""

    def start(self, given: int = 5) -> bytes:
        return wire.bare() + wire.chunk({"role": "assistant", "content": None})

    def text(self, *pieces: str) -> bytes:
        return b"".join(wire.chunk({"content": piece}) for piece in pieces)

    def calls(self, *calls: Call) -> bytes:
        return b"".join(wire.calls(wire.call(call.name, call.arguments, id=call.id, index=call.index)) for call in calls)

    def end(self, given: int = 5, made: int = 7, label: str = "") -> bytes:
        return wire.chunk(finish=label or "stop") + wire.usage(given, made) + wire.DONE


class Responses:
    """Responses: the items come as events, the last event holds usage only."""

    def start(self, given: int = 5) -> bytes:
        begun = {"id": "resp_hand", "status": "in_progress", "output": []}
        return event("response.created", response=begun) + event("response.in_progress", response=begun) + event("keepalive")

    def text(self, *pieces: str) -> bytes:
        place = {"item_id": "msg_hand", "output_index": 0, "content_index": 0}
        item = {"id": "msg_hand", "type": "message", "role": "assistant", "content": []}
        deltas = b"".join(event("response.output_text.delta", **place, delta=piece) for piece in pieces)
        return event("response.output_item.added", output_index=0, item=item) + deltas

    def calls(self, *calls: Call) -> bytes:
        return b"".join(self._call(call, number) for number, call in enumerate(calls, 1))

    def _call(self, call: Call, number: int) -> bytes:
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": call.id, "name": call.name, "status": "completed"}
        added = event("response.output_item.added", output_index=call.index, item={**item, "arguments": "", "status": "in_progress"})
        return added + event("response.output_item.done", output_index=call.index, item={**item, "arguments": call.arguments})

    def end(self, given: int = 5, made: int = 7, label: str = "") -> bytes:
        status = "incomplete" if label else "completed"
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        response = {"id": "resp_hand", "status": status, "usage": usage, "incomplete_details": {"reason": label} if label else None}
        return event(f"response.{status}", response=response)


class Messages:
    """Messages."""

    def start(self, given: int = 5) -> bytes:
        message = {"id": "msg_hand", "type": "message", "role": "assistant", "content": [], "model": "m"}
        usage = {"input_tokens": given, "output_tokens": 1}
        return event("message_start", message={**message, "usage": usage}) + event("ping")

    def text(self, *pieces: str) -> bytes:
        deltas = (event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in pieces)
        begin = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        return begin + b"".join(deltas) + event("content_block_stop", index=0)

    def calls(self, *calls: Call) -> bytes:
        return b"".join(self._call(call) for call in calls)

    def _call(self, call: Call) -> bytes:
        whole = call.arguments if isinstance(call.arguments, dict) else {}
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": whole}
        pieces = [call.arguments] if isinstance(call.arguments, str) else []
        deltas = (event("content_block_delta", index=call.index, delta={"type": "input_json_delta", "partial_json": one}) for one in pieces)
        begin = event("content_block_start", index=call.index, content_block=block)
        return begin + b"".join(deltas) + event("content_block_stop", index=call.index)

    def end(self, given: int = 5, made: int = 7, label: str = "") -> bytes:
        ended = event("message_delta", delta={"stop_reason": label or "end_turn"}, usage={"output_tokens": made})
        return ended + event("message_stop")


WRITERS: dict[ApiMode, Writer] = {
    ApiMode.CHAT_COMPLETIONS: Chat(),
    ApiMode.RESPONSES: Responses(),
    ApiMode.ANTHROPIC_MESSAGES: Messages(),
}


def calls_sent(mode: ApiMode, body: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """The tool calls of a request's history: (id, name, arguments read)."""
    match mode:
        case ApiMode.CHAT_COMPLETIONS:
            found: Sequence[dict[str, Any]] = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
            return [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]
        case ApiMode.RESPONSES:
            found = [item for item in body["input"] if item.get("type") == "function_call"]
            return [(call["call_id"], call["name"], json.loads(call["arguments"])) for call in found]
        case ApiMode.ANTHROPIC_MESSAGES:
            found = [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_use"]
            return [(call["id"], call["name"], call["input"]) for call in found]


def results_sent(mode: ApiMode, body: dict[str, Any]) -> list[tuple[str, str]]:
    """The results of tool calls in a request's history: (call's id, text)."""
    match mode:
        case ApiMode.CHAT_COMPLETIONS:
            return [(message["tool_call_id"], message["content"]) for message in body["messages"] if message["role"] == "tool"]
        case ApiMode.RESPONSES:
            outputs = [item for item in body["input"] if item.get("type") == "function_call_output"]
            return [(item["call_id"], item["output"]) for item in outputs]
        case ApiMode.ANTHROPIC_MESSAGES:
            blocks = [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_result"]
            return [(block["tool_use_id"], block["content"]) for block in blocks]
