"""Where a history is cut: which rows leave the working set and which stay.

A cut never parts a call from its results: where one would, it moves back to before the call. The newest message of the user stays, word
for word and in its place, even when everything between it and the tail leaves. So what stays is a valid history once it is repaired,
with a user's message in it whenever there was one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.render import PRUNED_BYTES, View, row_tokens
from app.domain.compaction import ResultClip
from app.domain.messages import MessageKind, Role, StoredMessage

_HARDER: Final = (8_000, 4_000, 2_000, 1_000, 500, PRUNED_BYTES)
"""Sizes of results that a trim tries, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows that leave and rows that stay, both in order, together all of them; ``clip``: results that are shown shorter from now on."""

    archive: tuple[StoredMessage, ...]
    keep: tuple[StoredMessage, ...]
    clip: ResultClip | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large rows are: as ``view`` shows them, by estimate times ``ratio`` (see :class:`app.domain.compaction.ContextMark`)."""

    view: View
    ratio: float = 1.0

    def tokens(self, rows: Sequence[StoredMessage]) -> int:
        """Tokens of ``rows``."""
        return math.ceil(sum(row_tokens(row, self.view) for row in rows) * self.ratio)

    def clipped(self, clip: ResultClip | None) -> "Scale":
        """The same with one clip more."""
        return Scale(view=self.view.clipped(clip), ratio=self.ratio)


def plan(rows: Sequence[StoredMessage], keep_tokens: int, scale: Scale, *, prune: bool = False) -> Cut | None:
    """Cut so that the tail has at most ``keep_tokens``, but for the last exchange, which stays whatever its size.

    With ``prune`` tool results in the older half of the tail are shown as little more than a note, so that more exchanges fit. ``None``
    when nothing would leave.
    """
    if not prune:
        return _cut_at(rows, _tail_start(rows, keep_tokens, scale), None)
    protected = _tail_start(rows, keep_tokens // 2, scale)
    clip = _clip_before(rows, protected, PRUNED_BYTES)
    cut = _cut_at(rows, min(protected, _tail_start(rows, keep_tokens, scale.clipped(clip))), clip)
    if cut is None or any(_is_result(row) and clip is not None and row.seq <= clip.up_to_seq for row in cut.keep):
        return cut
    return Cut(archive=cut.archive, keep=cut.keep)


def trim(rows: Sequence[StoredMessage], budget: int, scale: Scale, *, comfortable: int) -> Cut | None:
    """Make ``rows`` fit ``budget`` tokens without a summary: the oldest exchanges leave until ``comfortable`` tokens are left.

    The last exchange stays; when it does not fit ``budget``, its results are cut harder. ``None`` when even that does not make it fit:
    what the user said last is never cut. Nothing changes when the last exchange is all there is and fits.
    """
    if not rows:
        return Cut(archive=(), keep=()) if budget >= 0 else None
    user = newest_user(rows)
    extra = 0 if user is None else scale.tokens(rows[user : user + 1])
    keep = _kept(rows, _tail_start(rows, comfortable, scale, (user, extra)), user)
    archive = _without(rows, keep)
    if scale.tokens(keep) <= budget:
        return Cut(archive=archive, keep=keep)
    for max_bytes in _HARDER:
        clip = ResultClip(keep[-1].seq, max_bytes)
        if scale.clipped(clip).tokens(keep) <= budget:
            return Cut(archive=archive, keep=keep, clip=clip)
    return None


def cut_places(rows: Sequence[StoredMessage]) -> list[int]:
    """Every index before which ``rows`` may be cut: 0, and those that part no call from its results. The end is none of them.

    Calls at the end that nobody has spoken after (notes aside) may still be answered, by a turn's client: they stay with what follows.
    A part of an answer stays with the prompt to go on with it.
    """
    asked: dict[str, int] = {}
    reach = list(range(len(rows)))
    """By the index of a message: the index of the last result of its calls."""
    for place, row in enumerate(rows):
        asked.update((call.id, place) for call in row.message.tool_calls)
        call_id = row.message.tool_call_id
        if _is_result(row) and call_id in asked:
            reach[asked[call_id]] = place
        if _goes_on(rows, place):
            reach[place] = place + 1
    waiting = _waiting(rows)
    if waiting is not None:
        reach[waiting] = len(rows) - 1
    places = []
    furthest = -1
    for place in range(len(rows)):
        if furthest < place:
            places.append(place)
        furthest = max(furthest, reach[place])
    return places


def newest_user(rows: Sequence[StoredMessage]) -> int | None:
    """The index of the user's newest message; of a note in the user's role when there is no other."""
    users = [place for place, row in enumerate(rows) if row.message.role is Role.USER]
    said = [place for place in users if rows[place].message.kind is MessageKind.SAID]
    return max(said or users, default=None)


def _tail_start(rows: Sequence[StoredMessage], keep_tokens: int, scale: Scale, user: tuple[int | None, int] = (None, 0)) -> int:
    """The earliest place from which on everything fits, else the last place. ``user`` is a message that is kept as well, and its size."""
    places = cut_places(rows)
    start = places[-1] if places else 0
    kept, extra = user
    end, size = len(rows), 0
    for place in reversed(places):
        size += scale.tokens(rows[place:end])
        end = place
        if size + (extra if kept is not None and kept < place else 0) > keep_tokens:
            break
        start = place
    return start


def _cut_at(rows: Sequence[StoredMessage], start: int, clip: ResultClip | None) -> Cut | None:
    keep = _kept(rows, start, newest_user(rows))
    archive = _without(rows, keep)
    return Cut(archive=archive, keep=keep, clip=clip) if archive else None


def _kept(rows: Sequence[StoredMessage], start: int, user: int | None) -> tuple[StoredMessage, ...]:
    tail = tuple(rows[start:])
    return tail if user is None or user >= start else (rows[user], *tail)


def _without(rows: Sequence[StoredMessage], keep: Sequence[StoredMessage]) -> tuple[StoredMessage, ...]:
    kept = {row.seq for row in keep}
    return tuple(row for row in rows if row.seq not in kept)


def _clip_before(rows: Sequence[StoredMessage], start: int, max_bytes: int) -> ResultClip | None:
    return ResultClip(rows[start - 1].seq, max_bytes) if start else None


def _goes_on(rows: Sequence[StoredMessage], place: int) -> bool:
    """Whether it is a part of an answer that was cut, with the prompt to go on behind it."""
    pair = [(row.message.kind, row.message.role) for row in rows[place : place + 2]]
    return pair == [(MessageKind.NOTE, Role.ASSISTANT), (MessageKind.NOTE, Role.USER)]


def _waiting(rows: Sequence[StoredMessage]) -> int | None:
    """The place of the last message when it has calls without results; results and notes may follow it."""
    answered: set[str | None] = set()
    for place in range(len(rows) - 1, -1, -1):
        message = rows[place].message
        if _is_result(rows[place]):
            answered.add(message.tool_call_id)
        elif message.kind is not MessageKind.NOTE:
            return place if any(call.id not in answered for call in message.tool_calls) else None
    return None


def _is_result(row: StoredMessage) -> bool:
    return row.message.role is Role.TOOL
