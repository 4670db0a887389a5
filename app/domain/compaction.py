"""Compaction: old history replaced by a summary. The values that its parts, its storage and the API share."""

import enum
from typing import Final

import msgspec

MIN_RATIO: Final = 0.5
MAX_RATIO: Final = 4.0
"""Bounds of :attr:`ContextMark.ratio`: what is beyond them is a report that cannot be about the same text."""
FRUITLESS_LIMIT: Final = 2
"""So many compactions in a row that did not help close the latch."""

_MARGIN_SHARE: Final = 0.02
_LEAST_MARGIN: Final = 256


class CompactionReason(enum.StrEnum):
    """Why a session is compacted."""

    PREFLIGHT = "preflight"
    """A turn starts with a context that is large for the window it goes to."""
    GATEWAY = "gateway"
    """The context has grown near the window, in the middle of a turn or at its start."""
    OVERFLOW = "overflow"
    """A provider refused the request as too long."""
    MANUAL = "manual"
    """A caller asked for it."""

    @property
    def aggressive(self) -> bool:
        """Whether old tool results are pruned and the tail is kept short."""
        return self in (CompactionReason.GATEWAY, CompactionReason.OVERFLOW)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the window from which a context is compacted, as the tenant set them."""

    preflight: float = 0.5
    gateway: float = 0.85
    preflight_every_turn: bool = False
    """Look at the first threshold at every turn's start, not only when the window became smaller."""


class Room(msgspec.Struct, frozen=True):
    """The window of a route and the part of it that is set aside for the output, in tokens."""

    window: int
    output_tokens: int

    @property
    def margin(self) -> int:
        """What is left free besides, because sizes are estimates: 2 % of the window, at least 256 tokens."""
        return max(_LEAST_MARGIN, round(self.window * _MARGIN_SHARE))

    @property
    def most(self) -> int:
        """The largest request that may be sent, in tokens; 0 when the output leaves none."""
        return max(0, self.window - self.output_tokens - self.margin)

    def threshold(self, share: float) -> int:
        """The size from which ``share`` of the window is reached; never more than may be sent."""
        return min(round(self.window * share), self.most)


class ContextMark(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider counted last, so that only what came behind it is estimated.

    ``tokens`` are those of the last request and its reply; 0 is a mark that only calibrates (behind a compaction everything is
    estimated). ``up_to_seq`` is the last row that they include, ``window`` the one that the request was sent to, ``ratio`` the real size
    of the request divided by the estimated one, from MIN_RATIO to MAX_RATIO.
    """

    tokens: int
    up_to_seq: int
    window: int
    ratio: float = 1.0
    fixed: int = 0
    """The plain estimate of system prompt and tools at that time: another one now means that they were changed."""


class ResultClip(msgspec.Struct, frozen=True):
    """The model is shown at most ``max_bytes`` of each tool result up to the row ``up_to_seq``. Rows themselves stay as they are."""

    up_to_seq: int
    max_bytes: int


class Fruitless(msgspec.Struct, frozen=True, kw_only=True):
    """Compactions that did not help: what keeps a session from trying again and again.

    ``count`` are compactions since a real request was last below the threshold (with ``preflight`` the one of that reason), ``failures``
    summaries in a row that could not be had, ``cool_until_ms`` is when another may be tried after the last of them (unix milliseconds).
    """

    count: int = 0
    preflight: bool = False
    failures: int = 0
    cool_until_ms: int = 0

    @property
    def latched(self) -> bool:
        """No more compactions until a real request fits below the threshold again."""
        return self.count >= FRUITLESS_LIMIT

    @property
    def hopeless(self) -> bool:
        """A context that does not fit is to be trimmed: no summary will make it fit."""
        return self.latched or self.failures >= FRUITLESS_LIMIT


class ContextState(msgspec.Struct, frozen=True, kw_only=True):
    """What a session keeps beside its rows and its summary to decide what the model is shown, and when to compact."""

    mark: ContextMark | None = None
    clips: tuple[ResultClip, ...] = ()
    fruitless: Fruitless = Fruitless()


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction changes, in one commit: rows leave the working set, and the summary becomes the session's active one.

    ``summary`` is ``None`` for a trim: the active summary stays. ``archived_seqs`` rise. ``first_seq`` and ``last_seq`` are the first and
    last row that left, so those that the summary adds to the one before it. ``outdated_seqs`` are notes that leave as well, because newer
    ones stand in for them. Tokens are those of the whole context, estimated.
    """

    reason: CompactionReason
    archived_seqs: tuple[int, ...]
    summary: str | None
    clips: tuple[ResultClip, ...]
    tokens_before: int
    tokens_after: int
    outdated_seqs: tuple[int, ...] = ()

    @property
    def leaving_seqs(self) -> tuple[int, ...]:
        """Every row that leaves the working set."""
        return (*self.archived_seqs, *self.outdated_seqs)

    @property
    def first_seq(self) -> int | None:
        """The first row that left; ``None`` when only results were cut."""
        return self.archived_seqs[0] if self.archived_seqs else None

    @property
    def last_seq(self) -> int | None:
        """The last row that left; ``None`` when only results were cut."""
        return self.archived_seqs[-1] if self.archived_seqs else None
