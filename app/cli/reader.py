"""Writes a turn's events to a terminal: text flows, everything else is a line."""

import shutil
import sys
import textwrap

from app.cli.sse import Event

_MAX_WIDTH = 80
_INDENT = "   "


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
            print(_wrapped(f"[{event.seq}] {event.type}  {line}".rstrip(), self._width, "      "), flush=True)

    def _line(self, event: Event) -> str | None:
        data = event.data
        match event.type:
            case "turn.started" | "turn.resumed":
                return f"{data['route']['provider']}, model {data['route']['model']}"
            case "tool.started":
                self.tools.append(str(data["name"]))
                return f"{data['name']} {data['arguments']}"
            case "tool.completed":
                return f"{data['name']} -> {data['output']}"
            case "iteration.started" | "message.completed":
                return None  # the text was shown already
            case "turn.completed" | "turn.interrupted":
                usage = data["usage"]
                return f"{data['reason']}; {usage['input_tokens']} tokens in, {usage['output_tokens']} out"
            case "turn.failed":
                return f"{data['reason']}: {data['error']['detail']}"
            case "attempt.failed":
                return f"{data['reason']}: {data['message']}"
            case _:
                return ""

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
