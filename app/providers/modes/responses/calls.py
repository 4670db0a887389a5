"""Function calls of a response, put together from the events that speak of them."""

from collections.abc import Mapping
from typing import Any

from app.domain.messages import ToolCall
from app.providers.modes.responses.events import arguments_of, text_of
from app.providers.tool_calls import ToolCallAssembly


class _Call:
    __slots__ = ("begun", "closed", "id", "name", "pieces", "whole")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.begun = ""
        """Arguments that came with the call's announcement."""
        self.pieces: list[str] = []
        self.whole = ""
        """Arguments that came in one."""
        self.closed = False

    def learn(self, item: Mapping[str, Any]) -> None:
        self.id = self.id or _call_id(item)
        self.name = self.name or text_of(item.get("name"))

    def close(self, item: Mapping[str, Any]) -> None:
        self.learn(item)
        self.whole = arguments_of(item.get("arguments")) or self.whole
        self.closed = True

    @property
    def arguments(self) -> str:
        return self.whole or "".join(self.pieces) or self.begun


class Calls:
    """Collects calls in the order in which they began.

    A piece belongs to the item that it names, or else to the latest at its place in the output: some servers change an item's id with
    every event, others give every call the same place.
    """

    __slots__ = ("_by_item", "_by_place", "_calls")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_item: dict[str, _Call] = {}
        self._by_place: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def size(self) -> int:
        """Characters of names and arguments so far."""
        return sum(len(call.name) + len(call.arguments) for call in self._calls)

    def begin(self, place: int, item: Mapping[str, Any]) -> None:
        """A call is announced."""
        call = self._by_place.get(place)
        if call is None or call.closed or (call.id and call.id != _call_id(item)):
            call = self._new(place)
        call.learn(item)
        call.begun = arguments_of(item.get("arguments"))
        item_id = text_of(item.get("id"))
        if item_id:
            self._by_item[item_id] = call

    def add(self, place: int, item_id: str | None, piece: str) -> None:
        """Take a piece of a call's arguments."""
        call = self._by_item.get(item_id or "") or self._by_place.get(place) or self._new(place)
        call.pieces.append(piece)

    def set_arguments(self, place: int, item_id: str, arguments: str) -> None:
        """Take a call's arguments as a whole."""
        call = self._by_item.get(item_id) or self._by_place.get(place) or self._new(place)
        call.whole = arguments or call.whole

    def end(self, place: int, item: Mapping[str, Any]) -> None:
        """Take a whole call."""
        call_id = _call_id(item)
        call = self._open(call_id) or self._by_item.get(text_of(item.get("id"))) or self._by_place.get(place)
        if call is None or (call.closed and call.id != call_id):
            call = self._new(place)
        call.close(item)

    def complete(self, items: list[dict[str, Any]]) -> None:
        """Take the calls of a whole response: all of them when none was heard of, else what was missing of those."""
        unheard = not self._calls
        for place, item in enumerate(items):
            call = self._new(place) if unheard else self._open(_call_id(item))
            if call is not None:
                call.close(item)

    def finish(self, seed: str) -> tuple[tuple[ToolCall, ...], dict[str, str]]:
        """As :meth:`app.providers.tool_calls.ToolCallAssembly.finish`."""
        assembly = ToolCallAssembly()
        for number, call in enumerate(self._calls):
            assembly.add(number, call_id=call.id, name=call.name, arguments=call.arguments)
        return assembly.finish(seed)

    def _new(self, place: int) -> _Call:
        call = _Call()
        self._calls.append(call)
        self._by_place[place] = call
        return call

    def _open(self, call_id: str) -> _Call | None:
        """The first call of this id that was not told as a whole yet; ids may repeat."""
        return next((call for call in self._calls if call.id == call_id and not call.closed), None) if call_id else None


def _call_id(item: Mapping[str, Any]) -> str:
    """What a result will name; servers that know no other id than the item's mean that one."""
    return text_of(item.get("call_id")) or text_of(item.get("id"))
