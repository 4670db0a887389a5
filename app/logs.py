"""JSON logs without secrets: one object a line on standard error.

Redaction is part of writing a line, so no level, logger or traceback gets around it: known secrets (:func:`add_secret`) and what looks
like one are replaced in the finished line.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import quote, unquote

from typing_extensions import override

REDACTED = "[redacted]"
_SHORTEST_SECRET = 6
"""Shorter values are not taken for secrets: replacing them would tear other words apart."""

# They work on a finished JSON line: a quote in a text stands there as \" and a value ends before any quote or backslash.
_QUOTE = r"""(?:\\?["'])?"""
_VALUE = r"""[^"'\\\s,;&<>(){}\[\]]+"""
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("bearer", "basic"), re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (("sk-", "pk-", "rk-"), re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{6,}"), REDACTED),
    (("agw_",), re.compile(r"\bagw_[A-Za-z0-9_-]{6,}"), REDACTED),
    (("key=", "sig", "code="), re.compile(rf"([?&](?:key|sig|signature|code)=){_VALUE}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        ("key", "passw", "secret", "token"),
        re.compile(
            rf"((?:api[_-]?key|password|passwd|secret|(?:access|auth|refresh|id)[_-]?token|[?&]token){_QUOTE}\s*[:=]\s*b?{_QUOTE}){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (
        ("authorization",),
        re.compile(rf"(authorization{_QUOTE}\s*[:=,]\s*b?{_QUOTE})(?!\s)[^\"'\\,;(){{}}]+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        ("://",),
        re.compile(r"""([a-z][a-z0-9+.-]*://[^:/@\s"'\\]*:)[^\s/"'\\<>]+@""", re.IGNORECASE),
        rf"\1{REDACTED}@",
    ),
)
"""Each with the words, in lower case, without one of which it cannot match: looking for those is much cheaper."""
_URL_PASSWORD = re.compile(r"^[a-z][a-z0-9+.-]*://[^:/@\s]*:([^\s/]+)@", re.IGNORECASE)

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""What every record has: all else is extra."""

_QUIET = {
    "sse_starlette": logging.WARNING,  # formats every chunk of every stream at DEBUG
    "sqlalchemy": logging.WARNING,
    "alembic": logging.WARNING,  # two lines for every look at the schema
    "uvicorn.access": logging.CRITICAL,  # the API writes its own
    "aiohttp.access": logging.CRITICAL,
    "httpcore": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "mcp": logging.CRITICAL,  # repeats what servers send; what goes wrong is logged by who uses it
    "client": logging.CRITICAL,  # of the same
    "httpx": logging.WARNING,  # writes whole addresses, which may hold credentials
    "asyncio": logging.INFO,
}
"""Levels of loggers that are no use, or a cost, below them."""


class Redactor:
    """Replaces secrets in text."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()

    def add(self, secret: str) -> None:
        """Learn a secret; of a URL also its password. Too short ones are ignored."""
        found = set(self._known)
        password = _URL_PASSWORD.match(secret)
        for value in (secret, password.group(1) if password else ""):
            for plain in {value, unquote(value)}:
                if len(plain) >= _SHORTEST_SECRET:
                    found |= {plain, quote(plain, safe=""), json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        # The longest first: one may be part of another.
        self._known = tuple(sorted(found, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        """Return ``text`` without secrets."""
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, REDACTED)
        lowered = text.lower()
        for words, pattern, replacement in _PATTERNS:
            if any(word in lowered for word in words):
                text = pattern.sub(replacement, text)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object: ``time``, ``level``, ``logger``, ``message``, the record's extras, ``exception`` and its ``traceback``."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname, "logger": record.name, "message": _message(record)}
        line.update((name, value) for name, value in vars(record).items() if name not in _PLAIN)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__qualname__
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return self._redactor(json.dumps(line, ensure_ascii=False, default=str))


class JsonHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream; where writing itself fails it says so without the record, whose text nobody has redacted."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Called by the logging package from inside an exception handler."""
        error = sys.exc_info()[0]
        # The stream may be what is broken: there is nowhere else to tell.
        if error is not None and not issubclass(error, OSError | ValueError):
            message = f"a line of {record.name} was lost: {error.__name__}"
            self.stream.write(json.dumps({"level": "ERROR", "logger": __name__, "message": message}) + "\n")


_redactor = Redactor()


def add_secret(secret: str) -> None:
    """Never show ``secret`` in a log of this process from now on."""
    _redactor.add(secret)


def configure_logging(level: str, secrets: Iterable[str], stream: TextIO | None = None) -> None:
    """Send all logging, warnings and uncaught exceptions of the process as JSON to ``stream`` (standard error).

    Idempotent. ``level`` is one of DEBUG, INFO, WARNING, ERROR; raises ValueError for another.
    """
    for secret in secrets:
        add_secret(secret)
    handler = JsonHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(_redactor))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for existing in list(logging.root.manager.loggerDict.values()):
        if isinstance(existing, logging.Logger):
            existing.handlers.clear()  # uvicorn brings its own, which write plain text
            existing.propagate = True
    for name, floor in _QUIET.items():
        logging.getLogger(name).setLevel(max(floor, root.level))
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the arguments do not fit the text: a line without them is better than none
        return str(record.msg)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(__name__).critical("uncaught exception", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    error = args.exc_value or args.exc_type()
    logging.getLogger(__name__).critical("uncaught exception in a thread", exc_info=(args.exc_type, error, args.exc_traceback))
