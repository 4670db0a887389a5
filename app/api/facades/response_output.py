"""A turn as a response: the events of a stream, or one object.

Each message of the turn is an output item, with its reasoning as one before it and the client's calls behind the last one. Both forms
have the same items, but for reasoning between the words of a message: a stream has that in an item behind it.
"""

from collections.abc import Mapping
from typing import Any, assert_never

import msgspec
from typing_extensions import override

from app.api.facades.endings import INCOMPLETE, diverged, failure_of, finish_of, refused
from app.api.facades.narration import CallView, Diverged, Ended, MessageDone, Piece, Reasoning, Terminal, Text
from app.api.facades.protocol import Form, Identity, total_tokens, with_cost
from app.api.openai_errors import CallError, error_object

DONE = b"data: [DONE]\n\n"
"""OpenAI's own streams end with their last event, those of Open Responses with this; clients of either kind understand both."""
_encode = msgspec.json.Encoder().encode


class ResponseForm(Form):
    """One response. ``echo`` are members of the request that the response repeats."""

    def __init__(self, identity: Identity, echo: Mapping[str, Any]) -> None:
        self._identity = identity
        self._echo = echo
        self._model = ""
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: _OpenMessage | None = None
        self._thinking: _OpenReasoning | None = None
        self._afterthoughts: list[str] = []
        """Reasoning that came amid a message."""
        self._calls: tuple[CallView, ...] = ()
        self._end: Terminal | None = None
        self._status = "in_progress"
        self._cut: str | None = None
        self.failure: CallError | None = None
        self.over = False

    @override
    def begin(self, model: str) -> bytes:
        self._model = model
        return self._event("response.created", response=self._object()) + self._event("response.in_progress", response=self._object())

    @override
    def feed(self, piece: Piece) -> bytes:
        match piece:
            case Text(text=text):
                return self._text(text)
            case Reasoning(text=text):
                return self._reasoning(text)
            case MessageDone(calls=calls):
                self._calls = calls
                return self._close("completed")
            case Ended():
                return self._ended(piece)
            case Diverged():
                return self.fail(diverged(piece))
        assert_never(piece)

    @override
    def fail(self, error: CallError) -> bytes:
        closed = self._close("incomplete")
        self.failure, self.over, self._status = error, True, "failed"
        return closed + self._event("response.failed", response=self._object()) + DONE

    @override
    def whole(self) -> dict[str, Any]:
        return self._object()

    def _reasoning(self, text: str) -> bytes:
        if self._open is not None:
            self._afterthoughts.append(text)
            return b""
        begun = b""
        if self._thinking is None:
            self._thinking = _OpenReasoning(f"rs_{self._identity.suffix}_{len(self._items)}", len(self._items))
            item = self._thinking.item("in_progress", [])
            begun = self._event("response.output_item.added", output_index=self._thinking.index, item=item)
            begun += self._event("response.reasoning_summary_part.added", **self._thinking.place, part=_summary(""))
        self._thinking.thought.append(text)
        return begun + self._event("response.reasoning_summary_text.delta", **self._thinking.place, delta=text)

    def _text(self, text: str) -> bytes:
        begun = self._close_reasoning("completed")
        if self._open is None:
            self._open = _OpenMessage(f"msg_{self._identity.suffix}_{len(self._items)}", len(self._items))
            item = self._open.item("in_progress", [])
            begun += self._event("response.output_item.added", output_index=self._open.index, item=item)
            begun += self._event("response.content_part.added", **self._open.place, part=_part(""))
        self._open.said.append(text)
        return begun + self._event("response.output_text.delta", **self._open.place, delta=text, logprobs=[])

    def _close(self, status: str) -> bytes:
        """Close what is open; at most one of the two is."""
        closed = self._close_reasoning(status) + self._close_message(status)
        if self._afterthoughts:
            closed += self._reasoning("".join(self._afterthoughts)) + self._close_reasoning("completed")
            self._afterthoughts.clear()
        return closed

    def _close_reasoning(self, status: str) -> bytes:
        if self._thinking is None:
            return b""
        reasoning, self._thinking = self._thinking, None
        text = "".join(reasoning.thought)
        item = reasoning.item(status, [_summary(text)])
        self._items.append(item)
        return (
            self._event("response.reasoning_summary_text.done", **reasoning.place, text=text)
            + self._event("response.reasoning_summary_part.done", **reasoning.place, part=_summary(text))
            + self._event("response.output_item.done", output_index=reasoning.index, item=item)
        )

    def _close_message(self, status: str) -> bytes:
        if self._open is None:
            return b""
        message, self._open = self._open, None
        text = "".join(message.said)
        item = message.item(status, [_part(text)])
        self._items.append(item)
        return (
            self._event("response.output_text.done", **message.place, text=text, logprobs=[])
            + self._event("response.content_part.done", **message.place, part=_part(text))
            + self._event("response.output_item.done", output_index=message.index, item=item)
        )

    def _ended(self, ended: Ended) -> bytes:
        finish = finish_of(ended)
        self._end = ended.event
        if finish is None:
            return self.fail(failure_of(ended))
        self._cut = INCOMPLETE.get(finish)
        self._status = "incomplete" if self._cut else "completed"
        events = [self._close(self._status)]
        if refused(self._end):
            self._refuse(ended.event.output)
        if finish == "tool_calls":
            events += [self._call(call) for call in self._calls]
        self.over = True
        return b"".join((*events, self._event(f"response.{self._status}", response=self._object()), DONE))

    def _refuse(self, refusal: str) -> None:
        """Make the last message a refusal. That is known at the end only: its text was streamed as text."""
        at = max((place for place, item in enumerate(self._items) if item["type"] == "message"), default=None)
        if at is not None:
            self._items[at] = {**self._items[at], "content": [{"type": "refusal", "refusal": refusal}]}

    def _call(self, call: CallView) -> bytes:
        index = len(self._items)
        item_id, arguments = f"fc_{self._identity.suffix}_{index}", call.function["arguments"]
        item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.function["name"], "status": "completed"}
        self._items.append({**item, "arguments": arguments})
        place = {"item_id": item_id, "output_index": index}
        return (
            self._event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
            + self._event("response.function_call_arguments.delta", **place, delta=arguments)
            + self._event("response.function_call_arguments.done", **place, arguments=arguments, name=call.function["name"])
            + self._event("response.output_item.done", output_index=index, item=self._items[-1])
        )

    def _event(self, event_type: str, **members: Any) -> bytes:
        data = _encode({"type": event_type, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event_type.encode(), data)

    def _object(self) -> dict[str, Any]:
        end, failure = self._end, self.failure
        return {
            "id": f"resp_{self._identity.suffix}",
            "object": "response",
            "created_at": self._identity.created,
            "status": self._status,
            "error": None if failure is None else _error(failure),
            "incomplete_details": {"reason": self._cut} if self._cut else None,
            "model": end.route.model if end and end.route else self._model,
            "output": list(self._items),
            "usage": None if end is None else _usage(end),
            **self._echo,
        }


class _OpenMessage:
    """A message that is being said."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self.index = index
        self.said: list[str] = []
        self.place = {"item_id": item_id, "output_index": index, "content_index": 0}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message as an output item."""
        return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}


class _OpenReasoning:
    """Reasoning that is under way. It is told as a summary, which clients show: the reasoning itself is the provider's."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self.index = index
        self.thought: list[str] = []
        self.place = {"item_id": item_id, "output_index": index, "summary_index": 0}

    def item(self, status: str, summary: list[dict[str, Any]]) -> dict[str, Any]:
        """The reasoning as an output item."""
        return {"type": "reasoning", "id": self._id, "status": status, "summary": summary}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _error(failure: CallError) -> dict[str, Any]:
    described = error_object(failure.status, failure.message, code=failure.code)
    return {"code": described["code"], "message": described["message"]}


def _usage(end: Terminal) -> dict[str, Any]:
    usage = end.usage
    counts = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": total_tokens(usage),
    }
    return with_cost(counts, end.cost_usd)
