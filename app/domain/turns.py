"""Turns: states, outcomes, the machine's stored state, and the values that travel between the turn server and its store."""

import enum
from typing import TypeAlias

import msgspec

from app.domain.children import ChildrenUse
from app.domain.compaction import CompactionResult, ContextState
from app.domain.guardrails import GuardrailState
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Content, Message, ToolSpec
from app.domain.model import NO_OPTIONS, ModelOptions, RouteRef, RouteUse, Usage
from app.domain.quotas import DaySums, Spent
from app.domain.tools import CallRecord
from app.domain.waiting import PausedBatch

SEQ_GAP = 1 << 20
"""Sequence numbers skipped at a takeover: far more than a turn can have shown without storing them."""


class TurnState(enum.StrEnum):
    """Where a turn stands; the last three are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"
    """It waits for somebody: it holds its session, but no replica runs it."""
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """Whether the turn has ended."""
        return self in (TurnState.COMPLETED, TurnState.INTERRUPTED, TurnState.FAILED)


class CompletedReason(enum.StrEnum):
    """How a turn completed."""

    ANSWER = "answer"
    REFUSAL = "refusal"
    BUDGET_EXHAUSTED = "budget_exhausted"
    GUARDRAIL_HALT = "guardrail_halt"
    """The turn's tool calls led nowhere; the answer says so."""
    TOOL_CALLS = "tool_calls"
    """The model called tools of the client, which go on with the next call."""
    NOTHING_TO_COMPACT = "nothing_to_compact"
    """A caller asked for a compaction, and nothing can leave the context."""


class InterruptReason(enum.StrEnum):
    """Why a turn was interrupted."""

    REQUESTED = "requested"
    SUPERSEDED = "superseded"
    CLIENT_GONE = "client_gone"
    SHUTDOWN = "shutdown"
    WORKER_LOST = "worker_lost"
    EXPIRED = "expired"
    """Nobody answered in time."""


class FailedReason(enum.StrEnum):
    """Why a turn failed."""

    OUTPUT_TRUNCATED = "output_truncated"
    CONTENT_FILTERED = "content_filtered"
    CONTEXT_EXHAUSTED = "context_exhausted"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    INVALID_RESPONSE = "invalid_response"
    INTERNAL_ERROR = "internal_error"


class OnBusy(enum.StrEnum):
    """What a POST does when the session already has a turn."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"


class OnDisconnect(enum.StrEnum):
    """What happens to a turn whose client leaves."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class Unwatched(enum.Enum):
    """What came of the wish to stop a turn that nobody reads any more."""

    WATCHED = enum.auto()
    """Somebody reads it on another replica: ask again."""
    MARKED = enum.auto()
    """It is marked as to be stopped."""
    SETTLED = enum.auto()
    """There is nothing to stop: it has ended or is gone, or it waits for somebody, whom nobody has to read it for."""


class PressureLevel(enum.StrEnum):
    """How far a turn's budget is used up, as the model and the client are told."""

    CAUTION = "caution"
    WARNING = "warning"
    EXHAUSTED = "exhausted"
    """One closing call is left."""


class MachineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything the loop's decisions depend on, stored with each commit: every iteration boundary is a resume point.

    ``iteration`` is the number of the model call that is due or under way (from 1), ``attempts`` the attempts made in the whole turn.
    ``usage`` and ``cost_usd`` are the sums of ``routes``, which has one entry per route, in the order of their first attempts.
    ``pressure`` is what the model was told last; ``parts`` are the parts of an answer that is being continued, ``continuations`` how often
    that was; ``retries`` counts repeats of a cut call, each with twice the output limit; ``last_text`` is the last text beside tool calls.
    """

    iteration: int = 1
    pressure: PressureLevel | None = None
    continuations: int = 0
    retries: int = 0
    parts: tuple[str, ...] = ()
    last_text: str = ""
    guardrails: GuardrailState = GuardrailState()
    overflows: int = 0
    """Refusals as too long that were answered by a compaction."""
    last_call_tokens: int = 0
    """What the last model call used, input and output; behind a compaction the estimate of what is left."""
    paused: PausedBatch | None = None
    """The calls that wait for somebody, or have their answers and are not concluded yet."""
    attempts: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    route: RouteRef | None = None
    routes: tuple[RouteUse, ...] = ()
    children: ChildrenUse | None = None
    """What child turns have used, beside all that."""
    counted: Spent = Spent()
    """What of the use stands in the tenant's day already; the end of a turn adds the rest."""

    @property
    def spent(self) -> Spent:
        """What the turn has used."""
        return Spent(self.usage.input_tokens + self.usage.output_tokens, self.cost_usd or 0.0)


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The turn has an answer."""

    reason: CompletedReason
    output: str


class Interrupted(msgspec.Struct, frozen=True, kw_only=True):
    """The turn was stopped; ``output`` is the text of its open attempt."""

    reason: InterruptReason
    output: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The turn ended without an answer. ``detail`` is safe to show. ``retry_after_s``: when another try may succeed, if known.

    ``refused``: the provider called the request itself invalid, so that it is the caller who can mend it.
    """

    reason: FailedReason
    detail: str
    retryable: bool
    output: str = ""
    retry_after_s: float | None = None
    refused: bool = False


Outcome: TypeAlias = Completed | Interrupted | Failed


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of ownership that every write of a turn carries: a write of an earlier generation changes nothing.

    ``owner`` is ``None`` for a turn that waits in the queue, where nobody owns it.
    """

    turn_id: TurnId
    session_id: SessionId | None
    owner: ReplicaId | None
    generation: int


class RowKind(enum.IntEnum):
    """What an event row holds; deltas and facts never share one."""

    DELTAS = 0
    FACTS = 1
    TERMINAL = 2
    """Facts of which the last ends the stream."""


class EventRow(msgspec.Struct, frozen=True):
    """Ready frames for the sequence numbers ``first`` to ``last``, without gaps inside."""

    first: int
    last: int
    kind: RowKind
    frames: bytes


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store. ``seq`` was assigned by the turn, which is its session's only writer.

    ``archived``: it is for the transcript alone, never shown to the model.
    """

    id: MessageId
    seq: int
    message: Message
    archived: bool = False


class TurnKind(enum.StrEnum):
    """What a turn does."""

    CHAT = "chat"
    COMPACTION = "compaction"
    """It has no input: the older part of the conversation is replaced by a summary."""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller asked for; kept on the turn.

    ``input`` is empty for a stateless call (its history holds it) and for a turn that only brings ``answers``: results of calls that an
    earlier turn left to the client. ``client_tools`` are shown to the model beside the session's. ``model`` is asked first in this turn,
    in place of the session's. ``options`` are passed on to the model.
    """

    input: Content = ""
    kind: TurnKind = TurnKind.CHAT
    answers: tuple[Message, ...] = ()
    client_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    options: ModelOptions = NO_OPTIONS
    on_busy: OnBusy = OnBusy.REJECT
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    background: bool = False
    may_wait: bool = False
    """Whether the turn may pause for somebody: its client tools, questions of the model, approvals."""
    max_iterations: int = 90
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    metadata: dict[str, str] = {}
    depth: int = 0
    """How many turns stand above this one: 0 for a turn that is no child."""


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn, decided by the first commit that carries one."""

    state: TurnState
    reason: str
    outcome: bytes
    """JSON of the terminal event's ``data`` fields, for ``GET /turns/{id}``."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction changes with its commit, and what it took. ``memory`` is a new snapshot for the prompt."""

    id: str
    result: CompactionResult
    memory: str | None
    usage: Usage
    cost_usd: float | None


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic step of a turn: events, messages, machine state, and perhaps its end or hand-over.

    Applies only when the fence holds and the last stored fact is still ``previous_seq``; a repeat of a commit that was applied is
    recognised by its ``last_seq`` and changes nothing.
    """

    fence: Fence
    previous_seq: int
    last_seq: int
    rows: tuple[EventRow, ...]
    messages: tuple[NewMessage, ...] = ()
    next_message_seq: int = 0
    state: MachineState
    closing: Closing | None = None
    hand_over: bool = False
    waits_until_ms: int | None = None
    """The turn pauses for somebody, until then (unix ms). One that is to be stopped does not: it is there for the next claim."""
    forget: bool = False
    """The turn's earlier messages leave the working set."""
    context: ContextState | None = None
    """Kept with the session; ``None`` leaves what is there."""
    compaction: Compaction | None = None
    tool_calls: tuple[CallRecord, ...] = ()
    """Of calls whose results are among the messages."""
    counts: bool = False
    """Add to the tenant's day what the turn used since ``state.counted``, as an end does always; what is stored has it counted."""


class Committed(msgspec.Struct, frozen=True):
    """What a commit saw. ``day`` are the tenant's sums, when something was added to them."""

    others_wait: bool
    """Other turns wait for the session."""
    day: DaySums | None = None


class DeltaBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Deltas of one turn on their way to storage; fenced, and harmless to repeat."""

    fence: Fence
    row: EventRow


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answers for a waiting turn, made of it as it stood at ``previous_seq``.

    ``state`` holds them. With ``complete`` none is missing and the turn goes on; else it waits on. ``row`` is an event that goes with it.
    ``key``: what a repeat is known by, with the fingerprint of its body.
    """

    tenant_id: TenantId
    turn_id: TurnId
    previous_seq: int
    last_seq: int
    state: MachineState
    complete: bool
    row: EventRow | None = None
    key: str | None = None
    fingerprint: bytes = b""


class GivenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier request with answers, found by its key. ``after`` is the turn's last event before it; ``complete``: the turn went on."""

    fingerprint: bytes
    after: int
    complete: bool


class PruneAges(msgspec.Struct, frozen=True, kw_only=True):
    """How long after a turn's end what belongs to it is kept, in seconds; idempotency keys count from when they were used first.

    ``stateless_s`` is for whole turns of calls without a session; a session's turns stay as long as it does.
    """

    deltas_s: float
    idempotency_s: float
    stateless_s: float


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as read from the store. ``outcome`` is the terminal event's JSON; times in unix milliseconds."""

    id: TurnId
    session_id: SessionId | None
    state: TurnState
    reason: str | None
    request: TurnRequest
    machine: MachineState
    outcome: bytes | None
    expires_at_ms: int | None = None
    """When a turn that waits for somebody is given up."""
    fence: Fence
    last_seq: int
    created_at_ms: int
    started_at_ms: int | None
    ended_at_ms: int | None
