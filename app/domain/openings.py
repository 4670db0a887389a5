"""What comes of a request for a turn: a new turn as it is written, the turn as a replica owns it, and every other answer of the store."""

from typing import TypeAlias

import msgspec

from app.domain.compaction import ContextState
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message, Role, StoredMessage
from app.domain.turns import EventRow, Fence, InterruptReason, MachineState, TurnRequest


class StatelessCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn without a session brings along in its place. ``history`` is the whole conversation, its input included.

    ``tools`` is the canonical JSON list of the gateway's own tools that the call asks for.
    """

    system_prompt: str
    tools: bytes
    history: tuple[Message, ...]


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to be written: ``owner`` set means it starts at once, ``None`` that it is queued.

    Exactly one of ``session_id`` and ``stateless`` is set. A stateless turn starts at once or not at all; so does one that brings answers.

    ``rows`` are its first events (``turn.queued`` or ``turn.started`` + ``iteration.started``), ``message_id`` that of its user message.
    ``answer_ids`` are those of the request's answers.
    ``max_open`` is how many turns the tenant may have running and queued, this one included; ``None`` is no limit.
    """

    id: TurnId
    tenant_id: TenantId
    session_id: SessionId | None
    request: TurnRequest
    owner: ReplicaId | None
    message_id: MessageId
    rows: tuple[EventRow, ...]
    max_queued: int
    idempotency_key: str | None
    fingerprint: bytes
    created_at_ms: int
    stateless: StatelessCall | None = None
    answer_ids: tuple[MessageId, ...] = ()
    max_open: int | None = None
    parent_turn_id: TurnId | None = None
    """The turn that starts it as its child."""

    @property
    def messages(self) -> tuple[tuple[MessageId, Message], ...]:
        """What the turn adds to its session at its start, in order."""
        answers = tuple(zip(self.answer_ids, self.request.answers, strict=True))
        if not self.request.input:
            return answers
        return (*answers, (self.message_id, Message(role=Role.USER, content=self.request.input)))


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a session keeps beside its rows for the model: the snapshot of memory behind its system prompt, the summary of what has left
    the context, and the state that decides about compaction.
    """

    memory: str | None = None
    summary: str | None = None
    context: ContextState = ContextState()


NOTHING_KEPT = Kept()


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that this replica owns and runs. ``last_seq`` is its last stored event, ``next_message_seq`` free in its session.

    ``cancel_reason`` is set when the interrupt came before the start. ``resumed``: it ran before, elsewhere.
    """

    fence: Fence
    tenant_id: TenantId
    request: TurnRequest
    state: MachineState
    last_seq: int
    next_message_seq: int
    system_prompt: str
    tools: bytes
    """The session's snapshot of tool definitions: canonical JSON of a list of ToolSpec."""
    model: str | None
    kept: Kept
    """What the session keeps beside its rows."""
    keep_interrupted_text: bool
    cancel_reason: InterruptReason | None
    resumed: bool
    rows: tuple[EventRow, ...] = ()
    """Its stored events, when it was opened just now: its readers then begin in memory."""
    working_set: tuple[StoredMessage, ...] | None = None
    """The session's (or the stateless call's) messages, its own included, when they came with the opening."""


def opened_stateless(turn: NewTurn, call: StatelessCall) -> OpenTurn:
    """A stateless turn as it runs, once it is written. Its messages have places and no ids: they are no rows."""
    return OpenTurn(
        fence=Fence(turn_id=turn.id, session_id=None, owner=turn.owner, generation=1),
        tenant_id=turn.tenant_id,
        request=turn.request,
        state=MachineState(),
        last_seq=turn.rows[-1].last,
        next_message_seq=len(call.history) + 1,
        system_prompt=call.system_prompt,
        tools=call.tools,
        model=None,
        kept=NOTHING_KEPT,
        keep_interrupted_text=False,
        cancel_reason=None,
        resumed=False,
        rows=turn.rows,
        working_set=tuple(
            StoredMessage(
                id=MessageId(""),
                session_id=None,
                seq=seq,
                turn_id=None,
                message=message,
                archived=False,
                created_at_ms=turn.created_at_ms,
            )
            for seq, message in enumerate(call.history, 1)
        ),
    )


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The new turn waits."""

    turn_id: TurnId


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The idempotency key is known: this is the turn that it made. ``same_body``: the fingerprints agree."""

    turn_id: TurnId
    same_body: bool


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """The session has a running turn."""

    turn_id: TurnId


class QueueFull(msgspec.Struct, frozen=True, kw_only=True):
    """The session has as many queued turns as it may."""


class TooManyOpen(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant has as many running and queued turns as it may."""


class NoSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session is unknown to the tenant."""


Opening: TypeAlias = OpenTurn | Queued | Replayed | Busy | QueueFull | TooManyOpen | NoSession
"""What came of writing a :class:`NewTurn`."""
