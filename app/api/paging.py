"""Cursor pages: ``{"data": […], "has_more": …, "next_cursor": …}``. Cursors are opaque to clients."""

import base64
import binascii
import re
from typing import Annotated

from fastapi import Query

from app.domain.errors import InvalidRequestError

Limit = Annotated[int, Query(ge=1, le=200, description="Most entries on one page.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]
After = Annotated[str | None, Query(max_length=200, description="Another name of `cursor`.")]
DEFAULT_LIMIT = 50


def cursor_of(next_position: str | None) -> str | None:
    """The cursor for a place in a listing, as the store names it; ``None`` (there is no more) stays ``None``."""
    return None if next_position is None else base64.urlsafe_b64encode(next_position.encode()).decode().rstrip("=")


def position(cursor: str | None, pattern: re.Pattern[str]) -> str | None:
    """What a cursor stands for. Raises InvalidRequestError unless it is one whose position matches ``pattern``."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if pattern.fullmatch(text) is None:
        raise InvalidRequestError("This is not a cursor of this listing.", pointer="/cursor")
    return text
