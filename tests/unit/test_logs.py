import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typing_extensions import override

from app.logs import REDACTED, JsonFormatter, Redactor, add_secret, configure_logging

PROVIDER_KEY = "sk-test-AAAA1111BBBB2222CCCC3333"
ADMIN_KEY = 'admin key with "quotes" and ümlaut'
PASSWORD = "p@ss:wörd%21"


class Lines:
    """What was logged, as text and as objects."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Logging configured as in production, put back afterwards."""
    root = logging.getLogger()
    handlers, level, hooks = root.handlers, root.level, (sys.excepthook, threading.excepthook)
    stream = io.StringIO()
    configure_logging("DEBUG", [ADMIN_KEY, f"postgresql://gateway:{PASSWORD}@db.internal:5432/main"], stream)
    yield Lines(stream)
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(level)
    sys.excepthook, threading.excepthook = hooks


def test_a_line_is_one_object_with_time_level_logger_message_and_extras(lines: Lines) -> None:
    logging.getLogger("app.turns").info("turn %s", "ended\nhere", extra={"turn_id": "turn_1", "tenant_id": "ten_1"})

    (line,) = lines.objects
    assert set(line) == {"time", "level", "logger", "message", "turn_id", "tenant_id"}
    assert line["time"].endswith("Z")
    assert (line["level"], line["logger"], line["message"]) == ("INFO", "app.turns", "turn ended\nhere")
    assert line["turn_id"] == "turn_1"


def test_an_exception_is_its_type_and_traceback(lines: Lines) -> None:
    try:
        int("x")
    except ValueError:
        logging.getLogger("app").exception("it failed")

    (line,) = lines.objects
    assert line["exception"] == "ValueError"
    assert "test_logs.py" in line["traceback"]


SECRETS: dict[str, str] = {
    "bearer": "Authorization: Bearer abcdef0123456789",
    "header-dict": "{'Authorization': 'Token abcdef0123456789', 'x': 1}",
    "header-json": '{"authorization": "abcdef0123456789"}',
    "header-bytes": "(b'authorization', b'Bearer abcdef0123456789')",
    "x-api-key": "x-api-key: abcdef0123456789",
    "api-key-json": '{"api_key": "abcdef0123456789"}',
    "query-key": "GET https://models.test/v1?key=abcdef0123456789&x=1 failed",
    "query-api-key": "https://models.test/v1?x=1&api_key=abcdef0123456789",
    "openai": "Incorrect API key provided: sk-abcdef0123456789.",
    "own": "agw_abcdef0123456789 is unknown",
    "dsn": "cannot connect to postgresql+asyncpg://user:abcdef0123456789@db:5432/x",
    "password": "password=abcdef0123456789 host=db",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR], ids=["debug", "error"])
def test_what_looks_like_a_secret_is_redacted(lines: Lines, text: str, level: int) -> None:
    logging.getLogger("app").log(level, "said: %s", text, extra={"detail": text, "structured": {"text": text}})

    assert "abcdef" not in lines.text
    assert "23456789" not in lines.text
    assert REDACTED in lines.objects[0]["message"]


def _in_message() -> None:
    text = f"{PROVIDER_KEY} {ADMIN_KEY} {PASSWORD}"
    logging.getLogger("app").warning(text)


def _in_arguments() -> None:
    logging.getLogger("aiohttp.client").debug("%s %r %s", ADMIN_KEY, PROVIDER_KEY, {"a": PASSWORD})


def _unreachable() -> None:
    raise OSError(f"no route to {PASSWORD} {PROVIDER_KEY}")


def _in_a_chained_traceback() -> None:
    try:
        _unreachable()
    except OSError as error:
        chained = RuntimeError(f"bad {ADMIN_KEY}")
        chained.__cause__ = error
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application", exc_info=chained)


def _in_an_uncaught_exception() -> None:
    error = RuntimeError(f"{ADMIN_KEY} {PROVIDER_KEY} {PASSWORD}")
    sys.excepthook(RuntimeError, error, None)


def _in_a_thread() -> None:
    def work() -> None:
        raise RuntimeError(f"{ADMIN_KEY} {PROVIDER_KEY} {PASSWORD}")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _in_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"{ADMIN_KEY} {PROVIDER_KEY} {PASSWORD}", stacklevel=1)


PLACES = [
    _in_message,
    _in_arguments,
    _in_a_chained_traceback,
    _in_an_uncaught_exception,
    _in_a_thread,
    _in_a_warning,
]


@pytest.mark.parametrize("log", PLACES, ids=[place.__name__.strip("_") for place in PLACES])
def test_known_secrets_are_nowhere(lines: Lines, log: Callable[[], None]) -> None:
    add_secret(PROVIDER_KEY)

    log()

    assert lines.objects
    for secret in ("AAAA1111", "CCCC3333", "quotes", "ümlaut", "p@ss", "wörd"):
        assert secret not in lines.text


def test_arguments_that_do_not_fit_are_left_out() -> None:
    record = logging.makeLogRecord({"name": "app", "msg": "%d items", "args": (ADMIN_KEY,)})

    line = json.loads(JsonFormatter(Redactor()).format(record))

    assert line["message"] == "%d items"
    assert "quotes" not in str(line)


def test_a_url_encoded_secret_is_known_too() -> None:
    redact = Redactor()
    redact.add("postgresql://gateway:p%40ss%2Fword@db/main")

    assert redact("p@ss/word and p%40ss%2Fword") == f"{REDACTED} and {REDACTED}"


def test_a_short_value_does_not_tear_words_apart() -> None:
    redact = Redactor()
    redact.add("")
    redact.add("a")

    assert redact("a banana") == "a banana"


@pytest.mark.parametrize(
    "text",
    [
        "GET /sessions/sess_0123 200",
        "http://127.0.0.1:9001/v1 answered",
        "the task-runner asked",
        "tokens: 512",
        "key=3 of 4",
        "basic idea",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor()(text) == text


def test_a_secret_that_is_part_of_another_does_not_uncover_it() -> None:
    redact = Redactor()
    redact.add("secret-one")
    redact.add("secret-one-and-more")

    assert redact("secret-one-and-more") == REDACTED


@pytest.mark.parametrize("name", ["uvicorn.error", "sqlalchemy.engine", "asyncio", "aiohttp.client"])
def test_library_loggers_write_json_as_well(lines: Lines, name: str) -> None:
    logging.getLogger(name).error("it broke")

    assert lines.objects[0]["logger"] == name


@pytest.mark.parametrize("name", ["sse_starlette.sse", "uvicorn.access", "httpx"])
def test_chatty_loggers_stay_quiet_at_debug(lines: Lines, name: str) -> None:
    logger = logging.getLogger(name)

    assert not logger.isEnabledFor(logging.DEBUG)
    assert not logger.isEnabledFor(logging.INFO)


def test_a_value_that_breaks_the_line_is_reported_without_it(lines: Lines) -> None:
    class Broken:
        @override
        def __str__(self) -> str:
            msg = "hunter2hunter2"
            raise RuntimeError(msg)

    logging.getLogger("app").info("fine", extra={"value": Broken()})

    assert "a line of app was lost: RuntimeError" in lines.text
    assert "hunter2" not in lines.text


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("loud", [])
