"""The model's copy of the rows: giant and pruned tool results are cut in it, never in the rows.

The rule, which depends on nothing but the row, the session's window and its clips, so that the same rows always give the same bytes:

- a tool result longer than :func:`result_limit` of the window is shown with its head and its tail and a line that says what is missing;
- a result up to the row of a :class:`ResultClip` is cut to that clip's size as well. Clips are added by a compaction or a trim only (they
  change what was sent before) and kept with the session: pruning is a clip of ``PRUNED_BYTES``, trimming harder one of another size;
- everything else is shown as it is stored.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.context import history, tokens
from app.domain.compaction import ResultClip
from app.domain.messages import Content, ContentPart, Message, Role, StoredMessage, content_text

PRUNED_BYTES: Final = 240
"""What is left of a pruned result: a line that says so, and a little of both ends."""

_RESULT_SHARE: Final = 0.15
"""Of the window, for one result (hermes section 13)."""
_LEAST_RESULT: Final = 2_000
_MOST_RESULT: Final = 100_000
_HEAD_SHARE: Final = 2 / 3
_LEFT_OUT: Final = "\n[… {cut} of {total} bytes left out here; the full text is in the transcript …]\n"
_NOT_SHOWN: Final[ContentPart] = {"type": "text", "text": "[An attachment is left out here; it is in the transcript.]"}


class View(msgspec.Struct, frozen=True):
    """How a session's rows are shown: for a window of ``window`` tokens, with ``clips``."""

    window: int
    clips: tuple[ResultClip, ...] = ()

    def limit(self, seq: int) -> int:
        """The most bytes that a result at ``seq`` is shown with."""
        return min([self.whole_limit, *(clip.max_bytes for clip in self.clips if seq <= clip.up_to_seq)])

    @property
    def whole_limit(self) -> int:
        """The most bytes that any result is shown with."""
        return result_limit(self.window)

    def clipped(self, clip: ResultClip | None) -> "View":
        """The view with one clip more; those that it makes needless are dropped, so the list stays short."""
        if clip is None:
            return self
        others = tuple(one for one in self.clips if one.up_to_seq > clip.up_to_seq or one.max_bytes < clip.max_bytes)
        return View(self.window, (*others, clip))


def result_limit(window: int) -> int:
    """The most bytes of one tool result that a model with ``window`` tokens is shown: 15 % of the window, from 2 kB to 100 kB."""
    return min(_MOST_RESULT, max(_LEAST_RESULT, round(window * tokens.BYTES_PER_TOKEN * _RESULT_SHARE)))


def cap_result(text: str, window: int) -> str:
    """A tool's output as a model with ``window`` tokens is shown it: itself, or its head and tail (:func:`result_limit` bytes in all)."""
    return cut_middle(text, result_limit(window))


def cut_middle(text: str, max_bytes: int) -> str:
    """``text`` itself when it has at most ``max_bytes`` of UTF-8, else its head and tail around a line that says what is missing.

    The line alone may be longer than very small ``max_bytes`` (under about 90). No character is cut in two.
    """
    if 3 * len(text) <= max_bytes or (len(text) <= max_bytes and text.isascii()):
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return text
    total = len(data)
    room = max(0, max_bytes - len(_LEFT_OUT.format(cut=total, total=total).encode()))
    head = data[: round(room * _HEAD_SHARE)].decode("utf-8", "ignore")
    tail_size = room - round(room * _HEAD_SHARE)
    tail = data[total - tail_size :].decode("utf-8", "ignore")
    cut = total - len(head.encode()) - len(tail.encode())
    return head + _LEFT_OUT.format(cut=cut, total=total) + tail


def shown(row: StoredMessage, view: View) -> Message:
    """The row's message as the model is shown it; the very same object when nothing is cut."""
    message = row.message
    if message.role is not Role.TOOL:
        return message
    limit = view.limit(row.seq)
    content = _cut_content(message.content, limit, whole=limit >= view.whole_limit)
    return message if content is message.content else msgspec.structs.replace(message, content=content)


def render(rows: Sequence[StoredMessage], view: View) -> tuple[Message, ...]:
    """The valid history that the model is shown for ``rows``, in order."""
    return history.repair([shown(row, view) for row in rows])


def row_tokens(row: StoredMessage, view: View) -> int:
    """Tokens of a row as it is shown, by plain estimate."""
    return tokens.estimate("", (shown(row, view),), tools_bytes=0)


def _cut_content(content: Content, limit: int, *, whole: bool) -> Content:
    if isinstance(content, str):
        return cut_middle(content, limit)
    if whole:
        texts = sum(1 for part in content if part.get("type") == "text")
        share = limit // max(1, texts)
        parts = [_cut_part(part, share) for part in content]
        return content if all(new is old for new, old in zip(parts, content, strict=True)) else parts
    text: ContentPart = {"type": "text", "text": cut_middle(content_text(content), limit)}
    others = any(part.get("type") != "text" for part in content)
    return [text, _NOT_SHOWN] if others else [text]


def _cut_part(part: ContentPart, limit: int) -> ContentPart:
    if part.get("type") != "text":
        return part
    text = str(part.get("text", ""))
    cut = cut_middle(text, limit)
    return part if cut is text else {**part, "text": cut}
