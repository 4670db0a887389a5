"""The events of a stream: typed for the usual form, read leniently for everything that servers send instead."""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.domain.messages import canonical_json

_MAX_DIGITS: Final = 15


class BlockDelta(msgspec.Struct):
    """What an event adds: to a block, or (``stop_reason``) to the message as a whole."""

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None


class Block(msgspec.Struct):
    """A block as its beginning shows it; in a whole message it is all there."""

    type: str
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    @property
    def arguments(self) -> str:
        """A call's input as text, empty when there is none yet."""
        if isinstance(self.input, str):
            return self.input
        return canonical_json(self.input) if self.input else ""


class OutputDetails(msgspec.Struct, gc=False):
    """Details of ``output_tokens``."""

    thinking_tokens: int | None = None


class EventUsage(msgspec.Struct):
    """Tokens used so far. ``input_tokens`` counts only what no cache was involved in."""

    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class Start(msgspec.Struct):
    """The message as its first event shows it: still empty."""

    id: str | None = None
    usage: EventUsage | None = None


class Event(msgspec.Struct):
    """One event of the stream."""

    type: str
    index: int | None = None
    delta: BlockDelta | None = None
    content_block: Block | None = None
    message: Start | None = None
    usage: EventUsage | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode
"""The fast path: raises ``msgspec.MsgspecError`` for anything that is not of the usual form."""


def decode_leniently(payload: bytes) -> list[Event] | None:
    """Read an event, an error, or a whole message, of any form, as events. ``None`` when it is not a JSON object.

    Unlike the fast path this takes lone surrogates (left for the caller to clean), bytes that are not UTF-8, and NaN.
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    kind = _text(value.get("type"))
    if kind == "error" or (kind is None and ("error" in value or "detail" in value)):
        return [Event(type="error", error=value.get("error") or value)]
    content = value.get("content")
    return _events_of_message(value, content) if isinstance(content, list) else [_event(kind or "", value)]


def _events_of_message(value: Mapping[str, Any], content: list[Any]) -> list[Event]:
    blocks = [_block(item) for item in content if isinstance(item, dict)]
    return [
        Event(type="message_start", message=_start(value)),
        *(Event(type="content_block_start", index=index, content_block=block) for index, block in enumerate(blocks)),
        Event(type="message_delta", delta=_delta(value)),
        Event(type="message_stop"),
    ]


def _event(kind: str, value: Mapping[str, Any]) -> Event:
    delta, block, message = value.get("delta"), value.get("content_block"), value.get("message")
    return Event(
        type=kind,
        index=_integer(value.get("index")),
        delta=_delta(delta) if isinstance(delta, dict) else None,
        content_block=_block(block) if isinstance(block, dict) else None,
        message=_start(message) if isinstance(message, dict) else None,
        usage=_usage(value.get("usage")),
    )


def _delta(value: Mapping[str, Any]) -> BlockDelta:
    pieces, details = value.get("partial_json"), value.get("stop_details")
    return BlockDelta(
        text=_text(value.get("text")),
        thinking=_text(value.get("thinking")),
        signature=_text(value.get("signature")),
        partial_json=canonical_json(pieces) if isinstance(pieces, dict) else _text(pieces),
        stop_reason=_text(value.get("stop_reason")),
        stop_details=details if isinstance(details, dict) else None,
    )


def _block(value: Mapping[str, Any]) -> Block:
    return Block(
        type=_text(value.get("type")) or "",
        id=_text(value.get("id")),
        name=_text(value.get("name")),
        input=value.get("input"),
        text=_text(value.get("text")),
        thinking=_text(value.get("thinking")),
        signature=_text(value.get("signature")),
        data=_text(value.get("data")),
    )


def _start(value: Mapping[str, Any]) -> Start:
    return Start(id=_text(value.get("id")), usage=_usage(value.get("usage")))


def _usage(value: object) -> EventUsage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("output_tokens_details")
    return EventUsage(
        input_tokens=_integer(value.get("input_tokens")),
        cache_read_input_tokens=_integer(value.get("cache_read_input_tokens")),
        cache_creation_input_tokens=_integer(value.get("cache_creation_input_tokens")),
        output_tokens=_integer(value.get("output_tokens")),
        output_tokens_details=OutputDetails(_integer(details.get("thinking_tokens"))) if isinstance(details, dict) else None,
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
