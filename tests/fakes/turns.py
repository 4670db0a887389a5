"""Turns and their events in memory: :class:`app.ports.TurnStore`.

The same fences as in Postgres: a write counts only for the owner and generation that hold the turn, and only behind its last fact.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import msgspec
from typing_extensions import override

from app.domain.errors import LeaseLostError
from app.domain.ids import ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import StoredMessage
from app.domain.openings import (
    NOTHING_KEPT,
    Busy,
    Kept,
    NewTurn,
    NoSession,
    Opening,
    OpenTurn,
    Queued,
    QueueFull,
    Replayed,
    TooManyOpen,
    opened_stateless,
)
from app.domain.quotas import DaySums, Spent
from app.domain.sessions import Page
from app.domain.turns import (
    SEQ_GAP,
    Commit,
    Committed,
    DeltaBatch,
    EventRow,
    Fence,
    GivenAnswer,
    InterruptReason,
    MachineState,
    NewMessage,
    OnBusy,
    PruneAges,
    RowKind,
    TurnAnswer,
    TurnState,
    TurnView,
    Unwatched,
)
from app.ports import Clock, TurnStore
from tests.fakes.replicas import InMemoryReplicas, away
from tests.fakes.sessions import InMemorySessions

READ_ROWS = 64


@dataclass(slots=True)
class TurnRow:
    """One turn as the table has it."""

    new: NewTurn
    ordinal: int
    state: TurnState
    owner: ReplicaId | None
    generation: int
    last_seq: int
    created_at_ms: int
    started_at: float | None = None
    started_at_ms: int | None = None
    ended_at: float | None = None
    ended_at_ms: int | None = None
    machine: MachineState = field(default_factory=MachineState)
    cancel_reason: InterruptReason | None = None
    watched_until: float | None = None
    reason: str | None = None
    outcome: bytes | None = None
    key: str | None = None
    expires_at_ms: int | None = None
    resuming: bool = False
    """It has waited for somebody and waits no more; it still holds its session."""
    answers: dict[str, GivenAnswer] = field(default_factory=dict)
    events: dict[int, EventRow] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, int]:
        """The place in its session's queue."""
        return (0 if self.new.request.on_busy is OnBusy.INTERRUPT else 1, self.ordinal)

    @property
    def holds_session(self) -> bool:
        """Whether no other turn of its session may run."""
        return self.state in (TurnState.RUNNING, TurnState.REQUIRES_ACTION) or self.resuming

    def takes(self, commit: Commit) -> bool:
        """Whether a step may be applied."""
        held = self.state.terminal or self.state is TurnState.REQUIRES_ACTION
        return not held and self.fence == commit.fence and self.last_seq == commit.previous_seq

    def pause(self, until_ms: int) -> None:
        """It waits for somebody, unless it is to be stopped."""
        self.owner, self.state, self.expires_at_ms = None, TurnState.REQUIRES_ACTION, until_ms
        if self.cancel_reason is not None:
            self.wait_no_more()

    def wait_no_more(self) -> None:
        """It is there for the next claim."""
        if self.state is TurnState.REQUIRES_ACTION:
            self.state, self.resuming = TurnState.QUEUED, True

    @property
    def fence(self) -> Fence:
        """Who may write it."""
        return Fence(turn_id=self.new.id, session_id=self.new.session_id, owner=self.owner, generation=self.generation)

    def rows(self, after: int = 0) -> list[EventRow]:
        """Its events behind ``after``."""
        return [row for _, row in sorted(self.events.items()) if row.last > after]

    def add(self, row: EventRow) -> None:
        """Store a row of events; one that begins like a row of deltas and goes further replaces it."""
        known = self.events.get(row.first)
        if known is None or (known.kind is RowKind.DELTAS and row.last > known.last):
            self.events[row.first] = row


class InMemoryTurns(TurnStore):
    """Turns of :class:`InMemorySessions`.

    ``away`` makes every call fail like a database that is gone, ``answers_lost`` lets that many writes happen whose answer never comes,
    ``broken`` names turns whose deltas cannot be stored, ``held`` lets calls of a method wait until the event is set.
    """

    def __init__(self, sessions: InMemorySessions, replicas: InMemoryReplicas, clock: Clock, *, ttl_s: float = 20.0) -> None:
        self._sessions = sessions
        self._replicas = replicas
        self._clock = clock
        self._ttl_s = ttl_s
        self._next_seq: dict[SessionId, int] = {}
        self.rows: dict[TurnId, TurnRow] = {}
        self.calls: Counter[str] = Counter()
        self.cursors_read: list[int] = []
        """How many cursors each read of events served."""
        self.away = False
        self.answers_lost = 0
        self.broken: set[TurnId] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.kept: dict[SessionId, Kept] = {}
        self.used: dict[tuple[TenantId, date], Spent] = {}

    @override
    async def open(self, turn: NewTurn) -> Opening:
        await self._enter("open")
        if turn.session_id is not None:
            session = self._sessions.stored(turn.session_id) if turn.session_id in self._sessions.messages else None
            if session is None or session.tenant_id != turn.tenant_id:
                return NoSession()
        if turn.max_open is not None and self._count_open(turn.tenant_id) >= turn.max_open:
            return self._replayed(turn) or TooManyOpen()
        refusal = self._refusal(turn)
        if refusal is not None:
            return refusal
        row = TurnRow(
            new=turn,
            ordinal=len(self.rows),
            state=TurnState.RUNNING if turn.owner else TurnState.QUEUED,
            owner=turn.owner,
            generation=1 if turn.owner else 0,
            last_seq=turn.rows[-1].last,
            created_at_ms=self._clock.unix_ms(),
            key=turn.idempotency_key,
            events={entry.first: entry for entry in turn.rows},
        )
        self.rows[turn.id] = row
        if turn.owner is not None:
            self._begin(row)
        self._answer()
        return Queued(turn_id=turn.id) if turn.owner is None else self._open_turn(row, resumed=False)

    @override
    async def replayed(self, turn: NewTurn) -> Replayed | None:
        await self._enter("replayed")
        return self._replayed(turn)

    def _replayed(self, turn: NewTurn) -> Replayed | None:
        refusal = None if turn.idempotency_key is None else self._refusal(turn)
        return refusal if isinstance(refusal, Replayed) else None

    def _count_open(self, tenant_id: TenantId) -> int:
        return sum(row.new.tenant_id == tenant_id and not row.state.terminal for row in self.rows.values())

    def _refusal(self, turn: NewTurn) -> Opening | None:
        rows = [row for row in self.rows.values() if (row.new.session_id, row.new.tenant_id) == (turn.session_id, turn.tenant_id)]
        for row in rows:
            if row.new.id == turn.id or (turn.idempotency_key is not None and row.key == turn.idempotency_key):
                return Replayed(turn_id=row.new.id, same_body=row.new.fingerprint == turn.fingerprint)
        if turn.session_id is None:
            return None
        queued = sorted((row for row in rows if row.state is TurnState.QUEUED and not row.resuming), key=lambda row: row.rank)
        running = [row for row in rows if row.holds_session]
        if turn.owner is not None and (running or queued):
            return Busy(turn_id=(running or queued)[0].new.id)
        if turn.owner is None and len(queued) >= turn.max_queued:
            return QueueFull()
        return None

    def _begin(self, row: TurnRow) -> None:
        """The first start of a turn: its user message becomes part of the history."""
        row.started_at, row.started_at_ms = self._clock.monotonic(), self._clock.unix_ms()
        session_id = row.new.session_id
        if session_id is None:
            return
        self._sessions.running[session_id] = row.new.id
        for message_id, message in row.new.messages:
            seq = self._free_seq(session_id)
            self._append(row, NewMessage(id=message_id, seq=seq, message=message))
            self._next_seq[session_id] = seq + 1

    def _free_seq(self, session_id: SessionId) -> int:
        return self._next_seq.get(session_id, len(self._sessions.messages[session_id]) + 1)

    def _append(self, row: TurnRow, new: NewMessage) -> None:
        assert row.new.session_id is not None, "a stateless call has no message rows"
        rows = self._sessions.messages[row.new.session_id]
        assert new.seq not in {stored.seq for stored in rows}, "two messages at one place"
        rows.append(
            StoredMessage(
                id=new.id,
                session_id=row.new.session_id,
                seq=new.seq,
                turn_id=row.new.id,
                message=new.message,
                archived=new.archived,
                created_at_ms=self._clock.unix_ms(),
            )
        )
        rows.sort(key=lambda stored: stored.seq)

    def _open_turn(self, row: TurnRow, *, resumed: bool) -> OpenTurn:
        new = row.new
        if new.stateless is not None and not resumed:
            return opened_stateless(new, new.stateless)
        session = None if new.session_id is None else self._sessions.stored(new.session_id)
        return OpenTurn(
            fence=row.fence,
            tenant_id=row.new.tenant_id,
            request=row.new.request,
            state=row.machine,
            last_seq=row.last_seq,
            next_message_seq=1 if new.session_id is None else self._free_seq(new.session_id),
            system_prompt=session.system_prompt if session else "",
            tools=session.tools if session else b"[]",
            model=session.model if session else None,
            kept=self.kept.get(new.session_id, NOTHING_KEPT) if new.session_id else NOTHING_KEPT,
            keep_interrupted_text=bool(session and session.keep_interrupted_text),
            cancel_reason=row.cancel_reason,
            resumed=resumed,
        )

    @override
    async def session_model(self, tenant_id: TenantId, session_id: SessionId) -> str | None:
        await self._enter("session_model")
        session = self._sessions.stored(session_id) if session_id in self._sessions.messages else None
        return session.model if session is not None and session.tenant_id == tenant_id else None

    @override
    async def claim(self, owner: ReplicaId, limit: int) -> list[OpenTurn]:
        await self._enter("claim")
        claimed: list[OpenTurn] = []
        for row in sorted(self.rows.values(), key=lambda row: (not row.resuming, row.rank)):
            if len(claimed) < limit and row.state is TurnState.QUEUED and self._is_next(row):
                resumed = row.started_at is not None
                row.state, row.owner, row.generation, row.resuming = TurnState.RUNNING, owner, row.generation + 1, False
                assert row.new.session_id is not None, "a stateless call never waits"
                self._sessions.running[row.new.session_id] = row.new.id
                if not resumed:
                    self._begin(row)
                claimed.append(self._open_turn(row, resumed=resumed))
        self._answer()
        return claimed

    def _is_next(self, row: TurnRow) -> bool:
        others = [other for other in self.rows.values() if other.new.session_id == row.new.session_id and other is not row]
        return row.resuming or not any(
            other.holds_session or (other.state is TurnState.QUEUED and other.rank < row.rank) for other in others
        )

    @override
    async def commit(self, commit: Commit) -> Committed:
        await self._enter("commit")
        row = self.rows.get(commit.fence.turn_id)
        if row is None:
            raise LeaseLostError
        if not row.takes(commit):
            let_go = commit.hand_over or commit.waits_until_ms is not None
            if row.last_seq == commit.last_seq and (row.generation == commit.fence.generation or let_go):
                return Committed(self._others_wait(row))
            raise LeaseLostError
        for entry in commit.rows:
            row.add(entry)
        for message in commit.messages:
            self._append(row, message)
        session_id = row.new.session_id
        if session_id is not None:
            self._next_seq[session_id] = max(self._free_seq(session_id), commit.next_message_seq)
        row.last_seq, row.machine = commit.last_seq, self._counted(row, commit)
        if commit.forget:
            self._forget(row)
        if session_id is not None:
            self._keep(session_id, commit)
        self._release(row, commit)
        self._answer()
        return Committed(self._others_wait(row), self.day(row.new.tenant_id) if commit.counts else None)

    def day(self, tenant_id: TenantId) -> DaySums:
        """What the tenant's turns used today."""
        today = self._clock.now().date()
        used = self.used.get((tenant_id, today), Spent())
        return DaySums(day=today, tokens=used.tokens, cost_usd=used.cost_usd)

    def _counted(self, row: TurnRow, commit: Commit) -> MachineState:
        """Add to the tenant's day what is to be added; returns the state that is kept."""
        state = commit.state
        if commit.closing is None and not commit.counts:
            return state
        added = state.spent.since(state.counted)
        place = (row.new.tenant_id, self._clock.now().date())
        before = self.used.get(place, Spent())
        self.used[place] = Spent(before.tokens + added.tokens, before.cost_usd + added.cost_usd)
        return msgspec.structs.replace(state, counted=state.spent) if commit.counts else state

    def _keep(self, session_id: SessionId, commit: Commit) -> None:
        kept = self.kept.get(session_id, NOTHING_KEPT)
        if commit.context is not None:
            kept = msgspec.structs.replace(kept, context=commit.context)
        if commit.compaction is not None:
            result = commit.compaction.result
            kept = msgspec.structs.replace(kept, memory=commit.compaction.memory, summary=result.summary or kept.summary)
            rows = self._sessions.messages[session_id]
            gone = frozenset(result.leaving_seqs)
            rows[:] = [msgspec.structs.replace(stored, archived=True) if stored.seq in gone else stored for stored in rows]
        self.kept[session_id] = kept

    def _others_wait(self, row: TurnRow) -> bool:
        session_id = row.new.session_id
        waiting = (other for other in self.rows.values() if other.state is TurnState.QUEUED)
        return session_id is not None and any(other.new.session_id == session_id for other in waiting)

    def _forget(self, row: TurnRow) -> None:
        rows = self._sessions.messages[row.new.session_id] if row.new.session_id else []
        rows[:] = [msgspec.structs.replace(stored, archived=True) if stored.turn_id == row.new.id else stored for stored in rows]

    def _release(self, row: TurnRow, commit: Commit) -> None:
        """Let the turn go, where the step does."""
        if commit.waits_until_ms is not None:
            row.pause(commit.waits_until_ms)
            return
        if commit.closing is None and not commit.hand_over:
            return
        session_id = row.new.session_id
        if session_id is not None and self._sessions.running.get(session_id) == row.new.id:
            del self._sessions.running[session_id]
        row.owner, row.resuming = None, False
        if commit.closing is None:
            row.state = TurnState.QUEUED
            return
        row.state, row.reason, row.outcome = commit.closing.state, commit.closing.reason, commit.closing.outcome
        row.ended_at, row.ended_at_ms = self._clock.monotonic(), self._clock.unix_ms()

    @override
    async def append_deltas(self, batches: Sequence[DeltaBatch]) -> set[TurnId]:
        await self._enter("append_deltas")
        if self.broken & {batch.fence.turn_id for batch in batches}:
            msg = "these deltas cannot be stored"
            raise ValueError(msg)
        held: set[TurnId] = set()
        for batch in batches:
            row = self.rows.get(batch.fence.turn_id)
            if row is not None and row.fence == batch.fence and row.state is TurnState.RUNNING:
                row.add(batch.row)
                held.add(batch.fence.turn_id)
        self._answer()
        return held

    @override
    async def owned(self, owner: ReplicaId, turns: Sequence[TurnId]) -> set[TurnId]:
        await self._enter("owned")
        return {turn_id for turn_id in turns if self._runs_at(turn_id, owner)}

    def _runs_at(self, turn_id: TurnId, owner: ReplicaId) -> bool:
        row = self.rows.get(turn_id)
        return row is not None and row.owner == owner and row.state is TurnState.RUNNING

    @override
    async def cancel_requests(self, owner: ReplicaId) -> dict[TurnId, InterruptReason]:
        await self._enter("cancel_requests")
        return {row.new.id: row.cancel_reason for row in self.rows.values() if row.cancel_reason and self._runs_at(row.new.id, owner)}

    @override
    async def request_cancel(self, tenant_id: TenantId, turn_id: TurnId, reason: InterruptReason) -> TurnView | None:
        await self._enter("request_cancel")
        row = self.rows.get(turn_id)
        if row is None or row.new.tenant_id != tenant_id:
            return None
        if not row.state.terminal and row.cancel_reason is None:
            row.cancel_reason = reason
        row.wait_no_more()
        self._answer()
        return _view(row)

    @override
    async def expire(self, limit: int) -> list[TurnView]:
        await self._enter("expire")
        waiting = [row for row in self.rows.values() if row.state is TurnState.REQUIRES_ACTION]
        late = [row for row in waiting if row.expires_at_ms is not None and row.expires_at_ms < self._clock.unix_ms()][:limit]
        for row in late:
            row.cancel_reason = row.cancel_reason or InterruptReason.EXPIRED
            row.wait_no_more()
        self._answer()
        return [_view(row) for row in late]

    @override
    async def answer(self, answer: TurnAnswer) -> bool:
        await self._enter("answer")
        row = self.rows.get(answer.turn_id)
        if row is None or row.new.tenant_id != answer.tenant_id:
            return False
        if row.state is not TurnState.REQUIRES_ACTION or row.last_seq != answer.previous_seq:
            return False
        row.machine, row.last_seq = answer.state, answer.last_seq
        if answer.row is not None:
            row.add(answer.row)
        if answer.key is not None:
            row.answers[answer.key] = GivenAnswer(fingerprint=answer.fingerprint, after=answer.previous_seq, complete=answer.complete)
        if answer.complete:
            row.wait_no_more()
        self._answer()
        return True

    @override
    async def given_answer(self, turn_id: TurnId, key: str) -> GivenAnswer | None:
        await self._enter("given_answer")
        row = self.rows.get(turn_id)
        return None if row is None else row.answers.get(key)

    @override
    async def take_over(self, owner: ReplicaId, known: Sequence[TurnId], limit: int, *, beat: int) -> list[OpenTurn]:
        await self._enter("take_over")
        if self._replicas.stamp(owner) != beat or self._replicas.expires_at[owner] <= self._clock.monotonic() + self._ttl_s / 2:
            return []
        taken = [row for row in self.rows.values() if row.state is TurnState.RUNNING and self._is_lost(row, owner, known)][:limit]
        for row in taken:
            row.last_seq = SEQ_GAP + max([row.last_seq, *(entry.last for entry in row.events.values())])
            row.owner, row.generation = owner, row.generation + 1
        self._answer()
        return [self._open_turn(row, resumed=True) for row in taken]

    def _is_lost(self, row: TurnRow, owner: ReplicaId, known: Sequence[TurnId]) -> bool:
        if any(child.new.parent_turn_id == row.new.id and not child.state.terminal for child in self.rows.values()):
            return False
        if row.owner != owner:
            return not self._replicas.is_alive(row.owner)
        return row.new.id not in known and (row.started_at or 0.0) < self._clock.monotonic() - self._ttl_s

    @override
    async def cancel_unwatched(self, turn_id: TurnId, reason: InterruptReason) -> Unwatched:
        await self._enter("cancel_unwatched")
        row = self.rows.get(turn_id)
        if row is None or row.state.terminal or row.state is TurnState.REQUIRES_ACTION:
            return Unwatched.SETTLED
        if row.watched_until is not None and row.watched_until >= self._clock.monotonic():
            return Unwatched.WATCHED
        row.cancel_reason = row.cancel_reason or reason
        return Unwatched.MARKED

    @override
    async def watch(self, turns: Sequence[TurnId], for_s: float) -> None:
        await self._enter("watch")
        for turn_id in turns:
            row = self.rows.get(turn_id)
            if row is not None and not row.state.terminal:
                row.watched_until = self._clock.monotonic() + for_s

    @override
    async def get(self, tenant_id: TenantId, turn_id: TurnId) -> TurnView | None:
        await self._enter("get")
        row = self.rows.get(turn_id)
        return _view(row) if row is not None and row.new.tenant_id == tenant_id else None

    @override
    async def list_for_session(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[TurnView]:
        await self._enter("list_for_session")
        found = sorted(
            (
                turn_id
                for turn_id, row in self.rows.items()
                if row.new.session_id == session_id and row.new.tenant_id == tenant_id and (before is None or turn_id < before)
            ),
            reverse=True,
        )
        views = tuple(_view(self.rows[turn_id]) for turn_id in found[:limit])
        return Page(data=views, next_cursor=found[limit - 1] if len(found) > limit else None)

    @override
    async def read_events(self, cursors: Sequence[tuple[TurnId, int]]) -> dict[tuple[TurnId, int], tuple[list[EventRow], bool]]:
        await self._enter("read_events")
        self.cursors_read.append(len(cursors))
        return {(turn_id, after): self._behind(turn_id, after) for turn_id, after in cursors}

    def _behind(self, turn_id: TurnId, after: int) -> tuple[list[EventRow], bool]:
        if (row := self.rows.get(turn_id)) is None:
            return [], True
        waits = row.state is TurnState.REQUIRES_ACTION
        return row.rows(after)[:READ_ROWS], waits or (row.state.terminal and after >= row.last_seq)

    @override
    async def prune(self, ages: PruneAges) -> int:
        await self._enter("prune")
        removed = 0
        now = self._clock.monotonic()
        for turn_id, row in list(self.rows.items()):
            if row.created_at_ms < self._clock.unix_ms() - ages.idempotency_s * 1000:
                row.key = None
                row.answers.clear()
            if row.ended_at is None:
                continue
            if row.ended_at < now - ages.deltas_s:
                kept = {first: entry for first, entry in row.events.items() if entry.kind is not RowKind.DELTAS}
                removed += len(row.events) - len(kept)
                row.events = kept
            if row.new.session_id is None and row.key is None and row.ended_at < now - ages.stateless_s:
                del self.rows[turn_id]
                removed += 1
        return removed

    async def _enter(self, name: str) -> None:
        self.calls[name] += 1
        await asyncio.sleep(0)
        if name in self.held:
            await self.held[name].wait()
        if self.away:
            raise away()

    def _answer(self) -> None:
        if self.answers_lost:
            self.answers_lost -= 1
            raise away()


def _view(row: TurnRow) -> TurnView:
    return TurnView(
        id=row.new.id,
        session_id=row.new.session_id,
        state=row.state,
        reason=row.reason,
        request=row.new.request,
        machine=row.machine,
        outcome=row.outcome,
        expires_at_ms=row.expires_at_ms,
        fence=row.fence,
        last_seq=row.last_seq,
        created_at_ms=row.created_at_ms,
        started_at_ms=row.started_at_ms,
        ended_at_ms=row.ended_at_ms,
    )
