"""Tool guardrails as values: when a turn that calls tools in circles is warned and stopped, and what is remembered of its calls.

::

    what repeats                            │ warned after │ stopped after
    ────────────────────────────────────────┼──────────────┼───────────────────────────────────────────
    the same call fails                     │            2 │ 5 (its next one is blocked: not run)
    the same tool fails, any arguments      │            3 │ 8 (the turn ends)
    a read-only call gives the same result  │            2 │ 5 (its next one is blocked: not run)
    a cycle of 2 to 5 calls                 │     3 rounds │ 5 rounds with the same results (the turn ends)
"""

import enum
import hashlib
from typing import Annotated, Final, TypeAlias

import msgspec

MAX_PERIOD = 5
"""Calls in the longest cycle that is looked for; the shortest has two."""
MAX_ROUNDS = 20
"""The highest threshold of cycles: it decides how many calls have to be remembered."""
MAX_HISTORY = MAX_PERIOD * MAX_ROUNDS
MAX_TRACKED = 32
"""Calls, and tools, whose repetitions are counted at the same time; the one not seen for the longest is forgotten first."""

_DIGEST_CHARACTERS = 16
"""Of a hexadecimal SHA-256, kept: 64 bits tell the calls and results of one turn apart, and the state is stored with every commit."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100)]
Rounds: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=MAX_ROUNDS)]


class GuardrailCode(enum.StrEnum):
    """What was found. Warnings go with a call's result, a block takes its place, a halt ends the turn."""

    REPEATED_EXACT_FAILURE_WARNING = "repeated_exact_failure_warning"
    REPEATED_EXACT_FAILURE_BLOCK = "repeated_exact_failure_block"
    SAME_TOOL_FAILURE_WARNING = "same_tool_failure_warning"
    SAME_TOOL_FAILURE_HALT = "same_tool_failure_halt"
    IDEMPOTENT_NO_PROGRESS_WARNING = "idempotent_no_progress_warning"
    IDEMPOTENT_NO_PROGRESS_BLOCK = "idempotent_no_progress_block"
    TOOL_CALL_CYCLE_WARNING = "tool_call_cycle_warning"
    TOOL_CALL_CYCLE_HALT = "tool_call_cycle_halt"


class WarnAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The count from which on every further repetition is warned of. Those of cycles are full rounds."""

    exact_failure: Count = 2
    same_tool_failure: Count = 3
    idempotent_no_progress: Count = 2
    cycle: Rounds = 3


class HardStopAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The count after which the call is blocked (``exact_failure``, ``idempotent_no_progress``) or the turn ends (the other two)."""

    exact_failure: Count = 5
    same_tool_failure: Count = 8
    idempotent_no_progress: Count = 5
    cycle: Rounds = 5


class GuardrailThresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's tool guardrails. Warnings are always given; ``hard_stop`` says whether turns are stopped as well.

    ``None``: background turns are, where nobody watches; the others are not.
    """

    hard_stop: bool | None = None
    warn_after: WarnAfter = WarnAfter()
    hard_stop_after: HardStopAfter = HardStopAfter()

    def stops(self, *, background: bool) -> bool:
        """Whether such a turn is stopped, not only warned."""
        return background if self.hard_stop is None else self.hard_stop


class ToolTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tool beside its definition; of an unknown one nothing, which is the default.

    ``read_only``: it changes nothing, so the same call with the same result is no progress. ``polling``: it watches something that
    changes by itself (a board, background work), so asking again is no fault: it never counts as no progress, and no cycle with it ends
    the turn. ``interactive``: it asks somebody, so the calls beside it are run one after the other. ``approval``: somebody has to
    allow each call before it is run. ``secrets`` are the names of arguments that no log and no event shows.
    """

    read_only: bool = False
    polling: bool = False
    interactive: bool = False
    approval: bool = False
    secrets: frozenset[str] = frozenset()


NO_TRAITS: Final = ToolTraits()


class PastCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that was answered: its signature (:func:`app.agent.guardrails.signature_of`) and the digest of its result."""

    signature: str
    result: str


class Streak(msgspec.Struct, frozen=True, array_like=True):
    """A call that came out ``count`` times in the same way: with ``result`` (read-only tools), or failing, however it failed (``None``)."""

    signature: str
    count: int
    result: str | None = None


class ToolFailures(msgspec.Struct, frozen=True, array_like=True):
    """How many calls of ``tool`` failed (or were blocked) since one went well."""

    tool: str
    count: int


class GuardrailState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn's guardrails remember, oldest first: part of the machine's state. A new turn begins with an empty one.

    It knows calls, not messages, so a compaction leaves it as it is. At most ``MAX_HISTORY`` calls (``MAX_PERIOD`` times the higher
    threshold of cycles) and ``MAX_TRACKED`` streaks and tools; names are cut, results are digests.
    """

    history: tuple[PastCall, ...] = ()
    streaks: tuple[Streak, ...] = ()
    failures: tuple[ToolFailures, ...] = ()
    invalid_replies: int = 0
    """Replies in a row of which no call could be run."""


def digest_of(text: str) -> str:
    """The digest by which calls and results are compared.

    Of a result ``text`` must be the whole output as the tool gave it, before it is cut to what the model is shown and before any note is
    appended: two long results that differ only in what is left out are two different results.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
