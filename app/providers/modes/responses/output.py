"""What a response says, heard once.

The same text comes up to five times: in deltas, at the end of its part, its content part and its item, and in the whole response. Servers
may leave out any of these. The first to tell a part counts; what the whole response has beyond all that was told is added.
"""

from collections.abc import Mapping
from typing import Any

from app.domain.model import Delta
from app.providers.modes.responses.calls import Calls
from app.providers.modes.responses.events import SUMMARY_DELTAS, Event, objects_of, parts_of, reasoning_of, replay_of
from app.providers.reply_text import ReplyText


class Output:
    """Collects the output of one response."""

    __slots__ = ("_place", "_raw", "_thoughts", "_told", "calls", "refused", "replay", "said")

    def __init__(self, attempt: int) -> None:
        self.said = ReplyText(attempt)
        self.calls = Calls()
        self.replay: list[dict[str, Any]] = []
        self.refused = False
        self._raw: list[str] = []
        """The text as it came, in order."""
        self._place: tuple[int, int] | None = None
        """Where the last piece of text belongs: item and part."""
        self._told: set[tuple[int, int]] = set()
        self._thoughts: dict[int, tuple[bool, int]] = {}
        """Of each reasoning item: whether its summary was told or the reasoning itself, and which part last."""

    def add_text(self, event: Event, piece: str, deltas: list[Delta]) -> None:
        """Take a non-empty piece of text."""
        place = (event.output_index, event.content_index)
        if place != self._place:
            self._place = place
            self._told.add(place)
        self._raw.append(piece)
        self.said.add(piece, deltas)

    def add_refusal(self, event: Event, piece: str, deltas: list[Delta]) -> None:
        """Take a piece of a refusal."""
        self._told.add((event.output_index, event.content_index))
        self._refuse(piece, deltas)

    def add_reasoning(self, event: Event, piece: str, deltas: list[Delta]) -> None:
        """Take a piece of reasoning. Some servers tell an item's reasoning and its summary: the first one counts."""
        is_summary = event.type in SUMMARY_DELTAS
        known, part = self._thoughts.get(event.output_index, (is_summary, event.summary_index))
        if known is not is_summary:
            return
        self._thoughts[event.output_index] = is_summary, event.summary_index
        self.said.add_reasoning(piece if part == event.summary_index else f"\n\n{piece}", deltas)

    def add_part(self, place: tuple[int, int], part: tuple[bool, str], deltas: list[Delta]) -> bool:
        """Take a whole part, unless it was told already; true when it was not."""
        refused, text = part
        if not text or place in self._told or self._was_told(text):
            return False
        self._told.add(place)
        if refused:
            self._refuse(text, deltas)
        else:
            self._raw.append(text)
            self.said.add(text, deltas)
        return True

    def add_item(self, place: int, item: Mapping[str, Any], deltas: list[Delta]) -> bool:
        """Take a whole item; true when it told anything new."""
        match item.get("type"):
            case "message":
                return self._add_message(place, item, deltas)
            case "function_call":
                self.calls.end(place, item)
                return True
            case "reasoning":
                text = "" if place in self._thoughts else reasoning_of(item)
                self._thoughts.setdefault(place, (True, 0))
                self.said.add_reasoning(text, deltas)
                return self._keep(item) or bool(text)
            case _:
                return False

    def complete(self, output: object, deltas: list[Delta]) -> None:
        """Take the output of the whole response."""
        items = objects_of(output)
        thoughts = [item for item in items if item.get("type") == "reasoning"]
        if not self.said.has_reasoning:
            for item in thoughts:
                self.said.add_reasoning(reasoning_of(item), deltas)
        if not self.replay:
            for item in thoughts:
                self._keep(item)
        self.calls.complete([item for item in items if item.get("type") == "function_call"])
        self._add_rest([part for item in items if item.get("type") == "message" for part in parts_of(item)], deltas)

    def _add_rest(self, parts: list[tuple[bool, str]], deltas: list[Delta]) -> None:
        told = "".join(self._raw)
        for refused, text in parts:
            if told.startswith(text):
                told = told[len(text) :]
                continue
            if not text.startswith(told):
                return  # told differently: what was shown stands
            rest, told = text[len(told) :], ""
            if refused:
                self._refuse(rest, deltas)
            else:
                self.said.add(rest, deltas)

    def _add_message(self, place: int, item: Mapping[str, Any], deltas: list[Delta]) -> bool:
        parts = parts_of(item)
        whole = "".join(text for _, text in parts)
        if not whole or self._was_told(whole):
            return False
        told = [self.add_part((place, number), part, deltas) for number, part in enumerate(parts)]
        return any(told)

    def _was_told(self, text: str) -> bool:
        """Whether ``text`` came last, be it under another place: some servers count differently from event to event."""
        return "".join(self._raw).endswith(text)

    def _refuse(self, text: str, deltas: list[Delta]) -> None:
        self.refused = True
        self._raw.append(text)
        self.said.add_visible(text, deltas)

    def _keep(self, item: Mapping[str, Any]) -> bool:
        """Keep an item that can be sent back; true for one that was not kept yet."""
        kept = replay_of(item)
        if kept is None or any(kept["encrypted_content"] == other["encrypted_content"] for other in self.replay):
            return False
        self.replay.append(kept)
        return True
