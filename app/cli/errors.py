"""What a command tells its user when it cannot do its work: one line, never a traceback.

Exit codes: 0 done, 1 it could not be done, 2 what the user wrote (arguments, settings, files) is wrong.
"""

from alembic.util.exc import CommandError as MigrationError
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.api.errors import InvalidBodyError
from app.domain.errors import ConflictError, InvalidRequestError, UnavailableError
from app.store.embedded import EmbeddedPostgresError
from app.tools.schema import ToolConfigurationError

FAILED = 1
MISUSED = 2

_PREFIX = "GATEWAY_"
_MAX_LINE = 600


class CommandError(Exception):
    """A command cannot do its work; the text is for the user, ``code`` the exit code."""

    def __init__(self, text: str, *, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


EXPECTED = (
    CommandError,
    ValidationError,
    InvalidRequestError,
    InvalidBodyError,
    ConflictError,
    UnavailableError,
    ToolConfigurationError,
    EmbeddedPostgresError,
    MigrationError,
    SQLAlchemyError,
    TimeoutError,
    OSError,
)
"""Errors that are the user's or the machine's; anything else is a fault of ours and keeps its traceback."""


def described(error: BaseException) -> tuple[str, int]:
    """The line for one of :data:`EXPECTED` and the exit code."""
    if isinstance(error, CommandError):
        return str(error), error.code
    misuse = _misuse(error)
    return (_failure(error), FAILED) if misuse is None else (misuse, MISUSED)


def _misuse(error: BaseException) -> str | None:
    """What the user wrote wrong; ``None`` for other errors."""
    match error:
        case ValidationError():
            return _of_settings(error)
        case InvalidRequestError():
            return _placed(error.detail, error.pointer)
        case InvalidBodyError():
            return "; ".join(_placed(field.detail, field.pointer) for field in error.errors)
        case ToolConfigurationError():
            return _one_line(error)  # it may quote what an operator's module raised
        case _:
            return None


def _failure(error: BaseException) -> str:
    match error:
        case ConflictError() | UnavailableError():
            return _with_cause(error.detail, error.__cause__)
        case EmbeddedPostgresError():
            return str(error)  # with the end of the server's log, which is worth more lines than one
        case SQLAlchemyError():
            return f"The database refused: {_one_line(getattr(error, 'orig', None) or error)}"
        case _:
            return _one_line(error) or type(error).__name__


def _of_settings(error: ValidationError) -> str:
    """Every setting that is wrong, by the name of its variable and without its value."""
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        name = "_".join(str(part) for part in item["loc"]).upper()
        name = name if name.endswith("_API_KEY") or name == "DATABASE_URL" or name.startswith(_PREFIX) else _PREFIX + name
        lines.append(f"{name}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)


def _placed(detail: str, pointer: str) -> str:
    return f"{detail} (at {pointer})" if pointer else detail


def _with_cause(detail: str, cause: BaseException | None) -> str:
    if cause is None:
        return detail
    return f"{detail} ({_one_line(getattr(cause, 'orig', None) or cause)})"


def _one_line(error: BaseException | object) -> str:
    return " ".join(str(error).split())[:_MAX_LINE]
