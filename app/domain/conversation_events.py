"""Events of the loop's policies: the budget, guardrails and compaction. Part of the union in :mod:`app.domain.events`."""

from typing import ClassVar

import msgspec

from app.domain.children import ChildStatus
from app.domain.compaction import CompactionReason
from app.domain.guardrails import GuardrailCode
from app.domain.ids import SessionId, TurnId
from app.domain.model import Usage
from app.domain.turns import PressureLevel
from app.domain.waiting import WaitingKind


class BudgetWarning(msgspec.Struct, frozen=True, kw_only=True):
    """The turn's budget runs out; the model is told as well.

    ``level``: ``caution``, ``warning``, or ``exhausted`` (one closing call follows).
    """

    event_type: ClassVar[str] = "budget.warning"
    level: PressureLevel
    iteration: int
    max_iterations: int
    message: str


class SubagentStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A child turn runs for a call of ``delegate_task``. Its own events are at ``/turns/{child_turn_id}/events``.

    ``card_id`` is its card on the session's board, ``depth`` is 1 for a child of a turn that is none.
    """

    event_type: ClassVar[str] = "subagent.started"
    tool_call_id: str
    child_turn_id: TurnId
    child_session_id: SessionId
    card_id: str
    depth: int


class SubagentCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """A child turn has ended: ``status`` is ``completed``, ``interrupted`` or ``failed``, ``reason`` that of its terminal event.

    ``output`` is its answer (capped), ``iterations``, ``usage`` and ``cost_usd`` are its own and those of the turns below it.
    """

    event_type: ClassVar[str] = "subagent.completed"
    tool_call_id: str
    child_turn_id: TurnId
    card_id: str
    status: ChildStatus
    reason: str
    output: str
    iterations: int
    usage: Usage
    cost_usd: float | None


class GuardrailWarning(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call repeats itself; the model is told with its result, or in its place when the call was blocked (not run)."""

    event_type: ClassVar[str] = "guardrail.warning"
    tool_call_id: str
    code: GuardrailCode
    count: int
    message: str


class GuardrailHalt(msgspec.Struct, frozen=True, kw_only=True):
    """Tool calls lead nowhere: the turn ends with an answer that says so. ``code`` is a guardrail's, or ``invalid_tool_calls``."""

    event_type: ClassVar[str] = "guardrail.halt"
    code: str
    count: int
    message: str


class CompactionStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The older part of the conversation is being replaced by a summary.

    ``reason``: ``preflight``, ``gateway``, ``overflow`` or ``manual``.
    """

    event_type: ClassVar[str] = "compaction.started"
    reason: CompactionReason
    tokens_before: int


class CompactionCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """Messages have left the context (not the transcript). ``summary_id`` is ``null`` when they were cut off without a summary.

    Tokens are those of the whole context, estimated; ``usage`` and ``cost_usd`` what it took. ``memory``: ``kept`` when the model wrote
    to its memory first, ``nothing`` when it found nothing to keep, ``failed``, or ``off``.
    """

    event_type: ClassVar[str] = "compaction.completed"
    reason: CompactionReason
    summary_id: str | None
    archived_messages: int
    tokens_before: int
    tokens_after: int
    memory: str
    usage: Usage
    cost_usd: float | None


class CompactionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """There is no summary; nothing was changed, and the turn goes on as far as its context fits."""

    event_type: ClassVar[str] = "compaction.failed"
    reason: CompactionReason
    message: str


class ActionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for somebody. ``question`` and ``choices`` are those of ``clarify``, for its reader.

    ``arguments`` is JSON text; cut ones (``arguments_truncated``) are whole at ``GET /turns/{id}``.
    """

    tool_call_id: str
    kind: WaitingKind
    name: str
    arguments: str
    question: str | None
    choices: tuple[str, ...]
    arguments_truncated: bool = False


class ToolRequiresAction(msgspec.Struct, frozen=True, kw_only=True):
    """The turn waits for answers to these calls; the stream ends here without a terminal event.

    Answer with ``POST /turns/{id}/tool_results`` before ``expires_at``, or the turn is interrupted as ``expired``.
    """

    event_type: ClassVar[str] = "tool.requires_action"
    calls: tuple[ActionCall, ...]
    expires_at: str
