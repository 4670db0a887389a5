"""Tool calls put together from the fragments that providers stream, with their many ways to say which call a fragment belongs to."""

import hashlib
import json
from typing import Any, Final

import msgspec

from app.domain.messages import ToolCall, canonical_json, clean_json, clean_text

_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])


class _OpenCall:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def is_another(self, call_id: str, name: str, arguments: str) -> bool:
        """Whether a fragment that names this call's place is the beginning of another call.

        Some servers use one index for every call, some give no ids: a new id, a new name behind arguments, or a second JSON object tell.
        """
        if call_id and self.id:
            return call_id != self.id
        if not name or not self.name:
            return False
        if name != self.name and self.arguments:
            return True
        return arguments.startswith("{") and is_json_object("".join(self.arguments))

    def add(self, call_id: str, name: str, arguments: str) -> None:
        self.id = self.id or call_id
        if name and name != self.name:
            self.name += name
        if arguments:
            self.arguments.append(arguments)


class ToolCallAssembly:
    """Collects fragments of tool calls, in the order in which the calls began."""

    __slots__ = ("_by_index", "_calls")

    def __init__(self) -> None:
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def size(self) -> int:
        """Characters of names and arguments so far."""
        return sum(len(call.name) + sum(map(len, call.arguments)) for call in self._calls)

    def add(self, index: int | None, *, call_id: str, name: str, arguments: str) -> None:
        """Take one fragment. ``index`` is ``None`` when the provider gave none; empty strings stand for what a fragment lacks."""
        call = self._find(index, call_id, name)
        if call is None or call.is_another(call_id, name, arguments):
            call = _OpenCall()
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.add(call_id, name, arguments)

    def finish(self, seed: str) -> tuple[tuple[ToolCall, ...], dict[str, str]]:
        """Return the calls, and for those with unreadable arguments the reason by call id.

        Missing and repeated ids are replaced by ones derived from ``seed``, the place and the content of the call.
        """
        calls: list[ToolCall] = []
        bad: dict[str, str] = {}
        used: set[str] = set()
        for place, call in enumerate(self._calls):
            name = clean_text(call.name)
            raw = "".join(call.arguments)
            arguments, reason = read_arguments(raw)
            call_id = clean_text(call.id.strip())
            if not call_id or call_id in used:
                call_id = _mint_id(seed, place, name + raw)
            used.add(call_id)
            calls.append(ToolCall(id=call_id, name=name, arguments=arguments))
            if reason is not None:
                bad[call_id] = reason
        return tuple(calls), bad

    def _find(self, index: int | None, call_id: str, name: str) -> _OpenCall | None:
        if index is not None:
            return self._by_index.get(index)
        if call_id:
            known = next((call for call in self._calls if call.id == call_id), None)
            if known is not None or name:
                return known
        if not self._calls:
            return None
        last = self._calls[-1]
        return None if name and last.name and name != last.name else last


def is_json_object(text: str) -> bool:
    """Whether ``text`` is one complete JSON object."""
    try:
        _object_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return True


def read_arguments(text: str) -> tuple[str, str | None]:
    """Return arguments as the text of a valid JSON object, and the reason when they were not readable as one.

    Nothing at all means no arguments. A valid object is kept as it came, so that replays are byte for byte; one that needs cleaning (lone
    surrogates, NUL, NaN) or that was encoded twice is written anew.
    """
    text = clean_text(text)
    if not text.strip():
        return "{}", None
    return (text, None) if "\\u" not in text and is_json_object(text) else _repair_arguments(text)


def _repair_arguments(text: str) -> tuple[str, str | None]:
    try:
        value = json.loads(text, strict=False)
        if isinstance(value, str):
            value = json.loads(value, strict=False)
    except ValueError as error:
        return "{}", f"The arguments are not valid JSON: {error}"
    except RecursionError:
        return "{}", "The arguments are nested too deeply."
    if not isinstance(value, dict):
        return "{}", "The arguments are not a JSON object."
    if is_json_object(text) and clean_json(value) == value:
        return text, None
    return canonical_json(value), None


def _mint_id(seed: str, place: int, content: str) -> str:
    digest = hashlib.sha256(f"{seed}\n{place}\n{content}".encode("utf-8", "replace")).hexdigest()
    return f"call_{digest[:24]}"
