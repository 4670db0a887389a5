"""Events: the numbered facts of a turn, and their one encoding to SSE frames.

An event is encoded once, to the bytes that every follower is sent and that Postgres keeps::

    id: 7
    event: message.delta
    data: {"type":"message.delta","seq":7,"turn_id":"turn_…","attempt":1,"text":"Hel"}

``seq`` counts per turn, rises, and has gaps after a takeover. Deltas are the only events that may be shown before they are stored;
``*.completed`` events carry the whole item, so deltas are never needed to be right.
"""

from datetime import UTC, datetime
from typing import ClassVar, TypeAlias
from urllib.parse import quote

import msgspec

from app.domain.children import ChildrenUse
from app.domain.conversation_events import (
    BudgetWarning,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    GuardrailHalt,
    GuardrailWarning,
    SubagentCompleted,
    SubagentStarted,
    ToolRequiresAction,
)
from app.domain.ids import SessionId, TurnId
from app.domain.messages import ContentPart, StoredMessage
from app.domain.model import Delta, FailureReason, MessageDelta, ReasoningDelta, RouteRef, RouteUse, Usage
from app.domain.tools import ToolOutcome


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem, as it stands in ``turn.failed`` and in error responses."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool
    retry_after_s: int | None = None
    request_id: str | None = None
    turn_id: TurnId | None = None


class TurnQueued(msgspec.Struct, frozen=True, kw_only=True):
    """The turn waits for its session or a free place. ``reason``: ``session_busy``, ``at_capacity``, ``handed_over`` or ``answered``."""

    event_type: ClassVar[str] = "turn.queued"
    session_id: SessionId | None
    reason: str


class TurnStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The turn runs. ``route`` is the one that is asked first."""

    event_type: ClassVar[str] = "turn.started"
    session_id: SessionId | None
    route: RouteRef


class TurnResumed(msgspec.Struct, frozen=True, kw_only=True):
    """The turn goes on from where it was handed over, or from where it waited for somebody; perhaps on another replica."""

    event_type: ClassVar[str] = "turn.resumed"
    session_id: SessionId | None
    route: RouteRef


class IterationStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A model call follows; counts from 1 up to ``max_iterations``."""

    event_type: ClassVar[str] = "iteration.started"
    iteration: int
    max_iterations: int


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as OpenAI writes it."""

    id: str
    function: dict[str, str]
    type: str = "function"


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as clients see it; ``content_truncated`` says that the full text is at ``GET /sessions/{id}/messages``."""

    id: str
    seq: int
    turn_id: TurnId | None
    role: str
    content: str | list[ContentPart]
    archived: bool
    created_at: str
    tool_calls: tuple[ToolCallView, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    reasoning: str | None = None
    kind: str = "said"
    content_truncated: bool = False


class MessageCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """The whole assistant message of one iteration, stored."""

    event_type: ClassVar[str] = "message.completed"
    attempt: int
    iteration: int
    route: RouteRef
    message: MessageView


class ToolStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call is about to run; ``arguments`` is its JSON text."""

    event_type: ClassVar[str] = "tool.started"
    tool_call_id: str
    name: str
    arguments: str


class ToolCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call has its result, stored. ``output`` is what the model reads.

    ``output_truncated``: it is cut here, or was cut for the model already; ``output_url`` has the whole.
    """

    event_type: ClassVar[str] = "tool.completed"
    tool_call_id: str
    name: str
    output: str
    is_error: bool
    duration_ms: int
    output_truncated: bool = False
    output_url: str | None = None


class AttemptFailedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one provider failed. ``next_route`` is tried after ``delay_s`` seconds; ``null`` when none is left."""

    event_type: ClassVar[str] = "attempt.failed"
    attempt: int
    route: RouteRef
    reason: FailureReason
    status: int | None
    message: str
    next_route: RouteRef | None
    delay_s: float


class AttemptReset(msgspec.Struct, frozen=True, kw_only=True):
    """Drop every delta of ``attempt``: its text is void."""

    event_type: ClassVar[str] = "attempt.reset"
    attempt: int


class ProviderFallback(msgspec.Struct, frozen=True, kw_only=True):
    """The next attempt goes to another route."""

    event_type: ClassVar[str] = "provider.fallback"
    from_route: RouteRef
    to_route: RouteRef
    reason: FailureReason


class ProviderThrottled(msgspec.Struct, frozen=True, kw_only=True):
    """A limit holds a model call back: the turn waits ``delay_s`` seconds for the route, or leaves it out (``skipped``).

    ``limit`` is ``rpm``, ``tpm``, or ``cooldown`` for a wait that the provider asked for.
    """

    event_type: ClassVar[str] = "provider.throttled"
    route: RouteRef
    limit: str
    delay_s: float
    skipped: bool


class TurnCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """Terminal. ``reason``: ``answer``, ``refusal``, ``budget_exhausted``, ``guardrail_halt``, ``nothing_to_compact`` (of a compaction)
    or ``tool_calls`` (of the client's own tools).

    ``output`` is the answer's text (capped like messages). ``session_id`` of every event is ``null`` in a stateless call.
    """

    event_type: ClassVar[str] = "turn.completed"
    session_id: SessionId | None
    reason: str
    output: str
    iterations: int
    attempts: int
    usage: Usage
    cost_usd: float | None
    route: RouteRef | None
    routes: tuple[RouteUse, ...] = ()
    children: ChildrenUse | None = None


class TurnInterrupted(msgspec.Struct, frozen=True, kw_only=True):
    """Terminal. ``output`` is the partial text.

    ``reason``: ``requested``, ``superseded``, ``client_gone``, ``shutdown``, ``worker_lost`` or ``expired``.
    """

    event_type: ClassVar[str] = "turn.interrupted"
    session_id: SessionId | None
    reason: str
    output: str
    iterations: int
    attempts: int
    usage: Usage
    cost_usd: float | None
    route: RouteRef | None
    routes: tuple[RouteUse, ...] = ()
    children: ChildrenUse | None = None


class TurnFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Terminal. ``error`` is the problem document that a JSON answer would carry.

    ``reason``: ``output_truncated``, ``content_filtered``, ``context_exhausted``, ``provider_unavailable``, ``invalid_response`` or
    ``internal_error``.
    """

    event_type: ClassVar[str] = "turn.failed"
    session_id: SessionId | None
    reason: str
    error: Problem
    output: str
    iterations: int
    attempts: int
    usage: Usage
    cost_usd: float | None
    route: RouteRef | None
    routes: tuple[RouteUse, ...] = ()
    children: ChildrenUse | None = None


TerminalEvent: TypeAlias = TurnCompleted | TurnInterrupted | TurnFailed
Fact: TypeAlias = (
    TurnQueued
    | TurnStarted
    | TurnResumed
    | IterationStarted
    | MessageCompleted
    | ToolStarted
    | ToolCompleted
    | ToolRequiresAction
    | AttemptFailedEvent
    | AttemptReset
    | ProviderFallback
    | ProviderThrottled
    | CompactionStarted
    | CompactionCompleted
    | CompactionFailed
    | BudgetWarning
    | GuardrailWarning
    | GuardrailHalt
    | SubagentStarted
    | SubagentCompleted
    | TerminalEvent
)
Event: TypeAlias = Delta | Fact
"""The closed union of everything a turn's stream can carry."""

TERMINAL_TYPES = frozenset({TurnCompleted.event_type, TurnInterrupted.event_type, TurnFailed.event_type})

_encode = msgspec.json.Encoder().encode


class FrameEncoder:
    """Encodes one turn's events to frames. Holds the parts of a frame that do not change within a turn."""

    def __init__(self, turn_id: TurnId) -> None:
        self._infix = f',"turn_id":"{turn_id}",'.encode()
        self._heads: dict[str, bytes] = {}

    def frame(self, seq: int, event: Event) -> bytes:
        """Return the frame of ``event`` numbered ``seq``, with its closing blank line."""
        name = event.event_type
        head = self._heads.get(name)
        if head is None:
            head = self._heads[name] = b'\nevent: %b\ndata: {"type":"%b","seq":' % (name.encode(), name.encode())
        number = b"%d" % seq
        return b"".join((b"id: ", number, head, number, self._infix, _encode(event)[1:], b"\n\n"))


def split_frames(frames: bytes) -> list[bytes]:
    """Cut stored frames into single ones. JSON text has no raw line break, so a blank line only ends a frame."""
    return [part + b"\n\n" for part in frames.split(b"\n\n")[:-1]]


_decode_delta = msgspec.json.Decoder(MessageDelta)


def shown_text(frames: bytes, attempt: int) -> str:
    """The visible text of one attempt in stored frames."""
    texts = []
    for frame in split_frames(frames):
        head, _, data = frame.partition(b"\ndata: ")
        if head.endswith(b"\nevent: message.delta"):
            delta = _decode_delta.decode(data)
            if delta.attempt == attempt:
                texts.append(delta.text)
    return "".join(texts)


def frame_seq(frame: bytes) -> int:
    """The sequence number of one frame."""
    return int(frame[4 : frame.index(b"\n")])


EVENT_TYPES: tuple[type[Event], ...] = (
    TurnQueued,
    TurnStarted,
    TurnResumed,
    IterationStarted,
    MessageDelta,
    ReasoningDelta,
    MessageCompleted,
    ToolStarted,
    ToolCompleted,
    ToolRequiresAction,
    AttemptFailedEvent,
    AttemptReset,
    ProviderFallback,
    ProviderThrottled,
    CompactionStarted,
    CompactionCompleted,
    CompactionFailed,
    BudgetWarning,
    GuardrailWarning,
    GuardrailHalt,
    SubagentStarted,
    SubagentCompleted,
    TurnCompleted,
    TurnInterrupted,
    TurnFailed,
)
"""Every member of :data:`Event`, in the order in which they are documented."""

MAX_EVENT_TEXT = 65_536
"""Characters of one text in an event."""


def rfc3339(unix_ms: int) -> str:
    """Unix milliseconds as an RFC 3339 time in UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def output_url(turn_id: TurnId, tool_call_id: str, seq: int) -> str:
    """Where the whole result of a call is read; ``seq`` is the place of its message."""
    return f"/turns/{turn_id}/tool_results/{quote(tool_call_id, safe='')}?seq={seq}"


def tool_completed(outcome: ToolOutcome, call: tuple[str, str], *, duration_ms: int = 0, url: str) -> ToolCompleted:
    """The event of a result, as the model reads it. ``call`` is its id and name, ``url`` where the whole result is read."""
    truncated = len(outcome.output) > MAX_EVENT_TEXT or outcome.whole is not None
    return ToolCompleted(
        tool_call_id=call[0],
        name=call[1],
        output=outcome.output[:MAX_EVENT_TEXT],
        is_error=outcome.is_error,
        duration_ms=duration_ms,
        output_truncated=truncated,
        output_url=url if truncated else None,
    )


def message_view(stored: StoredMessage, *, limit: int | None = None) -> MessageView:
    """A message as clients see it, its text cut to ``limit`` characters when one is given."""
    message = stored.message
    content = message.content
    truncated = limit is not None and isinstance(content, str) and len(content) > limit
    return MessageView(
        id=stored.id,
        seq=stored.seq,
        turn_id=stored.turn_id,
        role=message.role.value,
        content=content[:limit] if truncated and isinstance(content, str) else content,
        archived=stored.archived,
        created_at=rfc3339(stored.created_at_ms),
        tool_calls=tuple(
            ToolCallView(id=call.id, function={"name": call.name, "arguments": call.arguments}) for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        is_error=message.is_error,
        reasoning=message.reasoning,
        kind=message.kind.value,
        content_truncated=truncated,
    )
