"""Reasoning that a model writes into its visible text, between ``<think>`` and ``</think>`` or tags of a like name.

Only a tag at the very start opens reasoning: later ones are text, for example a model that writes about such tags. Tags may be split over
any number of pieces.
"""

import enum
from typing import Final

_NAMES: Final = ("think", "thinking", "thought", "reasoning", "REASONING_SCRATCHPAD")
_TAGS: Final = tuple((f"<{name}>", f"</{name}>") for name in _NAMES)


class _State(enum.Enum):
    START = 0
    INSIDE = 1
    AFTER = 2
    TEXT = 3


class ThinkTags:
    """Divides a stream of text pieces into reasoning and visible text."""

    __slots__ = ("_close", "_held", "_state")

    def __init__(self) -> None:
        self._state = _State.START
        self._held = ""
        self._close = ""
        """The tag that ends the reasoning, once it has begun."""

    @property
    def settled(self) -> bool:
        """Whether everything that follows is visible text."""
        return self._state is _State.TEXT

    @property
    def unclosed(self) -> bool:
        """Whether reasoning was opened and not closed yet."""
        return self._state is _State.INSIDE

    def split(self, text: str) -> tuple[str, str]:
        """Return (reasoning, visible) of what can be told so far; a possible piece of a tag is held back."""
        if self._state is _State.START:
            text = self._start(text)
        reasoning = ""
        if self._state is _State.INSIDE:
            reasoning, text = self._inside(text)
        if self._state is _State.AFTER:
            text = text.lstrip()
            if text:
                self._state = _State.TEXT
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """Return what was held back when the stream ended."""
        held, self._held = self._held, ""
        return (held, "") if self._state is _State.INSIDE else ("", held)

    def _start(self, text: str) -> str:
        text = self._held + text
        begin = text.lstrip()
        for opening, closing in _TAGS:
            if begin.startswith(opening):
                self._held = ""
                self._close = closing
                self._state = _State.INSIDE
                return begin[len(opening) :]
        if any(opening.startswith(begin) for opening, _ in _TAGS):
            self._held = text
            return ""
        self._held = ""
        self._state = _State.TEXT
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        text = self._held + text
        self._held = ""
        reasoning, close, visible = text.partition(self._close)
        if close:
            self._state = _State.AFTER
            return reasoning, visible
        for size in range(min(len(self._close) - 1, len(text)), 0, -1):
            if self._close.startswith(text[-size:]):
                self._held = text[-size:]
                return text[:-size], ""
        return text, ""
