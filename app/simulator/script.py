"""What a scripted answer says: plain values, made by tests or read from directives."""

from dataclasses import dataclass
from enum import StrEnum

MAX_TOKENS = 100_000
"""Longest scripted text or reasoning, in tokens: the bytes of one answer are held in memory."""


class ScriptError(ValueError):
    """A directive or a JSON script that cannot be understood; the text says which key and why."""


class StreamFaultKind(StrEnum):
    """What goes wrong once the answer has begun; the value is the key of the directive."""

    STALL = "stall_after"
    COMMENTS = "comments_after"
    EMPTY_DELTAS = "empty_deltas_after"
    CUT = "cut_after"
    DROP = "drop_after"
    RESET = "reset_after"
    GARBAGE = "garbage_after"
    ERROR = "error_after"
    NO_DONE = "no_done"
    NO_FINISH = "no_finish"
    EMPTY = "empty"


class ConnectionFaultKind(StrEnum):
    """What goes wrong before any byte of an answer; the value is the key of the directive."""

    HANGUP = "hangup"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """The parts of a provider's error object; None takes the default of the status."""

    message: str | None = None
    code: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFault:
    """The whole answer is an HTTP response that is no completion.

    `body` None stands for the provider's own error object, made from `error`.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    content_type: str = "application/json"
    error: ErrorText = ErrorText()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFault:
    """A fault after `after` tokens (deltas of any kind); `every_s` paces what is repeated."""

    kind: StreamFaultKind
    after: int = 0
    every_s: float = 1.0
    error: ErrorText = ErrorText()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFault:
    """A fault instead of an answer."""

    kind: ConnectionFaultKind


Fault = HttpFault | StreamFault | ConnectionFault


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """One tool call; `arguments` goes out as it is, so it may be invalid JSON on purpose."""

    name: str
    arguments: str = "{}"
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One scripted answer. The package docstring explains every field under its directive key."""

    text: str | None = None
    tokens: int | None = None
    reasoning_tokens: int = 0
    refusal: str | None = None
    preamble: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    rounds: int = 1
    argument_pieces: int = 1
    finish: str | None = None
    usage: tuple[int, int] | None = None
    headers_s: float = 0.0
    first_s: float = 0.0
    pace_s: float = 0.0
    fault: Fault | None = None
    fault_times: int | None = None
    strict: bool = False
    picky: bool = False


class RawEnd(StrEnum):
    """How a raw answer ends: properly, connection closed, connection reset, or never."""

    COMPLETE = "complete"
    CLOSE = "close"
    RESET = "reset"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPiece:
    """Bytes of a response body that leave as one HTTP chunk, `pause_s` after the piece before."""

    data: bytes
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawScript:
    """A hand-made response body, sent byte for byte whatever the request was."""

    pieces: tuple[RawPiece, ...]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()
    end: RawEnd = RawEnd.COMPLETE


def raw_script(data: bytes, *, piece_bytes: int | None = None, pause_s: float = 0.0, end: RawEnd = RawEnd.COMPLETE) -> RawScript:
    """Make a raw script of `data`, cut into pieces of `piece_bytes` (None: one piece)."""
    size = piece_bytes or max(len(data), 1)
    pieces = tuple(RawPiece(data=data[at : at + size], pause_s=pause_s) for at in range(0, len(data), size))
    return RawScript(pieces=pieces, end=end)
