"""A turn's frames as a Server-Sent-Events response."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial

from sse_starlette import EventSourceResponse

from app.api.live_response import LiveResponse
from app.domain.errors import InvalidRequestError

RETRY_MS = 1_000
"""What a browser waits before it reconnects."""
_HELLO = b"retry: %d\n\n" % RETRY_MS
_NUMBER = re.compile(r"[0-9]{1,18}")


def after_of(last_event_id: str | None, after: str | None) -> int:
    """The cursor of a request: the ``Last-Event-ID`` header wins over ``?after=``. Raises InvalidRequestError unless it is a number."""
    text = last_event_id if last_event_id is not None else after
    if text is None:
        return 0
    if _NUMBER.fullmatch(text) is None:
        raise InvalidRequestError("Not an event id of a turn.", pointer="/after")
    return int(text)


def event_stream(
    frames: AsyncGenerator[bytes, None],
    *,
    heartbeat_s: float,
    headers: Mapping[str, str],
    left: Callable[[], None] | None = None,
) -> EventSourceResponse:
    """Stream ``frames``; the first byte leaves at once, a comment follows every ``heartbeat_s``.

    ``left`` is called when the reader goes away before the end; it must not wait for anything.
    """
    return LiveResponse(_body(frames), heartbeat_s=heartbeat_s, headers=headers, closing=partial(_close, frames, left))


async def _body(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield _HELLO
    async for frame in frames:
        yield frame


async def _close(frames: AsyncGenerator[bytes, None], left: Callable[[], None] | None, ended: bool) -> None:
    await frames.aclose()
    if left is not None and not ended:
        left()
