"""A streamed reply: its deltas as they come, and the verdict on it at the end.

A reply is complete when ``response.completed``, ``response.incomplete`` or ``response.failed`` was seen; a stream that ends without one of
these, be it in good order or by ``[DONE]``, is not. What the reply holds decides what it is: calls in a completed response run; those of an
incomplete one may be cut, even where their arguments can be read, and are dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.domain.model import Delta, FailureReason, FinishReason, Usage
from app.providers.mode import Defect, ProviderError, ReplyParts
from app.providers.modes.responses.events import (
    DELTAS,
    SILENT,
    TEXT_DELTA,
    Event,
    arguments_of,
    decode_event,
    event_of,
    integer_of,
    part_of,
    read_object,
    text_of,
    usage_of,
)
from app.providers.modes.responses.output import Output

_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"})
_ERRORS: Final = frozenset({"error", "response.error"})
_UNFINISHED: Final = frozenset({"cancelled", "queued", "in_progress"})
_FILTERED: Final = frozenset({"content_filter", "safety", "sensitive"})


class Decoder:
    """Decodes one response, as :class:`app.providers.mode.StreamDecoder`."""

    __slots__ = ("_finish", "_output", "_response_id", "_seed", "_seen", "defect", "done", "moved", "usage")

    def __init__(self, attempt: int, *, seed: str) -> None:
        self.usage = Usage()
        self.moved = False
        self.done = False
        self.defect: Defect | None = None
        self._seed = seed
        self._response_id = ""
        self._output = Output(attempt)
        self._finish: FinishReason | None = None
        self._seen = False

    @property
    def finished(self) -> bool:
        """The response's last event was seen, which carries its usage."""
        return self._finish is not None

    @property
    def written(self) -> int:
        """Characters so far."""
        return self._output.said.size + self._output.calls.size

    def feed(self, payloads: Sequence[bytes]) -> list[Delta]:
        """Take event payloads in order and return the deltas in them; nothing is read behind the last event or a defect."""
        deltas: list[Delta] = []
        self.moved = False
        for payload in payloads:
            try:
                event = decode_event(payload)
            except msgspec.MsgspecError:
                self._take_unusual(payload, deltas)
            else:
                self._seen = True
                if event.type == TEXT_DELTA and event.delta:
                    self.moved = True
                    self._output.add_text(event, event.delta, deltas)
                elif event.type in DELTAS:
                    self._take_delta(event, deltas)
                elif event.type not in SILENT:
                    self._take_unusual(payload, deltas)
            if self.done or self.defect is not None:
                break
        return deltas

    def feed_body(self, body: bytes) -> list[Delta]:
        """Take a response, or an error, that is one JSON document instead of a stream."""
        deltas: list[Delta] = []
        value = read_object(body)
        if value is None:
            self.defect = FailureReason.INVALID_RESPONSE
        else:
            self._take_object(value, deltas)
        self.done = True
        return deltas

    def finish(self) -> ReplyParts | Defect:
        """Judge the reply."""
        if self.defect is not None:
            return self.defect
        if self._finish is None:
            return FailureReason.INCOMPLETE_STREAM if self._seen else FailureReason.INVALID_RESPONSE
        output = self._output
        if self._finish is not FinishReason.STOP:
            text, reasoning = output.said.finish(complete=False)
            cut = len(output.calls) > 0
            return ReplyParts(text=text, reasoning=reasoning, tool_calls=(), bad_arguments={}, finish=self._finish, calls_cut=cut)
        calls, bad = output.calls.finish(f"{self._response_id}.{self._seed}")
        text, reasoning = output.said.finish(complete=not calls)
        if not calls and not text.strip():
            return FailureReason.INVALID_RESPONSE
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.REFUSAL if output.refused else FinishReason.STOP
        return ReplyParts(text=text, reasoning=reasoning, tool_calls=calls, bad_arguments=bad, finish=finish, replay=tuple(output.replay))

    def _take_delta(self, event: Event, deltas: list[Delta]) -> None:
        piece = event.delta
        if not piece:
            return
        self.moved = True
        match event.type:
            case "response.output_text.delta":
                self._output.add_text(event, piece, deltas)
            case "response.refusal.delta":
                self._output.add_refusal(event, piece, deltas)
            case "response.function_call_arguments.delta":
                self._output.calls.add(event.output_index, event.item_id, piece)
            case _:
                self._output.add_reasoning(event, piece, deltas)

    def _take_unusual(self, payload: bytes, deltas: list[Delta]) -> None:
        """Take an event that is no plain delta."""
        value = read_object(payload)
        if value is not None:
            self._seen = True
            self._take_object(value, deltas)
        elif payload.strip() == b"[DONE]":
            self.done = True
        else:
            self.defect = FailureReason.INVALID_RESPONSE

    def _take_object(self, value: Mapping[str, Any], deltas: list[Delta]) -> None:
        kind = text_of(value.get("type"))
        response, error = value.get("response"), value.get("error")
        if kind in DELTAS:
            self._take_delta(event_of(value), deltas)
        elif kind in _TERMINAL:
            self._take_response(response if isinstance(response, dict) else {}, kind.removeprefix("response."), deltas)
        elif value.get("object") == "response" or (not kind and "output" in value):
            self._take_response(value, "", deltas)
        elif kind in _ERRORS or (not kind and error):
            self.defect = ProviderError(error or {key: item for key, item in value.items() if key != "type"})
        elif not kind and ("message" in value or "detail" in value):
            self.defect = ProviderError(value)  # an error object without its envelope
        else:
            self._take_whole(kind, value, deltas)

    def _take_whole(self, kind: str, value: Mapping[str, Any], deltas: list[Delta]) -> None:
        """Take an event that tells a part, an item, or its beginning; unknown ones tell nothing."""
        place = integer_of(value.get("output_index"))
        part_place = (place, integer_of(value.get("content_index")))
        item, part = value.get("item"), value.get("part")
        output = self._output
        told = False
        match kind:
            case "response.output_text.done" | "response.refusal.done":
                text = text_of(value.get("text")) or text_of(value.get("refusal"))
                told = output.add_part(part_place, (kind == "response.refusal.done", text), deltas)
            case "response.content_part.done" if isinstance(part, dict):
                told = part.get("type") != "reasoning_text" and output.add_part(part_place, part_of(part), deltas)
            case "response.function_call_arguments.done":
                output.calls.set_arguments(place, text_of(value.get("item_id")), arguments_of(value.get("arguments")))
                told = True
            case "response.output_item.added" if isinstance(item, dict):
                told = item.get("type") == "function_call"
                if told:
                    output.calls.begin(place, item)
            case "response.output_item.done" if isinstance(item, dict):
                told = output.add_item(place, item, deltas)
            case _:
                pass
        self.moved = self.moved or told

    def _take_response(self, response: Mapping[str, Any], kind: str, deltas: list[Delta]) -> None:
        """Take the whole response, at its end."""
        usage, error = response.get("usage"), response.get("error")
        status = text_of(response.get("status")).lower()
        self._response_id = text_of(response.get("id"))
        if isinstance(usage, dict):
            self.usage = usage_of(usage)
        if error or status == "failed" or kind == "failed":
            self.defect = ProviderError(error) if error else FailureReason.SERVER_ERROR
            return
        if kind == "cancelled" or status == "cancelled" or (not kind and status in _UNFINISHED):
            self.defect = FailureReason.INCOMPLETE_STREAM
            return
        self._output.complete(response.get("output"), deltas)
        self._finish = _incomplete(response.get("incomplete_details")) if "incomplete" in (kind, status) else FinishReason.STOP
        self.moved = self.moved or bool(deltas)
        self.done = True


def _incomplete(details: object) -> FinishReason:
    """Why a response is not complete: filtered, or else cut."""
    reason = text_of(details.get("reason")) if isinstance(details, dict) else ""
    return FinishReason.CONTENT_FILTER if reason.lower() in _FILTERED else FinishReason.LENGTH
