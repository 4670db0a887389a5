"""Replicas in one process: turn servers, logs and writers over stores in memory, on a clock that is driven by hand."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from app.domain.compaction import Room
from app.domain.events import FrameEncoder, IterationStarted, TurnCompleted, frame_seq, split_frames
from app.domain.ids import MessageId, ReplicaId, SessionId, TurnId
from app.domain.messages import Message, MessageKind, Role, StoredMessage, ToolCall
from app.domain.model import FinishReason, MessageDelta, ModelChunk, ModelReply, ModelRequest, RouteRef, Usage
from app.domain.openings import NewTurn, OpenTurn
from app.domain.sessions import NewSession
from app.domain.tenants import Purpose, Tenant
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.turns import EventRow, MachineState, OnBusy, RowKind, TurnRequest, TurnState
from app.ports import ModelClient, ModelClients, Wakeups
from app.turns.counters import Counters
from app.turns.event_log import EventLog
from app.turns.lease import Lease
from app.turns.quotas import Quotas
from app.turns.server import Stores, Timing, TurnServer
from app.turns.service import Turns
from app.turns.writer import TurnWriter
from tests.fakes.clock import HandClock, settle
from tests.fakes.kanban import InMemoryKanban
from tests.fakes.memories import InMemoryMemories
from tests.fakes.quotas import InMemoryUsage
from tests.fakes.rate_windows import InMemoryRateWindows
from tests.fakes.replicas import InMemoryReplicas
from tests.fakes.scripted_model import ROOM
from tests.fakes.sessions import InMemoryMessages, InMemorySessions
from tests.fakes.tenants import InMemoryTenants
from tests.fakes.tooling.todo_store import MemoryTodoStore
from tests.fakes.tools import InMemoryToolbox
from tests.fakes.turns import InMemoryTurns
from tests.integration.store.builders import an_id

TTL_S = 20.0
BEAT_S = 5.0
POLL_S = 0.01
A = ReplicaId("rep_a")
B = ReplicaId("rep_b")


class Hub(Wakeups):
    """Announcements that arrive at once; ``deaf`` loses them all."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[str], None]]] = {}
        self.announced: list[str] = []
        self.deaf = False

    @override
    def announce(self, topic: str, turn_ids: Iterable[TurnId] = ()) -> None:
        self.announced.append(topic)
        for listener in () if self.deaf else self._listeners.get(topic, ()):
            for turn_id in [str(turn_id) for turn_id in turn_ids] or [""]:
                listener(turn_id)

    @override
    def subscribe(self, topic: str, listener: Callable[[str], None]) -> None:
        self._listeners.setdefault(topic, []).append(listener)


class OneModel(ModelClients):
    """Every tenant's chain is the same client."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    @override
    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        return self._client

    @override
    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        return self._client


async def nothing() -> None:
    """For a lease that has nothing to check."""


@dataclass(slots=True)
class Replica:
    """The log and the lease of a process, without a turn server around them."""

    log: EventLog
    lease: Lease
    counters: Counters

    async def beat(self) -> None:
        """Renew the lease."""
        await self.lease.beat(nothing)


@dataclass(slots=True)
class Stage:
    """What all replicas share."""

    clock: HandClock = field(default_factory=HandClock)
    hub: Hub = field(default_factory=Hub)
    sessions: InMemorySessions = field(init=False)
    messages: InMemoryMessages = field(init=False)
    replicas: InMemoryReplicas = field(init=False)
    turns: InMemoryTurns = field(init=False)
    tenants: InMemoryTenants = field(default_factory=InMemoryTenants)
    windows: InMemoryRateWindows = field(init=False)
    usage: InMemoryUsage = field(init=False)
    tenant: Tenant = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = InMemorySessions(self.clock)
        self.messages = InMemoryMessages(self.sessions)
        self.replicas = InMemoryReplicas(self.clock)
        self.turns = InMemoryTurns(self.sessions, self.replicas, self.clock, ttl_s=TTL_S)
        self.windows = InMemoryRateWindows(self.clock)
        self.usage = InMemoryUsage(self.turns, self.clock)
        self.tenant = self.tenants.add("acme", "agw_key")

    def away(self, away: bool) -> None:
        """Take the database away, or bring it back."""
        self.turns.away = self.replicas.away = self.sessions.away = away

    async def session(self, *, keep_interrupted_text: bool = False) -> SessionId:
        """A new session."""
        session_id = SessionId(an_id("sess"))
        await self.sessions.create(
            NewSession(
                id=session_id,
                tenant_id=self.tenant.id,
                system_prompt="be kind",
                model=None,
                toolsets=("shop",),
                tools=b'[{"name":"buy","description":"Buys.","parameters":{"type":"object"}}]',
                user=None,
                keep_interrupted_text=keep_interrupted_text,
                metadata={},
                messages=(),
                idempotency_key=None,
                fingerprint=b"",
            )
        )
        return session_id

    async def opened(self, owner: ReplicaId = A, session_id: SessionId | None = None) -> OpenTurn:
        """A turn that runs at ``owner`` and has its first event."""
        opening = await self.turns.open(self.new_turn(session_id or await self.session(), owner=owner))
        assert isinstance(opening, OpenTurn)
        return opening

    def new_turn(self, session_id: SessionId, *, owner: ReplicaId | None = A, on_busy: OnBusy = OnBusy.REJECT) -> NewTurn:
        """A turn to be opened."""
        turn_id = TurnId(an_id("turn"))
        frame = FrameEncoder(turn_id).frame(1, IterationStarted(iteration=1, max_iterations=90))
        return NewTurn(
            id=turn_id,
            tenant_id=self.tenant.id,
            session_id=session_id,
            request=TurnRequest(input="hello", on_busy=on_busy),
            owner=owner,
            message_id=MessageId(an_id("msg")),
            rows=(EventRow(1, 1, RowKind.FACTS, frame),),
            max_queued=16,
            idempotency_key=None,
            fingerprint=b"",
            created_at_ms=0,
        )

    def replica(self, name: ReplicaId = A) -> Replica:
        """A log with its lease."""
        counters = Counters()
        lease = Lease(name, self.replicas, self.clock, ttl_s=TTL_S, beat_s=BEAT_S)
        log = EventLog(self.turns, lease=lease, clock=self.clock, wakeups=self.hub, counters=counters)
        return Replica(log, lease, counters)

    def writer(self, replica: Replica, turn: OpenTurn) -> TurnWriter:
        """The writer of a turn at a replica."""
        return TurnWriter(turn, store=self.turns, log=replica.log, lease=replica.lease, clock=self.clock, counters=replica.counters)

    def server(self, model: ModelClient, name: ReplicaId = A, *, limit: int = 100, toolbox: InMemoryToolbox | None = None) -> TurnServer:
        """A whole turn server."""
        return TurnServer(
            name,
            Stores(
                turns=self.turns,
                messages=self.messages,
                replicas=self.replicas,
                tenants=self.tenants,
                todos=MemoryTodoStore(),
                memory=InMemoryMemories(self.sessions),
                usage=self.usage,
                sessions=self.sessions,
                kanban=InMemoryKanban(self.sessions, self.clock),
            ),
            models=OneModel(model),
            toolboxes=toolbox or InMemoryToolbox({"shop": ("buy",)}),
            clock=self.clock,
            wakeups=self.hub,
            timing=Timing(lease_ttl_s=TTL_S, lease_beat_s=BEAT_S, poll_s=POLL_S, max_running_turns=limit),
        )

    def service(self, server: TurnServer, model: ModelClient) -> Turns:
        """What callers see of a server."""
        return Turns(server, self.turns, OneModel(model), self.clock, quotas=Quotas(self.windows, self.usage, self.clock, server.shares))

    def state(self, turn_id: TurnId) -> TurnState:
        """Where a turn stands."""
        return self.turns.rows[turn_id].state

    def frames(self, turn_id: TurnId) -> list[bytes]:
        """Every stored frame of a turn."""
        return [frame for row in self.turns.rows[turn_id].rows() for frame in split_frames(row.frames)]

    async def until(self, condition: Callable[[], object], step_s: float = 0.05, limit: int = 2_000) -> None:
        """Let time pass until ``condition`` holds."""
        for _ in range(limit):
            if condition():
                return
            await self.clock.advance(step_s)
            await asyncio.sleep(0.001)
        msg = "it never came to that"
        raise AssertionError(msg)


@dataclass(slots=True)
class Reader:
    """Reads frames as a client does: over as many connections as it takes, each going on behind the last frame."""

    after: int = 0
    frames: list[bytes] = field(default_factory=list)
    on_piece: Callable[[list[int]], None] | None = None
    task: "asyncio.Task[None] | None" = None
    ended: bool = False

    def attach(self, log: EventLog, turn_id: TurnId) -> None:
        """Connect to a replica."""
        self.read(log.follow(turn_id, self.last))

    def read(self, pieces: AsyncGenerator[bytes, None]) -> None:
        """Read what somebody else has connected to."""
        self.ended = False
        self.task = asyncio.ensure_future(self._read(pieces))

    async def detach(self) -> None:
        """Drop the connection."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def last(self) -> int:
        return frame_seq(self.frames[-1]) if self.frames else self.after

    @property
    def seqs(self) -> list[int]:
        return [frame_seq(frame) for frame in self.frames]

    async def _read(self, pieces: AsyncGenerator[bytes, None]) -> None:
        try:
            async for piece in pieces:
                frames = split_frames(piece)
                if self.on_piece is not None:
                    self.on_piece([frame_seq(frame) for frame in frames])
                self.frames += frames
            self.ended = True
        finally:
            await pieces.aclose()


def types(frames: Sequence[bytes]) -> list[str]:
    """The event types of frames."""
    return [frame.split(b"\n", 2)[1].removeprefix(b"event: ").decode() for frame in frames]


def deltas(count: int, text: str = "x", attempt: int = 1) -> list[MessageDelta]:
    """Deltas that arrived together."""
    return [MessageDelta(attempt=attempt, text=text) for _ in range(count)]


def fact(number: int = 2) -> IterationStarted:
    """Some fact."""
    return IterationStarted(iteration=number, max_iterations=90)


def completed(turn: OpenTurn) -> TurnCompleted:
    """A terminal event."""
    return TurnCompleted(
        session_id=turn.fence.session_id,
        reason="answer",
        output="done",
        iterations=1,
        attempts=1,
        usage=Usage(),
        cost_usd=None,
        route=None,
    )


def session_of(turn: OpenTurn) -> SessionId:
    """The session of a turn that has one."""
    assert turn.fence.session_id is not None
    return turn.fence.session_id


async def close(writer: TurnWriter, turn: OpenTurn, state: MachineState | None = None) -> None:
    """End a turn as completed."""
    await writer.close(completed(turn), before=(), messages=(), state=state or MachineState(), to=TurnState.COMPLETED, forget=False)


def said(turn: OpenTurn, seq: int, text: str) -> StoredMessage:
    """An assistant message of a turn."""
    return StoredMessage(
        id=MessageId(an_id("msg")),
        session_id=turn.fence.session_id,
        seq=seq,
        turn_id=turn.fence.turn_id,
        message=Message(role=Role.ASSISTANT, content=text, kind=MessageKind.SAID),
        archived=False,
        created_at_ms=0,
    )


async def run_tail(replica: Replica) -> "asyncio.Task[None]":
    """Start the reading of storage; the caller cancels it."""
    task = asyncio.ensure_future(replica.log.tail.run())
    await settle(1)
    return task


ROUTE = RouteRef(provider="primary", model="m-test")


class Talker(ModelClient):
    """Says "Hel", waits for ``go``, and ends with "Hello"; before that it calls ``buy`` in each of its first ``rounds`` iterations."""

    def __init__(self, *, rounds: int = 0, go: bool = False) -> None:
        self.go = asyncio.Event()
        if go:
            self.go.set()
        self._rounds = rounds
        self.streams = 0
        """Calls under way."""
        self.requests: list[ModelRequest] = []

    @property
    @override
    def primary(self) -> RouteRef:
        return ROUTE

    @property
    @override
    def room(self) -> Room:
        return ROOM

    @override
    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        return None

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        self.requests.append(request)
        self.streams += 1
        try:
            done = sum(message.role is Role.TOOL for message in request.messages)
            if done < self._rounds:
                yield (self._reply(request, "", (ToolCall(f"call_{done}", "buy", "{}"),)),)
                return
            yield (MessageDelta(request.first_attempt, "Hel"),)
            await self.go.wait()
            yield (MessageDelta(request.first_attempt, "lo"), self._reply(request, "Hello", ()))
        finally:
            self.streams -= 1

    def _reply(self, request: ModelRequest, text: str, calls: tuple[ToolCall, ...]) -> ModelReply:
        return ModelReply(
            attempt=request.first_attempt,
            route=ROUTE,
            text=text,
            reasoning="",
            tool_calls=calls,
            bad_arguments={},
            finish=FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
            usage=Usage(),
            cost_usd=None,
        )


class SlowToolbox(InMemoryToolbox):
    """Its tools wait for ``go``."""

    def __init__(self) -> None:
        super().__init__({"shop": ("buy",)})
        self.go = asyncio.Event()
        self.calls = 0

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        self.calls += 1
        await self.go.wait()
        return ToolOutcome(output="bought")
