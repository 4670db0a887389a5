"""The grammar of directives: `key=value` words in a message or after the colon of a model name."""

import json
import re
from collections.abc import Iterator
from typing import Any

from app.simulator.script import ScriptError

_START, _END = "[[sim", "]]"
_OPENING = re.compile(r"\[\[sim(?=\s|\]\])")
_GAP = re.compile(r"[\s,]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_BARE_VALUE = re.compile(r"[^\s,\]]+")
_JSON = json.JSONDecoder()

Fields = dict[str, Any]
"""Keys of one directive with their values: str for a bare word, a JSON value, True for a flag."""


def parse_words(text: str) -> Fields:
    """Read `key=value key="text" key={json} flag` (separated by blanks or commas).

    Raises:
        ScriptError: for anything else.
    """
    fields, end = _words(text, 0)
    if end != len(text):
        raise ScriptError(f"cannot read {text[end : end + 20]!r} in a directive")
    return fields


def last_directive(text: str) -> str | None:
    """Return the words inside the last `[[sim ...]]` of a message, or None.

    The last one counts because neighbouring user messages may have been joined.

    Raises:
        ScriptError: when a directive is opened but cannot be read.
    """
    found = None
    for start, end in _directives(text):
        found = text[start + len(_START) : end - len(_END)]
    return found


def without_directives(text: str) -> str:
    """Return the message as a person wrote it, without its (readable) directives."""
    kept, position = [], 0
    for start, end in _directives(text):
        kept.append(text[position:start])
        position = end
    kept.append(text[position:])
    return "".join(kept).strip()


def _directives(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        _, end = _words(text, opening.end())
        if not text.startswith(_END, end):
            raise ScriptError(f"cannot read {text[end : end + 20]!r} in a directive")
        position = end + len(_END)
        yield opening.start(), position


def _words(text: str, position: int) -> tuple[Fields, int]:
    fields: Fields = {}
    while True:
        position = _skip(_GAP, text, position)
        word = _KEY.match(text, position)
        if word is None:
            return fields, position
        if word.group() in fields:
            raise ScriptError(f"{word.group()} is given twice")
        position = word.end()
        value: object = True
        if text.startswith("=", position):
            value, position = _value(text, position + 1)
        fields[word.group()] = value


def _value(text: str, position: int) -> tuple[object, int]:
    if text[position : position + 1] in {'"', "{", "["}:
        try:
            return _JSON.raw_decode(text, position)
        except ValueError as error:
            raise ScriptError(f"bad JSON in a directive: {error}") from None
    bare = _BARE_VALUE.match(text, position)
    if bare is None:
        raise ScriptError(f"a value is missing before {text[position : position + 20]!r}")
    return bare.group(), bare.end()


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()
