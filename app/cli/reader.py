"""Writes a turn's events to a terminal: text flows, everything else is a line."""

import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from app.cli.sse import Event

_MAX_WIDTH = 80
_MAX_LINE = 200
_INDENT = "   "


def _route(data: dict[str, Any]) -> str:
    return f"{data['route']['provider']}, model {data['route']['model']}"


def _end(data: dict[str, Any]) -> str:
    return f"{data['reason']}; {data['usage']['input_tokens']} tokens in, {data['usage']['output_tokens']} out"


_TOLD: dict[str, Callable[[dict[str, Any]], str]] = {
    "turn.started": _route,
    "turn.resumed": _route,
    "tool.started": lambda data: f"{data['name']} {data['arguments']}",
    "tool.completed": lambda data: f"{data['name']} -> {data['output']}",
    "attempt.failed": lambda data: f"{data['reason']}: {data['message']}",
    "turn.completed": _end,
    "turn.interrupted": _end,
    "turn.failed": lambda data: f"{data['reason']}: {data['error']['detail']}",
}


class Reader:
    """Shows one turn after the other. ``tools`` are the names of the tools that the present turn called."""

    def __init__(self) -> None:
        self.tools: list[str] = []
        self._width = min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns) - 1
        self._column = 0
        self._word = ""

    def begin(self, question: str) -> None:
        """A turn is posted."""
        self.tools = []
        print(_wrapped(f"you: {question}", self._width, ""))

    def note(self, text: str) -> None:
        """A line about what the demo itself does."""
        self._end_text()
        print(_wrapped(f"** {text}", self._width, "   "), flush=True)

    def show(self, event: Event) -> None:
        """Show one event."""
        if event.type in {"message.delta", "reasoning.delta"}:
            self._flow(str(event.data["text"]))
            return
        line = self._line(event)
        if line is not None:
            self._end_text()
            line = textwrap.shorten(line, _MAX_LINE, placeholder=" ...")
            print(_wrapped(f"[{event.seq}] {event.type}  {line}".rstrip(), self._width, "      "), flush=True)

    def _line(self, event: Event) -> str | None:
        """What to say of an event beside its type; ``None`` when its text was shown already."""
        if event.type in {"iteration.started", "message.completed"}:
            return None
        if event.type == "tool.started":
            self.tools.append(str(event.data["name"]))
        told = _TOLD.get(event.type)
        return "" if told is None else told(event.data)

    def _flow(self, text: str) -> None:
        """Write text word by word, so that no word is cut at the right edge."""
        for character in text:
            if character.isspace():
                self._put_word()
                if character == "\n":
                    self._end_line()
            else:
                self._word += character
        sys.stdout.flush()

    def _put_word(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        if self._column and self._column + 1 + len(word) > self._width:
            self._end_line()
        lead = " " if self._column else _INDENT
        sys.stdout.write(lead + word)
        self._column += len(lead) + len(word)

    def _end_line(self) -> None:
        if self._column:
            sys.stdout.write("\n")
        self._column = 0

    def _end_text(self) -> None:
        self._put_word()
        self._end_line()


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
