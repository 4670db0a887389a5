"""The chunks of a stream: typed for the usual form, read leniently for everything that servers send instead."""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.domain.messages import canonical_json
from app.domain.model import Usage

_MAX_DIGITS: Final = 15
_DETAIL_TEXTS: Final = frozenset({"text", "summary"})


class FunctionDelta(msgspec.Struct, gc=False):
    """A fragment of a call's function."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct):
    """A fragment of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ChunkDelta(msgspec.Struct):
    """What a chunk adds to the reply."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """Details of ``prompt_tokens``."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, gc=False):
    """Details of ``completion_tokens``."""

    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """Tokens used; ``prompt_cache_hit_tokens`` is what some servers have instead of the details."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None

    def as_usage(self) -> Usage:
        """As the rest of the service counts."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        cached = (prompt.cached_tokens if prompt else None) or self.prompt_cache_hit_tokens or 0
        return Usage(
            input_tokens=self.prompt_tokens or 0,
            output_tokens=self.completion_tokens or 0,
            cached_input_tokens=cached,
            reasoning_tokens=(completion.reasoning_tokens if completion else None) or 0,
        )


class Choice(msgspec.Struct):
    """One of the alternatives; only number 0 is asked for. ``message`` is what a whole completion has in place of ``delta``."""

    index: int | None = None
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    finish_reason: str | None = None
    usage: ChunkUsage | None = None
    error: Any = None


class Chunk(msgspec.Struct):
    """One event of the stream."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""The fast path: raises ``msgspec.MsgspecError`` for anything that is not of the usual form."""


def decode_leniently(payload: bytes) -> Chunk | None:
    """Read a chunk, or a whole completion, of any form. ``None`` when it is not a JSON object.

    Unlike the fast path this takes lone surrogates (left for the caller to clean), bytes that are not UTF-8, and NaN.
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    error = value.get("error")
    if error is None and choices is None and (value.get("object") == "error" or "message" in value or "detail" in value):
        error = value  # an error object without its envelope
    return Chunk(
        id=_text(value.get("id")),
        choices=[_choice(choice) for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else None,
        usage=_usage(value.get("usage")),
        error=error,
    )


def reasoning_of(details: list[dict[str, Any]]) -> str:
    """The readable text of ``reasoning_details``."""
    return "".join(_text(item.get("text")) or _text(item.get("summary")) or _text(item.get("content")) or "" for item in details)


def join_details(known: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Add streamed pieces of ``reasoning_details`` to what is ``known``: a piece goes on with the last detail of its kind and place.

    Encrypted ones come whole, one behind the other. What is not text (ids, formats, signatures) comes with any piece and holds.
    """
    for piece in pieces:
        last = known[-1] if known else None
        same = last is not None and all(piece.get(key) in (None, last.get(key)) for key in ("type", "index")) and "data" not in piece
        if last is None or not same:
            known.append(dict(piece))
            continue
        for key, value in piece.items():
            if key in _DETAIL_TEXTS and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value


def _choice(value: Mapping[str, Any]) -> Choice:
    delta = value.get("delta")
    if not isinstance(delta, dict):
        delta = value.get("message")
    return Choice(
        index=_integer(value.get("index")),
        delta=_delta(delta) if isinstance(delta, dict) else None,
        finish_reason=_text(value.get("finish_reason")),
        usage=_usage(value.get("usage")),
        error=value.get("error"),
    )


def _delta(value: Mapping[str, Any]) -> ChunkDelta:
    content, thinking = _content(value.get("content"))
    details = value.get("reasoning_details")
    calls = value.get("tool_calls")
    return ChunkDelta(
        content=content,
        reasoning=_text(value.get("reasoning")) or thinking,
        reasoning_content=_text(value.get("reasoning_content")),
        reasoning_details=[item for item in details if isinstance(item, dict)] if isinstance(details, list) else None,
        refusal=_text(value.get("refusal")),
        tool_calls=[_tool_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else None,
    )


def _content(value: object) -> tuple[str | None, str | None]:
    """Text and thinking of content that is a string or a list of parts."""
    if not isinstance(value, list):
        return _text(value), None
    parts = [part for part in value if isinstance(part, dict)]
    text = "".join(_text(part.get("text")) or "" for part in parts)
    thinking = "".join(_content(part.get("thinking"))[0] or "" for part in parts)
    return text, thinking or None


def _tool_call(value: Mapping[str, Any]) -> ToolCallDelta:
    function = value.get("function")
    if not isinstance(function, dict):
        function = {}
    arguments = function.get("arguments")
    return ToolCallDelta(
        index=_integer(value.get("index")),
        id=_text(value.get("id")),
        function=FunctionDelta(
            name=_text(function.get("name")),
            arguments=canonical_json(arguments) if isinstance(arguments, dict | list) else _text(arguments),
        ),
    )


def _usage(value: object) -> ChunkUsage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    return ChunkUsage(
        prompt_tokens=_integer(value.get("prompt_tokens")),
        completion_tokens=_integer(value.get("completion_tokens")),
        prompt_tokens_details=PromptDetails(_integer(prompt.get("cached_tokens"))) if isinstance(prompt, dict) else None,
        completion_tokens_details=CompletionDetails(_integer(completion.get("reasoning_tokens"))) if isinstance(completion, dict) else None,
        prompt_cache_hit_tokens=_integer(value.get("prompt_cache_hit_tokens")),
    )


def _text(value: object) -> str | None:
    """Strings as they are; numbers as text (some servers number their calls)."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS else None
    if isinstance(value, float):
        return int(value) if abs(value) < 10.0**_MAX_DIGITS else None
    return value if isinstance(value, int) else None
