"""The one table of what went wrong: (status, headers, body) or an in-stream error or a transport fault in, a :class:`Failure` out.

Structured codes decide before words, words before the status alone. Pure: the wall clock is an argument.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from app.domain.model import FailureReason
from app.providers.error_words import CODES, CONTEXT_WORDS, TRANSIENT_WORDS, WORDS
from app.providers.redact import redact

RETRYABLE: Final = frozenset(
    {
        FailureReason.RATE_LIMIT,
        FailureReason.OVERLOADED,
        FailureReason.SERVER_ERROR,
        FailureReason.CONNECT_FAILED,
        FailureReason.CONNECTION_BROKEN,
        FailureReason.FIRST_TOKEN_TIMEOUT,
        FailureReason.STALE,
        FailureReason.INCOMPLETE_STREAM,
        FailureReason.INVALID_RESPONSE,
    }
)
"""Reasons for which the same request may succeed on the same route later."""

_SENTENCES: Final[dict[FailureReason, str]] = {
    FailureReason.AUTH: "The provider refused the credential.",
    FailureReason.BILLING: "The provider account has no credit or quota left.",
    FailureReason.RATE_LIMIT: "The provider's rate limit was reached.",
    FailureReason.FORBIDDEN: "The provider denied access.",
    FailureReason.MODEL_NOT_FOUND: "The provider does not offer this model.",
    FailureReason.CONTEXT_OVERFLOW: "The request does not fit the model's context window.",
    FailureReason.PAYLOAD_TOO_LARGE: "The provider refused the request as too large.",
    FailureReason.CONTENT_FILTERED: "The provider's content filter blocked the request.",
    FailureReason.INVALID_REQUEST: "The provider refused the request as invalid.",
    FailureReason.OVERLOADED: "The provider is overloaded.",
    FailureReason.SERVER_ERROR: "The provider failed.",
    FailureReason.CONNECT_FAILED: "The provider could not be reached.",
    FailureReason.CONNECTION_BROKEN: "The connection to the provider broke.",
    FailureReason.FIRST_TOKEN_TIMEOUT: "The provider sent nothing in time.",
    FailureReason.STALE: "The provider stopped sending.",
    FailureReason.INCOMPLETE_STREAM: "The provider's reply ended before it was complete.",
    FailureReason.INVALID_RESPONSE: "The provider's reply was empty or malformed.",
}
_QUOTABLE: Final = frozenset(
    {
        FailureReason.RATE_LIMIT,
        FailureReason.MODEL_NOT_FOUND,
        FailureReason.CONTEXT_OVERFLOW,
        FailureReason.PAYLOAD_TOO_LARGE,
        FailureReason.CONTENT_FILTERED,
        FailureReason.INVALID_REQUEST,
        FailureReason.OVERLOADED,
    }
)
"""Reasons whose provider message helps the caller; the others speak of accounts and machines that are none of theirs."""

_OK: Final = 200
_REDIRECTS: Final = range(300, 400)
_CLIENT_STATUSES: Final = range(400, 500)
_SERVER_STATUSES: Final = range(500, 600)
_ERROR_STATUSES: Final = range(400, 600)
_STATUSES: Final[dict[int, FailureReason]] = {
    401: FailureReason.AUTH,
    402: FailureReason.BILLING,
    403: FailureReason.FORBIDDEN,
    404: FailureReason.MODEL_NOT_FOUND,
    408: FailureReason.SERVER_ERROR,
    409: FailureReason.SERVER_ERROR,
    410: FailureReason.MODEL_NOT_FOUND,
    413: FailureReason.PAYLOAD_TOO_LARGE,
    425: FailureReason.SERVER_ERROR,
    429: FailureReason.RATE_LIMIT,
    503: FailureReason.OVERLOADED,
    529: FailureReason.OVERLOADED,
}
_FIXED: Final = frozenset({401, 404, 410})
"""Statuses that say it all: the wording changes nothing, except that an empty account is one (see ``_by_words``)."""

_WORDLESS: Final = frozenset({400, 413})
"""Cerebras answers overflow by these without a body."""

_WAIT_WORDS: Final = re.compile(r"(?:retry|try again) (?:in|after) (\d+(?:\.\d+)?) ?(ms|milliseconds|s\b|sec|m\b|min)?", re.IGNORECASE)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with an attempt. ``message`` is safe to show; ``retry_after_s`` is what the provider asked for."""

    reason: FailureReason
    retryable: bool
    message: str
    status: int | None = None
    retry_after_s: float | None = None


class _Said(msgspec.Struct, frozen=True):
    """What a provider says in an error: its codes (lower case), its status as a number, and its text."""

    codes: tuple[str, ...]
    status: int | None
    text: str


def transport_failure(reason: FailureReason, *, retryable: bool = True) -> Failure:
    """A failure that we saw ourselves: a fault of the connection, a deadline, a stream that is not one."""
    return Failure(reason=reason, retryable=retryable and reason in RETRYABLE, message=_SENTENCES[reason])


def classify_response(status: int, headers: Mapping[str, str], body: bytes, *, secrets: tuple[str, ...], now: datetime) -> Failure:
    """The failure behind a response with an error status. ``now`` is aware; ``headers`` are looked up in lower case."""
    said = _read(_parse(body))
    asked = retry_after_s(headers, now)
    reason = _reason(status, said, timed=asked is not None) if body.strip() or status not in _WORDLESS else FailureReason.CONTEXT_OVERFLOW
    return _failure(reason, status, said, secrets=secrets, asked=asked)


def classify_error(error: object, *, secrets: tuple[str, ...]) -> Failure:
    """The failure behind an error that arrived inside a successful response: an object, a string, anything."""
    said = _read({"error": error})
    status = said.status if said.status is not None and said.status in _ERROR_STATUSES else None
    return _failure(_reason(status or _OK, said, timed=False), status, said, secrets=secrets, asked=None)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait as asked by ``retry-after-ms`` or else ``retry-after`` (seconds or an HTTP date); never negative.

    ``None`` when neither is there or readable. Zero means at once, and is not the same as ``None``.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(milliseconds / 1000, 0.0)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return max(seconds, 0.0)
    try:
        moment = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)


def _failure(reason: FailureReason, status: int | None, said: _Said, *, secrets: tuple[str, ...], asked: float | None) -> Failure:
    message = _SENTENCES[reason]
    if reason in _QUOTABLE:
        quoted = redact(said.text, secrets)
        if quoted:
            message = f"{message} It said: {quoted}"
    if asked is None and reason in (FailureReason.RATE_LIMIT, FailureReason.OVERLOADED):
        asked = _wait_in_words(said.text)
    return Failure(reason=reason, retryable=reason in RETRYABLE, message=message, status=status, retry_after_s=asked)


def _reason(status: int, said: _Said, *, timed: bool) -> FailureReason:
    if status in _REDIRECTS:
        return FailureReason.INVALID_RESPONSE
    for code in said.codes:
        if code in CODES:
            return _by_code(CODES[code], status, said)
    return _by_words(status, said.text, timed=timed) or _by_status(status)


def _by_code(reason: FailureReason, status: int, said: _Said) -> FailureReason:
    """A code's reason; general server codes give way to a status, or to words, that say more."""
    if reason is not FailureReason.SERVER_ERROR:
        return reason
    if CONTEXT_WORDS.search(said.text):
        return FailureReason.CONTEXT_OVERFLOW
    return _STATUSES.get(status, reason)


def _by_words(status: int, text: str, *, timed: bool) -> FailureReason | None:
    if status not in (401, 403, 429) and CONTEXT_WORDS.search(text):
        return FailureReason.CONTEXT_OVERFLOW
    for pattern, reason in WORDS:
        if not pattern.search(text):
            continue
        if reason is FailureReason.BILLING and (timed or TRANSIENT_WORDS.search(text)):
            return FailureReason.RATE_LIMIT
        if reason is FailureReason.BILLING or _words_decide(status, reason):
            return reason
    return None


def _words_decide(status: int, reason: FailureReason) -> bool:
    if status in _FIXED or status in _SERVER_STATUSES:
        return False
    match status:
        case 402:
            return False
        case 403:
            return reason in (FailureReason.MODEL_NOT_FOUND, FailureReason.CONTENT_FILTERED, FailureReason.RATE_LIMIT)
        case 429:
            return reason is FailureReason.OVERLOADED
        case _:
            return True


def _by_status(status: int) -> FailureReason:
    if status in _STATUSES:
        return _STATUSES[status]
    return FailureReason.INVALID_REQUEST if status in _CLIENT_STATUSES else FailureReason.SERVER_ERROR


def _parse(body: bytes) -> object:
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def _read(value: object) -> _Said:
    """Find codes and text in the shapes that providers use: ``{"error": {…}}``, ``{"error": "…"}``, a list of one, plain text."""
    if isinstance(value, list):
        value = value[0] if value else ""
    if not isinstance(value, dict):
        return _Said((), None, value if isinstance(value, str) else "")
    inner = value.get("error")
    if isinstance(inner, str):
        return _Said(_codes(value), _status(value), f"{inner} {_text(value)}".strip())
    if isinstance(inner, dict):
        return _Said(_codes(inner) + _codes(value), _status(inner) or _status(value), _text(inner))
    return _Said(_codes(value), _status(value), _text(value))


def _codes(value: Mapping[str, Any]) -> tuple[str, ...]:
    found = (value.get(key) for key in ("code", "type", "status", "error_code", "error_type"))
    return tuple(code.lower() for code in found if isinstance(code, str))


def _status(value: Mapping[str, Any]) -> int | None:
    for key in ("code", "status", "status_code", "error_code"):
        number = value.get(key)
        if isinstance(number, str) and number.isascii() and number.isdigit():
            number = int(number[:4])
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    return None


def _text(value: Mapping[str, Any]) -> str:
    for key in ("message", "detail", "msg", "error_message", "error_msg"):
        text = value.get(key)
        if isinstance(text, str):
            return text
        if isinstance(text, dict | list):
            return json.dumps(text, ensure_ascii=False)
    return ""


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if number - number == 0.0 else None  # neither NaN nor infinite


def _wait_in_words(text: str) -> float | None:
    match = _WAIT_WORDS.search(text)
    if match is None:
        return None
    unit = (match.group(2) or "s").lower()
    factor = 0.001 if unit.startswith(("ms", "milli")) else 60.0 if unit.startswith("m") else 1.0
    return float(match.group(1)) * factor
