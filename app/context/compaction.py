"""When a session is compacted and how much of it stays: pure functions of sizes.

The size that decides is what the provider counted for the last request and reply, plus an estimate, calibrated by it, of the rows behind.

::

    reason     │ looked at                  │ when                                                     │ tail that stays
    ───────────┼────────────────────────────┼──────────────────────────────────────────────────────────┼───────────────────
    preflight  │ when a turn starts         │ 50 % of the window, if that is smaller than the one the  │ 20 % of threshold
               │                            │ session was last sent to (or at every turn, by setting)  │
    gateway    │ before every model call    │ 85 % of the window                                       │ 8 %, pruned
    overflow   │ after a provider's refusal │ always                                                   │ 8 %, pruned, halved
               │                            │                                                          │ in a second round
    manual     │ on demand                  │ always                                                   │ 20 %, at most a
               │                            │                                                          │ quarter of the rows

No threshold is above window - output - margin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.context import cut, tokens
from app.context.render import View, row_tokens
from app.context.summary import longest_summary
from app.domain.compaction import MAX_RATIO, MIN_RATIO, CompactionReason, ContextMark, Fruitless, Room, Thresholds
from app.domain.messages import StoredMessage
from app.domain.model import Usage

_TAIL_SHARE: Final = 0.20
_SHORT_TAIL_SHARE: Final = 0.08
"""Of the threshold."""
_TRIM_SHARE: Final = 0.5
"""Of the window: what a trim leaves, so that the next one is not due at once."""
_CALIBRATING: Final = 512
"""Estimates below this are too small to tell how far off they are."""
_COOL_OFF_MS: Final = (60_000, 300_000, 900_000)
"""After the first, second and every later failed summary in a row (hermes section 18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the size of a compacted context depends on. ``fixed_tokens``: system prompt and tools, without any summary."""

    room: Room
    thresholds: Thresholds
    view: View
    ratio: float
    fixed_tokens: int


def fixed_size(system: str, tools_bytes: int, mark: ContextMark | None = None) -> int:
    """Tokens that stay whatever is compacted: system prompt and tools (``tools_bytes`` of JSON), calibrated by ``mark``."""
    return math.ceil(tokens.estimate(system, (), tools_bytes=tools_bytes) * ratio_of(mark))


def context_size(
    mark: ContextMark | None, rows: Sequence[StoredMessage], view: View, *, system: str, summary: str, tools_bytes: int
) -> int:
    """Tokens of the next request, without its reply. ``rows`` is the working set, ``summary`` the block behind the system prompt or "".

    The mark must be dropped (see :func:`calibration`) when anything that it counted has changed: rows that left, the system prompt, the
    summary, the tools.
    """
    if mark is None or not mark.tokens:
        estimated = tokens.estimate(system + summary, (), tools_bytes=tools_bytes) + sum(row_tokens(row, view) for row in rows)
        return math.ceil(estimated * ratio_of(mark))
    behind = sum(row_tokens(row, view) for row in rows if row.seq > mark.up_to_seq)
    return mark.tokens + math.ceil(behind * mark.ratio)


def ratio_of(mark: ContextMark | None) -> float:
    """By how much estimates are to be scaled."""
    return 1.0 if mark is None else mark.ratio


def new_mark(
    usage: Usage, *, estimated: int, up_to_seq: int, window: int, replayed: bool, previous: ContextMark | None
) -> ContextMark | None:
    """The mark after a reply that became the row ``up_to_seq``; ``previous`` when the provider counted nothing.

    ``estimated`` is the plain estimate of the request (``tokens.estimate``, not calibrated). ``replayed``: the reply's reasoning is sent
    back with it (``ModelReply.replay`` is set), so its tokens stay in the context.
    """
    if usage.input_tokens <= 0:
        return previous
    said = usage.output_tokens if replayed else max(0, usage.output_tokens - usage.reasoning_tokens)
    ratio = _bounded(usage.input_tokens / estimated) if estimated >= _CALIBRATING else ratio_of(previous)
    return ContextMark(tokens=usage.input_tokens + said, up_to_seq=up_to_seq, window=window, ratio=ratio)


def after_overflow(mark: ContextMark | None, *, estimated: int, room: Room) -> ContextMark:
    """The mark after a provider refused a request of ``estimated`` tokens (plain estimate) as too long for ``room``.

    It was larger than the window allows, so the estimate is off by at least so much; everything is estimated anew with that.
    """
    least = (room.window - room.output_tokens) / estimated if estimated > 0 else 1.0
    return ContextMark(tokens=0, up_to_seq=0, window=room.window, ratio=_bounded(max(ratio_of(mark), least)))


def calibration(mark: ContextMark | None) -> ContextMark | None:
    """What is left of a mark once the context that it counted has changed: the ratio and the window."""
    return None if mark is None else ContextMark(tokens=0, up_to_seq=0, window=mark.window, ratio=mark.ratio)


def due(size: int, room: Room, thresholds: Thresholds, *, turn_starts: bool, mark: ContextMark | None) -> CompactionReason | None:
    """Whether a context of ``size`` tokens is to be compacted before it is sent to ``room``; ``mark`` is the session's."""
    shrunk = mark is not None and room.window < mark.window
    if turn_starts and (shrunk or thresholds.preflight_every_turn) and size >= room.threshold(thresholds.preflight):
        return CompactionReason.PREFLIGHT
    return CompactionReason.GATEWAY if size >= room.threshold(thresholds.gateway) else None


def threshold_of(reason: CompactionReason, room: Room, thresholds: Thresholds) -> int:
    """The size that a compaction for ``reason`` has to get below."""
    return room.threshold(thresholds.gateway if reason.aggressive else thresholds.preflight)


def tail_tokens(reason: CompactionReason, sizing: Sizing, *, rows_tokens: int, attempt: int = 1) -> int:
    """Tokens of the newest rows that stay. ``rows_tokens``: of all rows; ``attempt`` counts the rounds after a refusal, from 1.

    It leaves room for what is fixed, for the longest summary and for as much again to grow.
    """
    share = _SHORT_TAIL_SHARE if reason.aggressive else _TAIL_SHARE
    wanted = threshold_of(reason, sizing.room, sizing.thresholds) * share
    free = threshold_of(reason, sizing.room, sizing.thresholds) - sizing.fixed_tokens - longest_summary(sizing.room)
    keep = min(round(wanted), max(0, free) // 2)
    if reason is CompactionReason.MANUAL:
        keep = min(keep, rows_tokens // 4)
    return keep // max(1, attempt)


def plan_compaction(reason: CompactionReason, rows: Sequence[StoredMessage], sizing: Sizing, *, attempt: int = 1) -> cut.Cut | None:
    """Which rows a compaction of the working set ``rows`` archives; ``None`` when nothing can leave (a fruitless one)."""
    scale = cut.Scale(view=sizing.view, ratio=sizing.ratio)
    keep = tail_tokens(reason, sizing, rows_tokens=scale.tokens(rows), attempt=attempt)
    return cut.plan(rows, keep, scale, prune=reason.aggressive)


def plan_trim(rows: Sequence[StoredMessage], sizing: Sizing, *, summary_tokens: int) -> cut.Cut | None:
    """The hard cut of the working set when no summary helps: down to half of the window where that is possible, else what fits.

    ``summary_tokens`` are those of the active summary, which stays. ``None`` when nothing makes it fit: the turn ends with
    ``context_exhausted``. A cut that archives nothing and has no clip says that there is nothing to cut, and that it fits.
    """
    scale = cut.Scale(view=sizing.view, ratio=sizing.ratio)
    fixed = sizing.fixed_tokens + summary_tokens
    comfortable = sizing.room.threshold(_TRIM_SHARE) - fixed
    return cut.trim(rows, sizing.room.most - fixed, scale, comfortable=comfortable)


def compacted(state: Fruitless, reason: CompactionReason) -> Fruitless:
    """A compaction was made, or was due and found nothing to archive. Whether it helped, the next real request tells.

    Those that a caller asked for do not count: the context may have been small before.
    """
    asked = reason is CompactionReason.MANUAL
    return Fruitless(count=state.count + (not asked), preflight=state.preflight or reason is CompactionReason.PREFLIGHT)


def fitted(state: Fruitless, size: int, room: Room, thresholds: Thresholds) -> Fruitless:
    """A real request had ``size`` tokens: below the threshold that the compactions were to reach, the latch opens."""
    reason = CompactionReason.PREFLIGHT if state.preflight else CompactionReason.GATEWAY
    if not state.count or size >= threshold_of(reason, room, thresholds):
        return state
    return Fruitless(failures=state.failures, cool_until_ms=state.cool_until_ms)


def failed(state: Fruitless, now_ms: int) -> Fruitless:
    """No summary could be had: nothing was changed, and the next try waits 60 s, then 300 s, then 900 s."""
    wait_ms = _COOL_OFF_MS[min(state.failures, len(_COOL_OFF_MS) - 1)]
    return msgspec.structs.replace(state, failures=state.failures + 1, cool_until_ms=now_ms + wait_ms)


def may_compact(state: Fruitless, reason: CompactionReason, now_ms: int) -> bool:
    """Whether a compaction may be tried now; a caller who asks for one is not held back."""
    return reason is CompactionReason.MANUAL or (not state.latched and now_ms >= state.cool_until_ms)


def _bounded(ratio: float) -> float:
    return min(MAX_RATIO, max(MIN_RATIO, ratio))
