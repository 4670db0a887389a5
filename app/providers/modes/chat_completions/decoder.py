"""A streamed reply: its deltas as they come, and the verdict on it at the end.

A reply is complete when its ``finish_reason`` was seen and the stream then ended, by ``[DONE]`` or by a clean end of the response.
``[DONE]`` alone is no proof: proxies send it behind a stream that broke. What the reply holds decides what it is, not the label: calls
under ``stop`` run, a text under ``tool_calls`` without a call is an answer, and nothing at all an invalid response. Calls under ``length``
or ``content_filter`` may be cut and are dropped.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.domain.messages import clean_json, clean_text
from app.domain.model import Delta, FailureReason, FinishReason, Usage
from app.providers.mode import Defect, ProviderError, ReplyParts
from app.providers.modes.chat_completions.chunks import (
    Choice,
    Chunk,
    ChunkDelta,
    ToolCallDelta,
    decode_chunk,
    decode_leniently,
    join_details,
    reasoning_of,
)
from app.providers.reply_text import ReplyText
from app.providers.tool_calls import ToolCallAssembly

_FINISH: Final = {
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "prohibited_content": FinishReason.CONTENT_FILTER,
    "blocklist": FinishReason.CONTENT_FILTER,
    "recitation": FinishReason.CONTENT_FILTER,
    "spii": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
}
"""Labels in use; any other one (``stop``, ``end_turn``, ``eos``, …) is an ordinary end.

``refusal`` is Anthropic's, passed on: its filter stopped the model amid what it said. A refusal in words comes as ``delta.refusal``.
"""

_FAILED: Final = {
    "error": FailureReason.SERVER_ERROR,
    "network_error": FailureReason.SERVER_ERROR,
    "abort": FailureReason.INCOMPLETE_STREAM,
    "cancelled": FailureReason.INCOMPLETE_STREAM,
    "insufficient_system_resource": FailureReason.OVERLOADED,
    "model_context_window_exceeded": FailureReason.CONTEXT_OVERFLOW,
}
"""Labels by which servers report a failure."""


class Decoder:
    """Decodes one response, as :class:`app.providers.mode.StreamDecoder`."""

    __slots__ = (
        "_calls",
        "_completion_id",
        "_content",
        "_details",
        "_finish",
        "_refused",
        "_said",
        "_seed",
        "_seen",
        "defect",
        "done",
        "moved",
        "usage",
    )

    def __init__(self, attempt: int, *, seed: str) -> None:
        self.usage = Usage()
        self.moved = False
        self.done = False
        self.defect: Defect | None = None
        self._seed = seed
        self._completion_id = ""
        self._said = ReplyText(attempt)
        self._calls = ToolCallAssembly()
        self._details: list[dict[str, Any]] = []
        self._content: list[str] = []
        """Pieces of ``reasoning_content``."""
        self._finish: FinishReason | None = None
        self._refused = False
        self._seen = False

    @property
    def finished(self) -> bool:
        """The ``finish_reason`` was seen."""
        return self._finish is not None

    @property
    def written(self) -> int:
        """Characters so far."""
        return self._said.size + self._calls.size

    def feed(self, payloads: Sequence[bytes]) -> list[Delta]:
        """Take event payloads in order and return the deltas in them; nothing is read behind ``[DONE]`` or a defect."""
        deltas: list[Delta] = []
        self.moved = False
        for payload in payloads:
            try:
                chunk = decode_chunk(payload)
            except msgspec.MsgspecError:
                if payload.strip() == b"[DONE]":
                    self.done = True
                    break
                self._take_leniently(payload, deltas)
            else:
                if chunk.choices is None and chunk.usage is None:
                    self._take_leniently(payload, deltas)
                else:
                    self._take(chunk, deltas)
            if self.defect is not None:
                break
        return deltas

    def feed_body(self, body: bytes) -> list[Delta]:
        """Take a completion, or an error, that is one JSON document instead of a stream."""
        deltas: list[Delta] = []
        self._take_leniently(body, deltas)
        self.done = True
        return deltas

    def finish(self) -> ReplyParts | Defect:
        """Judge the reply."""
        if self.defect is not None:
            return self.defect
        if self._finish is None:
            return FailureReason.INCOMPLETE_STREAM if self._seen else FailureReason.INVALID_RESPONSE
        if self._finish in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
            return _parts(*self._said.finish(complete=False), self._finish, calls_cut=len(self._calls) > 0)
        calls, bad = self._calls.finish(f"{self._completion_id}.{self._seed}")
        text, reasoning = self._said.finish(complete=not calls)
        if not calls and not text.strip():
            return FailureReason.INVALID_RESPONSE
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.REFUSAL if self._refused else FinishReason.STOP
        replay = self._replay(calls=bool(calls))
        return ReplyParts(text=text, reasoning=reasoning, tool_calls=calls, bad_arguments=bad, finish=finish, replay=replay)

    def _replay(self, *, calls: bool) -> tuple[dict[str, Any], ...]:
        """The members that the provider wants back: details with any message, plain reasoning only with calls."""
        if self._details:
            return ({"reasoning_details": clean_json(self._details)},)
        return ({"reasoning_content": clean_text("".join(self._content))},) if calls and self._content else ()

    def _take_leniently(self, payload: bytes, deltas: list[Delta]) -> None:
        chunk = decode_leniently(payload)
        if chunk is None:
            self.defect = FailureReason.INVALID_RESPONSE
        else:
            self._take(chunk, deltas)

    def _take(self, chunk: Chunk, deltas: list[Delta]) -> None:
        choices = chunk.choices
        if choices:
            choice = choices[0]
            if not choice.index:
                delta = choice.delta or choice.message
                if delta is not None:
                    self._take_delta(delta, deltas)
                if choice.finish_reason or choice.usage is not None or choice.error is not None:
                    self._take_end(choice)
        if not self._seen:
            self._seen = bool(choices)
            self._completion_id = chunk.id or ""
        if chunk.usage is not None:
            self.usage = chunk.usage.as_usage()
        if chunk.error is not None:
            self.defect = ProviderError(chunk.error)

    def _take_delta(self, delta: ChunkDelta, deltas: list[Delta]) -> None:
        content = delta.content
        if content:
            self.moved = True
            self._said.add(content, deltas)
        if delta.reasoning or delta.reasoning_content or delta.reasoning_details:
            self._take_reasoning(delta, deltas)
        if delta.tool_calls:
            self._take_calls(delta.tool_calls)
        if delta.refusal:
            self._refused = self.moved = True
            self._said.add_visible(delta.refusal, deltas)

    def _take_reasoning(self, delta: ChunkDelta, deltas: list[Delta]) -> None:
        """Servers repeat the same reasoning under several names: the first one that is there counts."""
        if delta.reasoning_details:
            join_details(self._details, delta.reasoning_details)
        if delta.reasoning_content:
            self._content.append(delta.reasoning_content)
        reasoning = delta.reasoning or delta.reasoning_content or reasoning_of(delta.reasoning_details or [])
        self._said.add_reasoning(reasoning, deltas)
        self.moved = self.moved or bool(reasoning)

    def _take_calls(self, calls: list[ToolCallDelta]) -> None:
        several = len(calls) > 1
        for place, call in enumerate(calls):
            # What stands side by side without any mark are different calls.
            index = place if several and call.index is None and not call.id else call.index
            function = call.function
            name, arguments = ("", "") if function is None else (function.name or "", function.arguments or "")
            if call.id or name or arguments:
                self.moved = True
                self._calls.add(index, call_id=call.id or "", name=name, arguments=arguments)

    def _take_end(self, choice: Choice) -> None:
        if choice.usage is not None:
            self.usage = choice.usage.as_usage()
        if choice.error is not None:
            self.defect = ProviderError(choice.error)
        elif choice.finish_reason:
            label = choice.finish_reason.lower()
            self.defect = _FAILED.get(label)
            self._finish = _FINISH.get(label, FinishReason.STOP)


def _parts(text: str, reasoning: str, finish: FinishReason, *, calls_cut: bool = False) -> ReplyParts:
    return ReplyParts(text=text, reasoning=reasoning, tool_calls=(), bad_arguments={}, finish=finish, calls_cut=calls_cut)
