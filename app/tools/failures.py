"""The tool boundary: whatever a tool raises becomes a result the model can act on, and one line in the log."""

import logging
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Self

from app.domain.messages import clean_text
from app.domain.tools import ToolContext, ToolOutcome
from app.tools.redaction import fit_to_show

MAX_MESSAGE = 2_000
"""Characters of one exception's message that a model is shown."""
_MAX_READ = 8_000
"""Characters of a message that are searched for credentials at all."""
_MAX_GROUP = 5

logger = logging.getLogger(__name__)


class Caught:
    """A block whose exception is kept in ``error`` instead of being raised.

    Keeps every kind: SystemExit or KeyboardInterrupt out of a tool would otherwise stop the event loop (asyncio raises both through it)
    or a pool's thread. Who uses it decides what to raise again.
    """

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self.error = error
        return True


def failed(error: BaseException) -> ToolOutcome:
    """The result of a call that raised: the exception's type and its message, without traceback, credentials or paths."""
    return ToolOutcome(output=f"The tool failed: {describe(error)}", is_error=True)


def log_failure(name: str, context: ToolContext, error: BaseException) -> None:
    """Log for the operator what the model is not shown, the traceback with its paths; logging replaces credentials in every line."""
    logger.warning("tool %s failed in turn %s", name, context.turn_id, exc_info=error)


def describe(error: BaseException) -> str:
    """``Type: message``; never empty. Of a group, its members as well."""
    if not isinstance(error, BaseExceptionGroup):
        return _one(error)
    members = [_one(member) for member in islice(_leaves(error), _MAX_GROUP)]
    return f"{_one(error)}: {'; '.join(members)}"[:MAX_MESSAGE]


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _leaves(member)
        else:
            yield member


def _one(error: BaseException) -> str:
    name = type(error).__name__
    message = _message(error)
    return f"{name}: {message}" if message else f"{name} (no message)"


def _message(error: BaseException) -> str:
    text = ""
    with Caught():  # an exception's own __str__ may raise
        text = str(error)
    if len(text) > _MAX_READ:
        # Never end inside a word: half a key would no longer look like one.
        text = text[:_MAX_READ].rpartition(" ")[0]
    text = fit_to_show(clean_text(text)).strip()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
