"""From the fields of a directive (or of a JSON script) to a Script, with every error named."""

import base64
import binascii
import json
import re
from typing import Any

from app.simulator.directives import Fields, parse_words
from app.simulator.script import (
    MAX_TOKENS,
    ConnectionFault,
    ConnectionFaultKind,
    ErrorText,
    Fault,
    HttpFault,
    RawEnd,
    RawPiece,
    RawScript,
    Script,
    ScriptedCall,
    ScriptError,
    StreamFault,
    StreamFaultKind,
)

FINISHES = frozenset({"stop", "length", "content_filter", "tool_calls"})
_FLAGS = frozenset({"strict", "picky", "json_error", "hangup", "silent", "no_done", "no_finish", "empty"})
_HTML = "<!DOCTYPE html><html><head><title>{0}</title></head><body><h1>Error {0}</h1><p>Ray ID: 0123456789abcdef</p></body></html>"
_MAX_CALLS = 1_000
_USAGE_COUNTS = 2
_LOWEST_STATUS, _HIGHEST_STATUS = 200, 599
_BODILESS = frozenset({204, 304})
_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_MS = 3_600_000


def script_from_json(value: object) -> Script | RawScript:
    """Read one item of `POST /_simulator/scripts`: directive words, an object of keys, or a raw body.

    Raises:
        ScriptError: when it is none of them.
    """
    if isinstance(value, str):
        return script_from_fields(parse_words(value))
    if not isinstance(value, dict):
        raise ScriptError("a script is a string of directives or an object")
    if "raw" in value:
        return _raw_script(value)
    return script_from_fields(value)


def script_from_fields(fields: Fields) -> Script:
    """Build the script that the fields describe.

    Raises:
        ScriptError: for an unknown key, a bad value, or two faults at once.
    """
    reader = _Reader(fields)
    script = Script(
        text=reader.text("text"),
        refusal=reader.text("refusal"),
        preamble=reader.text("preamble") or "",
        tokens=reader.integer("tokens", most=MAX_TOKENS),
        reasoning_tokens=reader.integer("reasoning", most=MAX_TOKENS) or 0,
        calls=_calls(reader),
        rounds=reader.integer("rounds") or 1,
        argument_pieces=reader.integer("chunk_args") or 1,
        finish=_finish(reader),
        usage=_usage(reader),
        headers_s=reader.milliseconds("headers_ms"),
        first_s=reader.milliseconds("first_ms"),
        pace_s=reader.milliseconds("pace_ms"),
        fault=_fault(reader),
        fault_times=reader.integer("times"),
        strict=reader.flag("strict"),
        picky=reader.flag("picky"),
    )
    reader.refuse_leftovers()
    return script


def is_flag(word: str) -> bool:
    """Say whether a lone word is a key without a value (a model may be called `llama:8b`)."""
    return word in _FLAGS


class _Reader:
    """Typed access to fields; remembers which were used, so that no misspelt key passes."""

    def __init__(self, fields: Fields) -> None:
        self._left = dict(fields)

    def take(self, key: str) -> Any:
        return self._left.pop(key, None)

    def take_prefixed(self, prefix: str) -> list[tuple[str, str]]:
        keys = [key for key in self._left if key.startswith(prefix)]
        return [_header(key.removeprefix(prefix), self.take(key)) for key in keys]

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is None or isinstance(value, str):
            return value
        raise ScriptError(f"{key} must be text")

    def integer(self, key: str, *, most: int = 10**9) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise ScriptError(f"{key} must be a whole number from 0 to {most}")
        return value

    def milliseconds(self, key: str, missing: float = 0.0) -> float:
        value = self.take(key)
        if value is None:
            return missing / 1000
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ScriptError(f"{key} must be a number of milliseconds") from None
        if not 0 <= number <= _LONGEST_MS:
            raise ScriptError(f"{key} must be from 0 to {_LONGEST_MS} milliseconds")
        return number / 1000

    def flag(self, key: str) -> bool:
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise ScriptError(f"{key} takes no value")
        return value is True

    def status(self, key: str) -> int | None:
        value = self.integer(key)
        if value is not None and (not _LOWEST_STATUS <= value <= _HIGHEST_STATUS or value in _BODILESS):
            raise ScriptError(f"{key} must be a status from {_LOWEST_STATUS} to {_HIGHEST_STATUS} that has a body")
        return value

    def refuse_leftovers(self) -> None:
        if self._left:
            raise ScriptError(f"unknown key {', '.join(sorted(self._left))}")


def _header(name: str, value: object) -> tuple[str, str]:
    if _HEADER_NAME.fullmatch(name) is None or not isinstance(value, str):
        raise ScriptError(f"header {name!r} must be a name with text")
    return name, value


def _as_text(value: object) -> str:
    """Keep a string as it is (it may be broken on purpose) and write anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _finish(reader: _Reader) -> str | None:
    finish = reader.text("finish")
    if finish is not None and finish not in FINISHES:
        raise ScriptError(f"finish must be one of {', '.join(sorted(FINISHES))}")
    return finish


def _usage(reader: _Reader) -> tuple[int, int] | None:
    usage = reader.text("usage")
    if usage is None:
        return None
    counts = usage.split("/")
    if len(counts) != _USAGE_COUNTS or not all(count.isascii() and count.isdigit() for count in counts):
        raise ScriptError("usage must be IN/OUT")
    return int(counts[0]), int(counts[1])


def _calls(reader: _Reader) -> tuple[ScriptedCall, ...]:
    name, arguments, listed = reader.text("tool"), reader.take("args"), reader.take("calls")
    parallel = reader.integer("parallel", most=_MAX_CALLS)
    if listed is not None:
        if name is not None or arguments is not None or parallel is not None:
            raise ScriptError("calls stands alone: no tool, args or parallel beside it")
        return _listed_calls(listed)
    if name is None:
        if arguments is not None or parallel is not None:
            raise ScriptError("args and parallel need tool=NAME")
        return ()
    call = ScriptedCall(name=name, arguments="{}" if arguments is None else _as_text(arguments))
    return (call,) * (1 if parallel is None else parallel)


def _listed_calls(listed: object) -> tuple[ScriptedCall, ...]:
    if not isinstance(listed, list):
        raise ScriptError('calls must be a list of {"name": ..., "arguments": ...}')
    return tuple(_listed_call(item) for item in listed)


def _listed_call(item: object) -> ScriptedCall:
    reader = _Reader(item if isinstance(item, dict) else {})
    name, call_id, arguments = reader.text("name"), reader.text("id"), reader.take("arguments")
    reader.refuse_leftovers()
    if name is None:
        raise ScriptError("every item of calls must have a name")
    return ScriptedCall(name=name, arguments="{}" if arguments is None else _as_text(arguments), id=call_id)


def _fault(reader: _Reader) -> Fault | None:
    headers = reader.take_prefixed("header.")
    retry_after = reader.text("retry_after")
    if retry_after is not None:
        headers.append(("retry-after", retry_after))
    error = ErrorText(message=reader.text("error_message"), code=reader.text("error_code"), type=reader.text("error_type"))
    every_s = reader.milliseconds("every_ms", 1000)
    faults: list[Fault] = [
        *_http_faults(reader, tuple(headers), error),
        *(ConnectionFault(kind=kind) for kind in ConnectionFaultKind if reader.flag(kind.value)),
        *_stream_faults(reader, error, every_s),
    ]
    if len(faults) > 1:
        raise ScriptError("a script has one fault at most")
    if headers and not (faults and isinstance(faults[0], HttpFault)):
        raise ScriptError("header and retry_after need status, html_status or json_error")
    return faults[0] if faults else None


def _http_faults(reader: _Reader, headers: tuple[tuple[str, str], ...], error: ErrorText) -> list[HttpFault]:
    faults = []
    status, html_status = reader.status("status"), reader.status("html_status")
    body = reader.take("body")
    if status is not None:
        text = None if body is None else _as_text(body)
        content_type = "text/plain" if isinstance(body, str) else "application/json"
        faults.append(HttpFault(status=status, headers=headers, body=text, content_type=content_type, error=error))
    elif body is not None:
        raise ScriptError("body needs status")
    if html_status is not None:
        faults.append(HttpFault(status=html_status, headers=headers, body=_HTML.format(html_status), content_type="text/html"))
    if reader.flag("json_error"):
        faults.append(HttpFault(status=200, headers=headers, error=error))
    return faults


def _stream_faults(reader: _Reader, error: ErrorText, every_s: float) -> list[StreamFault]:
    faults = []
    for kind in StreamFaultKind:
        if is_flag(kind.value):
            if reader.flag(kind.value):
                faults.append(StreamFault(kind=kind))
        elif (after := reader.integer(kind.value)) is not None:
            faults.append(StreamFault(kind=kind, after=after, every_s=every_s, error=error))
    return faults


def _raw_script(fields: Fields) -> RawScript:
    reader = _Reader(fields)
    pieces, headers = reader.take("raw"), reader.take("headers") or {}
    if not isinstance(pieces, list) or not isinstance(headers, dict):
        raise ScriptError("raw must be a list of pieces, headers an object")
    script = RawScript(
        pieces=tuple(_raw_piece(piece) for piece in pieces),
        status=reader.status("status") or 200,
        content_type=reader.text("content_type") or "text/event-stream",
        headers=tuple(_header(name, value) for name, value in headers.items()),
        end=_raw_end(reader),
    )
    reader.refuse_leftovers()
    return script


def _raw_end(reader: _Reader) -> RawEnd:
    try:
        return RawEnd(reader.text("end") or "complete")
    except ValueError:
        raise ScriptError("end must be complete, close, reset or hold") from None


def _raw_piece(piece: object) -> RawPiece:
    if isinstance(piece, str):
        return RawPiece(data=piece.encode())
    if not isinstance(piece, dict):
        raise ScriptError('a raw piece is text or {"text" or "base64": ..., "pause_ms": ...}')
    reader = _Reader(piece)
    text, encoded, pause_s = reader.text("text"), reader.text("base64"), reader.milliseconds("pause_ms")
    reader.refuse_leftovers()
    try:
        data = (text or "").encode() if encoded is None else base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ScriptError("base64 of a raw piece cannot be decoded") from None
    return RawPiece(data=data, pause_s=pause_s)
