"""What the encoders of all API modes share: values made fit for any provider, and written as bytes that depend on nothing else."""

import re
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from app.domain.messages import Content, ToolCall, ToolSpec, clean_json, clean_text

_CACHED_TOOLSETS: Final = 64

encode_json: Final = msgspec.json.Encoder().encode
"""Compact JSON of a clean value."""
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_illegal_in_name: Final = re.compile(r"[^a-zA-Z0-9_-]")


@lru_cache(maxsize=1024)
def legal_tool_name(name: str) -> str:
    """Return ``name`` as every provider accepts it: ``^[a-zA-Z0-9_-]{1,64}$``. Models invent names, and replaying those must not fail."""
    return _illegal_in_name.sub("_", name)[:64] or "unnamed"


def is_object(text: str) -> bool:
    """Whether ``text`` is one complete JSON object."""
    try:
        _object_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return True


def encode_content(content: Content) -> bytes:
    """Write a text, or a list of content parts as they are, without what is no Unicode."""
    if isinstance(content, str):
        return encode_json(clean_text(content))
    try:
        return encode_json(content)
    except UnicodeError:
        return encode_json(clean_json(content))


class CallIds:
    """Gives every call of a history a unique, non-empty id on the wire, and each result the id of its call.

    Some servers repeat ids in every reply (``call_0``). Ids depend only on the messages before, so prefixes stay stable. ``legal`` makes an
    id fit for the protocol; what it returns may have a number added.
    """

    __slots__ = ("_legal", "_open", "_used")

    def __init__(self, legal: Callable[[str], str] = clean_text) -> None:
        self._legal = legal
        self._used: set[str] = set()
        self._open: dict[str, list[str]] = {}

    def of_calls(self, calls: tuple[ToolCall, ...]) -> list[str]:
        """The ids of an assistant message's calls, in their order."""
        self._open.clear()
        result = []
        for call in calls:
            wanted = self._legal(call.id) or "call"
            unique = wanted
            number = 2
            while unique in self._used:
                unique = f"{wanted}_{number}"
                number += 1
            self._used.add(unique)
            self._open.setdefault(call.id, []).append(unique)
            result.append(unique)
        return result

    def of_result(self, call_id: str) -> str:
        """The id under which the call that a result names was sent."""
        waiting = self._open.get(call_id)
        if not waiting:
            return self._legal(call_id)
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


class ToolsetEncoder:
    """Writes lists of tools in one mode's form. Each list is written once: the entry is found by the identity of its tuple."""

    __slots__ = ("_cache", "_form")

    def __init__(self, form: Callable[[ToolSpec], dict[str, Any]]) -> None:
        self._form = form
        self._cache: OrderedDict[int, tuple[tuple[ToolSpec, ...], bytes]] = OrderedDict()
        """The entry keeps its tuple alive, so that the identity stays its own."""

    def encode(self, tools: tuple[ToolSpec, ...]) -> bytes:
        """The JSON list, keys sorted."""
        cached = self._cache.get(id(tools))
        if cached is not None:
            self._cache.move_to_end(id(tools))
            return cached[1]
        encoded = _encode_sorted([self._form(tool) for tool in tools])
        self._cache[id(tools)] = (tools, encoded)
        if len(self._cache) > _CACHED_TOOLSETS:
            self._cache.popitem(last=False)
        return encoded
