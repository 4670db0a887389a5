"""Reading what a provider says in an error: codes, statuses, text and times, in whatever shape and however deep.

Known shapes: ``{"error": {…}}``, ``{"error": "…"}``, ``{"error": {"error": {…}}}``, ``{"detail": …}``, a list of one, JSON in a string,
plain text, and an aggregator's wrapping of what its upstream said (``metadata.raw``). Markup says nothing: it comes from a machine between.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from app.providers.redact import is_markup

_CODE_KEYS: Final = ("code", "type", "status", "reason", "error_code", "error_type", "__type")
_STATUS_KEYS: Final = ("code", "status", "status_code", "error_code", "statusCode")
_INNER_KEYS: Final = (
    *("error", "errors", "message", "Message", "detail", "details", "msg", "error_message", "error_msg", "status_msg"),
    *("innererror", "metadata", "raw", "response", "base_resp"),
)
"""What holds an error or its text."""
_WINDOW_KEYS: Final = ("n_ctx",)
_WAIT_KEYS: Final = ("retryDelay", "retry_after", "retry_after_seconds", "resets_in_seconds", "resets_at")
_MAX_DEPTH: Final = 6
_MAX_ITEMS: Final = 8
_MAX_DIGITS: Final = 15
_MAX_TEXT: Final = 4_000
"""Characters: what is longer echoes the request."""
_ERROR_STATUSES: Final = range(400, 600)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says in an error, the outermost first."""

    codes: tuple[str, ...] = ()
    """As written."""
    statuses: tuple[int, ...] = ()
    """Error statuses named in the body."""
    text: str = ""
    waits: tuple[str, ...] = ()
    """When to come back, as written: durations, seconds or moments."""
    headers: Mapping[str, str] = {}
    """Headers that an aggregator reports within the body; names in lower case."""
    window: int | None = None
    """The size of the context, where a field names it."""
    upstream: bool = False
    """An aggregator passes on what the provider behind it said: accounts in it are not ours."""
    markup: bool = False


def read_body(body: bytes) -> Said:
    """Read the body of an error response."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").strip()
    return read_error(_parsed(text) if text[:1] in {"{", "[", '"'} else text)


def read_error(value: object) -> Said:
    """Read an error as decoded JSON, of any type. Never raises."""
    if isinstance(value, str) and is_markup(value):
        return Said(markup=True)
    nodes = list(_walk(value, 0))
    objects = [node for node in nodes if isinstance(node, dict)]
    texts = dict.fromkeys(node for node in nodes if isinstance(node, str) and not is_markup(node))
    wrapped = [node["metadata"] for node in objects if isinstance(node.get("metadata"), dict)]
    upstream = any("raw" in metadata or "provider_name" in metadata for metadata in wrapped)
    return Said(
        codes=tuple(node[key] for node in objects for key in _CODE_KEYS if isinstance(node.get(key), str)),
        statuses=tuple(status for node in nodes for status in _statuses(node)),
        text=" ".join(texts)[:_MAX_TEXT],
        waits=tuple(str(node[key]) for node in objects for key in _WAIT_KEYS if _is_scalar(node.get(key))),
        headers={str(name).lower(): str(value) for metadata in wrapped for name, value in _object(metadata.get("headers")).items()},
        window=next((node[key] for node in objects for key in _WINDOW_KEYS if type(node.get(key)) is int), None),
        upstream=upstream,
    )


def _walk(value: object, depth: int) -> Iterator[object]:
    """Every object, string and number that is part of the error itself."""
    if isinstance(value, str):
        inner = _parsed(value) if value.lstrip()[:1] in {"{", "["} else value
        if isinstance(inner, str):
            yield inner
            return
        value = inner
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value[:_MAX_ITEMS]:
            yield from _walk(item, depth + 1)
        return
    yield value
    if isinstance(value, dict):
        for key in _INNER_KEYS:
            if key in value:
                yield from _walk(value[key], depth + 1)


def _statuses(node: object) -> Iterator[int]:
    for value in [node.get(key) for key in _STATUS_KEYS] if isinstance(node, dict) else [node]:
        number = int(value) if isinstance(value, str) and _is_digits(value) else value
        if isinstance(number, int) and number in _ERROR_STATUSES:
            yield number


def _is_digits(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()


def _parsed(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
