"""An incremental decoder of Server-Sent Events over bytes.

Bytes are cut into lines and events before anything is decoded, so a character split over two reads is never damaged. The usual
forms, whole ``data: {…}`` lines separated by blank lines, with ``event: …`` lines before them or not, take a path of a few C calls per
event; everything else the format allows (CRLF, lone CR, no space after the colon, comments, several data lines, a byte order mark)
takes the line by line path.
"""

from typing import Final

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""An event larger than this is a fault of the sender."""

_BOM: Final = b"\xef\xbb\xbf"


class EventTooLargeError(Exception):
    """The sender's event does not end within :data:`MAX_EVENT_BYTES`."""


class SseDecoder:
    """Turns reads of any size into event payloads. Comments and events without data give nothing."""

    __slots__ = ("_at_start", "_lines", "_partial", "_size", "_skip_newline")

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._partial: list[bytes] = []
        self._size = 0
        self._skip_newline = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads of the events that ``data`` completes: their data lines, joined by newlines.

        Raises EventTooLargeError.
        """
        events: list[bytes] = []
        if self._partial or self._lines or self._skip_newline:
            data = self._resume(data, events)
        if b"\r" in data:
            self._take(data, events)
            return events
        head, separator, tail = data.rpartition(b"\n\n")
        if separator:
            if head.startswith(b"data: "):
                payloads = head[6:].split(b"\n\ndata: ")
                if head.count(b"\n") == 2 * (len(payloads) - 1):
                    events += payloads
                    head = b""
            for block in head.split(b"\n\n") if head else ():
                payload = _payload(block)
                if payload is not None:
                    events.append(payload)
                else:
                    self._take(block + b"\n\n", events)
        if tail:
            self._take(tail, events)
        return events

    def finish(self) -> list[bytes]:
        """Return the payload of an event that the end of the stream cut off before its blank line, if it has one."""
        events: list[bytes] = []
        if self._partial:
            self._line(b"", events)
        self._dispatch(events)
        return events

    def _resume(self, data: bytes, events: list[bytes]) -> bytes:
        """Complete the open event line by line; return what follows it."""
        end = -1 if b"\r" in data else data.find(b"\n\n")
        if end < 0:
            self._take(data, events)
            return b""
        self._take(data[: end + 2], events)
        return data[end + 2 :]

    def _take(self, data: bytes, events: list[bytes]) -> None:
        if self._skip_newline and data:
            self._skip_newline = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skip_newline = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        for line in lines:
            self._line(line, events)
        if rest:
            self._partial.append(rest)
            self._grow(len(rest))

    def _line(self, line: bytes, events: list[bytes]) -> None:
        """Take one complete line (without what ``_partial`` holds of its beginning)."""
        if self._partial:
            self._partial.append(line)
            line = b"".join(self._partial)
            self._partial.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
        elif line.startswith(b"data:"):
            self._lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._grow(len(line))

    def _dispatch(self, events: list[bytes]) -> None:
        if self._lines:
            events.append(self._lines[0] if len(self._lines) == 1 else b"\n".join(self._lines))
            self._lines.clear()
        self._size = 0

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLargeError


def _payload(block: bytes) -> bytes | None:
    """The payload of an event in a usual form: one data line, alone or behind its name."""
    head, named, payload = block.partition(b"\ndata: ")
    if not named:
        return block[6:] if block.startswith(b"data: ") and b"\n" not in block else None
    return payload if head.startswith(b"event: ") and b"\n" not in head and b"\n" not in payload else None
