"""The events of a stream: typed for the deltas, and read leniently, as JSON values, for everything else."""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.domain.messages import canonical_json, clean_json
from app.domain.model import Usage

_MAX_DIGITS: Final = 15

TEXT_DELTA: Final = "response.output_text.delta"
SUMMARY_DELTAS: Final = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_summary.delta"})
DELTAS: Final = SUMMARY_DELTAS | {
    TEXT_DELTA,
    "response.refusal.delta",
    "response.function_call_arguments.delta",
    "response.reasoning_text.delta",
    "response.reasoning.delta",
}
"""Pieces of content. The names of reasoning vary between servers."""
SILENT: Final = frozenset({"response.created", "response.queued", "response.in_progress", "response.content_part.added"})
"""Events without content; the first ones echo the whole request, so they are better not decoded."""


class Event(msgspec.Struct, gc=False):
    """What a delta says, and of what. Servers that leave out an index mean the first."""

    type: str = ""
    delta: str | None = None
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    item_id: str | None = None


decode_event = msgspec.json.Decoder(Event).decode
"""The fast path: raises ``msgspec.MsgspecError`` for anything that is not of the usual form."""


def read_object(payload: bytes) -> dict[str, Any] | None:
    """Read a JSON object of any form; ``None`` when it is none.

    Unlike the fast path this takes lone surrogates (left for the caller to clean), bytes that are not UTF-8, and NaN.
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def event_of(value: Mapping[str, Any]) -> Event:
    """The same as the fast path gives, of an object in an unusual form."""
    delta = value.get("delta")
    return Event(
        type=text_of(value.get("type")),
        delta=text_of(delta.get("text")) if isinstance(delta, dict) else text_of(delta),
        output_index=integer_of(value.get("output_index")),
        content_index=integer_of(value.get("content_index")),
        summary_index=integer_of(value.get("summary_index")),
        item_id=text_of(value.get("item_id")),
    )


def text_of(value: object) -> str:
    """Strings as they are, numbers as text (some servers number their calls), empty for all else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def integer_of(value: object) -> int:
    """Whole numbers in any notation, zero for all else."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS else 0
    if isinstance(value, float):
        return int(value) if abs(value) < 10.0**_MAX_DIGITS else 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def objects_of(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def parts_of(item: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """The parts of a message item as (is a refusal, text)."""
    content = item.get("content")
    return [(False, content)] if isinstance(content, str) else [part_of(part) for part in objects_of(content)]


def part_of(part: Mapping[str, Any]) -> tuple[bool, str]:
    """A content part as (is a refusal, text)."""
    refused = part.get("type") == "refusal"
    return refused, text_of(part.get("refusal" if refused else "text"))


def reasoning_of(item: Mapping[str, Any]) -> str:
    """The readable text of a reasoning item: the reasoning itself, or else its summary."""
    for key, separator in (("content", ""), ("summary", "\n\n")):
        texts = [text_of(part.get("text")) for part in objects_of(item.get(key))]
        if any(texts):
            return separator.join(texts)
    return ""


def replay_of(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """A reasoning item as it is to be sent back, ``None`` for one that cannot be. Its id means nothing where no response is stored."""
    if not text_of(item.get("encrypted_content")):
        return None
    kept: dict[str, Any] = clean_json({key: value for key, value in item.items() if key not in ("id", "status") and value is not None})
    return {"summary": [], **kept}


def arguments_of(value: object) -> str:
    """Arguments as text, which some servers give as an object."""
    return canonical_json(value) if isinstance(value, dict | list) else text_of(value)


def usage_of(value: Mapping[str, Any]) -> Usage:
    """Tokens used, as the rest of the service counts."""
    given, made = value.get("input_tokens_details"), value.get("output_tokens_details")
    return Usage(
        input_tokens=integer_of(value.get("input_tokens")),
        output_tokens=integer_of(value.get("output_tokens")),
        cached_input_tokens=integer_of(given.get("cached_tokens")) if isinstance(given, dict) else 0,
        reasoning_tokens=integer_of(made.get("reasoning_tokens")) if isinstance(made, dict) else 0,
    )
