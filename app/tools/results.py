"""What a tool returned, as the text a model reads: JSON where it is not text, clean, and never longer than the cap."""

import inspect
from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec

from app.domain.guardrails import digest_of
from app.domain.messages import canonical_json, clean_text
from app.domain.tools import ToolOutcome

MAX_OUTPUT = 100_000
"""Characters of one result."""
MAX_KEPT = 4_000_000
"""Characters that are kept of a longer one, for people to read."""
_NOTE = 200
"""Characters for the note where the middle was. The end stays as well: there a long output has its error."""
NO_OUTPUT = "(no output)"

_BINARY = (bytes, bytearray, memoryview)


def outcome(value: object) -> ToolOutcome:
    """The outcome of a call that returned ``value``. Raises TypeError for what has no text, such as a generator."""
    if isinstance(value, ToolOutcome):
        return _outcome(value)
    return _outcome(ToolOutcome(output=_text(value)))


def _outcome(whole: ToolOutcome) -> ToolOutcome:
    if len(whole.output) <= MAX_OUTPUT:
        return msgspec.structs.replace(whole, output=_shown(whole.output), digest=None)
    kept = clean_text(_cut(whole.output, MAX_KEPT, "are not kept."))
    return msgspec.structs.replace(whole, output=_shown(whole.output), digest=digest_of(whole.output), whole=kept)


def _shown(text: str) -> str:
    return clean_text(_capped(text)) or NO_OUTPUT


def _capped(text: str) -> str:
    return _cut(text, MAX_OUTPUT, "are left out here. Ask for less or for a part to see the rest.")


def _cut(text: str, most: int, what: str) -> str:
    """``text`` with its middle left out where it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    head = most * 65 // 100
    tail = most - head - _NOTE
    return f"{text[:head]}\n\n[… {len(text) - head - tail:,} of {len(text):,} characters {what} …]\n\n{text[-tail:]}"


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return _placeholder(value)
        case _:
            return canonical_json(_plain(value))


def _placeholder(value: bytes | bytearray | memoryview) -> str:
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    return f"[binary data of {size:,} bytes, not shown; a tool returns text as str]"


def _plain(value: object) -> Any:
    """``value`` in JSON's types. NaN, NUL and surrogates are left to ``canonical_json``."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray() | memoryview():
            return _placeholder(value)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case Set():
            return sorted((_plain(item) for item in value), key=canonical_json)  # sets have no order that lasts
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            # Dates, decimals, UUIDs, enums, dataclasses and the like have a usual form; the hook sees the rest.
            return _plain(msgspec.to_builtins(value, builtin_types=_BINARY, str_keys=True, enc_hook=_foreign))


def _foreign(value: object) -> object:
    if isinstance(value, Iterator) or inspect.isasyncgen(value) or inspect.isawaitable(value):
        raise TypeError(f"the tool returned a {type(value).__name__}, which cannot be shown; return text or JSON values")
    dump = getattr(value, "model_dump", None)  # pydantic's models
    if callable(dump):
        return _plain(dump(mode="json"))
    if isinstance(value, Mapping | Set):
        return _plain(value)
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"  # object's own text is a memory address: different each time, of use to nobody
    return str(value)
