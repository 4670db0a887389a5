"""Answers as bytes and times: what a script was turned into, and what the player plays."""

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import assert_never

import msgspec

from app.simulator.script import RawEnd, RawScript

NUMBER_MARK = b"~sim-number~"
"""Stands in prepared bytes for the 12 characters that make ids unique; the player fills it in."""

LAST_CHUNK = b"0\r\n\r\n"


class Ending(StrEnum):
    """What the server does after the last piece."""

    COMPLETE = "complete"
    CLOSE = "close"
    RESET = "reset"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Bytes sent again and again, every `every_s`, until the client goes."""

    data: bytes
    every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Bytes of one HTTP response in order.

    `head` leaves after `head_s`; piece n leaves `gaps_s[n]` after the piece before it, as one
    write. `is_fault` says how the log calls the end when the client stays to see it.
    """

    status: int | None
    head: bytes
    head_s: float = 0.0
    pieces: tuple[bytes, ...] = ()
    gaps_s: tuple[float, ...] = ()
    ending: Ending = Ending.COMPLETE
    repeat: Repeat | None = None
    is_fault: bool = False


def chunk(data: bytes) -> bytes:
    """Wrap bytes as one chunk of HTTP/1.1 chunked transfer encoding (RFC 9112, 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: int, content_type: str, headers: tuple[tuple[str, str], ...] = (), *, length: int | None) -> bytes:
    """Encode status line and headers; `length` None announces a chunked body."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}"]
    given = {name.lower() for name, _ in headers}
    if "content-type" not in given:
        lines.append(f"content-type: {content_type}")
    lines.append(f"x-request-id: req_{NUMBER_MARK.decode()}")
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines.extend(f"{name}: {_one_line(value)}" for name, value in headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def whole_reply(
    status: int, body: bytes, *, content_type: str = "application/json", headers: tuple[tuple[str, str], ...] = (), is_fault: bool = False
) -> Reply:
    """Make a reply with a body that is known at once."""
    start = head(status, content_type, headers, length=len(body))
    return Reply(status=status, head=start, pieces=(body,), gaps_s=(0.0,), is_fault=is_fault)


def json_reply(status: int, value: object) -> Reply:
    """Make a reply of a JSON value."""
    return whole_reply(status, msgspec.json.encode(value))


def raw_reply(raw: RawScript) -> Reply:
    """Make a reply of a hand-made body: one HTTP chunk and one write per piece."""
    pieces = [chunk(piece.data) for piece in raw.pieces if piece.data]
    gaps = [piece.pause_s for piece in raw.pieces if piece.data]
    match raw.end:
        case RawEnd.COMPLETE:
            pieces.append(LAST_CHUNK)
            gaps.append(0.0)
            ending = Ending.COMPLETE
        case RawEnd.CLOSE:
            ending = Ending.CLOSE
        case RawEnd.RESET:
            ending = Ending.RESET
        case RawEnd.HOLD:
            ending = Ending.HOLD
        case _:
            assert_never(raw.end)
    return Reply(
        status=raw.status,
        head=head(raw.status, raw.content_type, raw.headers, length=None),
        pieces=tuple(pieces),
        gaps_s=tuple(gaps),
        ending=ending,
        is_fault=ending is not Ending.COMPLETE,
    )


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")
