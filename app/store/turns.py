"""Turns and their events.

Every write is one statement in autocommit: atomic, one round trip, and the connection goes back at once. Writes of a running turn are
fenced by (owner, generation) and ordered by ``last_seq``, which also makes a repeated commit recognisable.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from asyncpg import UniqueViolationError

from app.domain.errors import LeaseLostError
from app.domain.ids import ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import encode_message
from app.domain.openings import Busy, NewTurn, NoSession, Opening, OpenTurn, Queued, QueueFull, Replayed, TooManyOpen
from app.domain.quotas import DaySums, Spent
from app.domain.sessions import Page
from app.domain.turns import (
    Commit,
    Committed,
    DeltaBatch,
    EventRow,
    Fence,
    GivenAnswer,
    InterruptReason,
    MachineState,
    PruneAges,
    RowKind,
    TurnAnswer,
    TurnRequest,
    TurnState,
    TurnView,
    Unwatched,
)
from app.store import compaction_sql, opening_sql
from app.store import turn_sql as sql
from app.store.engine import Database, Statement
from app.store.tool_calls import call_params
from app.store.turn_openings import kept_of, opened, params_of, statement_of

_encode = msgspec.json.Encoder().encode
_request = msgspec.json.Decoder(TurnRequest)
_machine = msgspec.json.Decoder(MachineState)
_OPEN_TRIES = 3
_RESUMING = "resuming"
PRUNE_BATCH = 1_000
"""Turns that one statement of pruning takes: each holds its locks for a short time only."""
READ_ROWS = 64
"""Event rows that one cursor gets in one read."""


class TurnRepository:
    """:class:`app.ports.TurnStore` on Postgres."""

    def __init__(self, database: Database, lease_ttl_s: float) -> None:
        self._database = database
        self._ttl_s = lease_ttl_s

    async def open(self, turn: NewTurn) -> Opening:
        """Write a turn with its first events and, when it starts at once, its user message; one atomic statement."""
        params = params_of(turn)
        for _ in range(_OPEN_TRIES):
            row = await self._insert(turn, params)
            if row is None:
                return await self.replayed(turn) or TooManyOpen()
            if not row.known:
                return NoSession()
            if row.turn_id is not None:
                return opened(turn, row) if turn.owner is not None else Queued(turn_id=turn.id)
            opening = await self._refusal(turn)
            if opening is not None:
                return opening
        return QueueFull() if turn.owner is None else NoSession()

    async def replayed(self, turn: NewTurn) -> Replayed | None:
        """The turn that the idempotency key of ``turn`` made before; ``None`` when there is none."""
        opening = None if turn.idempotency_key is None else await self._refusal(turn)
        return opening if isinstance(opening, Replayed) else None

    async def _insert(self, turn: NewTurn, params: dict[str, Any]) -> Any:
        """The row of the opening; ``None`` when the tenant has ``max_open`` turns already."""
        statement, max_open = statement_of(turn), turn.max_open
        if turn.owner is not None and max_open is None:
            return (await self._database.fetch(statement.alone, params))[0]
        async with self._database.transaction() as connection:
            # What is counted must include what was opened while this one waited: lock first, count in the next statement.
            if max_open is not None:
                await connection.execute(sql.LOCK_TENANT, {"tenant_id": params["tenant_id"]})
            if params["owner"] is None:
                await connection.execute(sql.LOCK_SESSION, {"session_id": params["session_id"], "tenant_id": params["tenant_id"]})
            if max_open is not None:
                count = (await connection.execute(sql.COUNT_OPEN, {"tenant_id": params["tenant_id"]})).scalar_one()
                if count >= max_open:
                    return None
            return (await connection.execute(statement.within, params)).all()[0]

    async def session_model(self, tenant_id: TenantId, session_id: SessionId) -> str | None:
        """The model that a session asks for; ``None`` when it asks for none or is unknown."""
        rows = await self._database.fetch(sql.SESSION_MODEL, {"tenant_id": tenant_id, "session_id": session_id})
        return rows[0].model if rows else None

    async def _refusal(self, turn: NewTurn) -> Opening | None:
        """Why the insert did nothing; ``None`` when the reason is already gone."""
        row = (
            await self._database.fetch(
                opening_sql.WHY_NOT_OPENED if turn.stateless is None else opening_sql.WHY_NOT_STATELESS,
                {
                    "id": turn.id,
                    "session_id": turn.session_id,
                    "tenant_id": turn.tenant_id,
                    "key": turn.idempotency_key,
                    "max_queued": turn.max_queued,
                    "queue": turn.owner is None,
                },
            )
        )[0]
        if row.replayed_id is not None:
            return Replayed(turn_id=TurnId(row.replayed_id), same_body=row.fingerprint == turn.fingerprint)
        if row.queue_full:
            return QueueFull()
        if row.busy_id is not None and turn.owner is not None:
            return Busy(turn_id=TurnId(row.busy_id))
        return None

    async def claim(self, owner: ReplicaId, limit: int) -> list[OpenTurn]:
        """Take up to ``limit`` queued turns whose session is free, oldest first, and write their user messages."""
        try:
            rows = await self._database.fetch(sql.CLAIM, {"owner": owner, "limit": limit})
        except UniqueViolationError:
            return []  # another replica filled one of the slots in the same moment; the next look finds the rest
        return [_open_turn(row) for row in rows]

    async def take_over(self, owner: ReplicaId, known: Sequence[TurnId], limit: int, *, beat: int) -> list[OpenTurn]:
        """Become the owner of running turns that nobody runs: their replica is gone, or it is ``owner`` and does not know them.

        Those of ``owner`` only a TTL after their start: ``known`` may be older than a turn that was opened meanwhile. Nothing when
        ``beat`` is not the last of ``owner``, or is older than half a TTL.
        """
        params = {"owner": owner, "known": list(known), "limit": limit, "beat": beat, "ttl_s": self._ttl_s}
        return [_open_turn(row) for row in await self._database.fetch(sql.TAKE_OVER, params)]

    async def commit(self, commit: Commit) -> Committed:
        """Apply one step. Idempotent. Raises LeaseLostError when the fence no longer holds."""
        row = await self._write(commit)
        if row.applied is None and not await self._applied_before(commit):
            raise LeaseLostError
        day = None if row.day is None else DaySums(day=row.day, tokens=row.day_tokens, cost_usd=row.day_cost_usd)
        return Committed(row.waiting, day)

    async def _write(self, commit: Commit) -> Any:
        """Apply a commit. One with a compaction is rare, and takes several statements in one transaction."""
        compaction = commit.compaction
        if compaction is None:
            plain = sql.COMMIT_WITH_CALLS if commit.tool_calls else sql.COMMIT
            return (await self._database.fetch(plain, _commit_params(commit)))[0]
        async with self._database.transaction() as connection:
            await connection.execute(compaction_sql.LOCK, {"session_id": commit.fence.session_id})
            row = (await connection.execute(sql.COMMIT_WITHIN, _commit_params(commit))).all()[0]
            if row.applied is not None:
                for statement in compaction_sql.statements_of(compaction):
                    await connection.execute(statement, compaction_sql.params_of(commit, compaction))
        return row

    async def _applied_before(self, commit: Commit) -> bool:
        """Whether an earlier try of the same commit went through although its answer was lost."""
        rows = await self._database.fetch(sql.FENCE, {"id": commit.fence.turn_id})
        if not rows or rows[0].last_seq != commit.last_seq:
            return False
        return bool(rows[0].generation == commit.fence.generation or commit.hand_over or commit.waits_until_ms is not None)

    async def append_deltas(self, batches: Sequence[DeltaBatch]) -> set[TurnId]:
        """Store deltas of several turns in one statement; returns the turns whose fence held."""
        rows = await self._database.fetch(
            sql.APPEND_DELTAS,
            {
                "ids": [batch.fence.turn_id for batch in batches],
                "owners": [batch.fence.owner for batch in batches],
                "generations": [batch.fence.generation for batch in batches],
                "firsts": [batch.row.first for batch in batches],
                "lasts": [batch.row.last for batch in batches],
                "frames": [batch.row.frames for batch in batches],
            },
        )
        return {TurnId(row.id) for row in rows}

    async def owned(self, owner: ReplicaId, turns: Sequence[TurnId]) -> set[TurnId]:
        """Those of ``turns`` that ``owner`` still owns."""
        rows = await self._database.fetch(sql.OWNED, {"owner": owner, "ids": list(turns)})
        return {TurnId(row.id) for row in rows}

    async def cancel_requests(self, owner: ReplicaId) -> dict[TurnId, InterruptReason]:
        """Running turns of ``owner`` that somebody wants stopped."""
        rows = await self._database.fetch(sql.CANCEL_REQUESTS, {"owner": owner})
        return {TurnId(row.id): InterruptReason(row.cancel_reason) for row in rows}

    async def request_cancel(self, tenant_id: TenantId, turn_id: TurnId, reason: InterruptReason) -> TurnView | None:
        """Mark a turn that has not ended as to be stopped, and return it as it then stands; ``None`` when unknown."""
        rows = await self._database.fetch(sql.REQUEST_CANCEL, {"tenant_id": tenant_id, "id": turn_id, "reason": reason.value})
        return _view(rows[0]) if rows else await self.get(tenant_id, turn_id)

    async def expire(self, limit: int) -> list[TurnView]:
        """Turns whose answers did not come in time: they wait no more, and are to be stopped."""
        rows = await self._database.fetch(sql.EXPIRE, {"limit": limit, "reason": InterruptReason.EXPIRED.value})
        return [_view(row) for row in rows]

    async def answer(self, answer: TurnAnswer) -> bool:
        """Store answers for a waiting turn; false when it is not as it was at ``previous_seq``."""
        params = {
            "id": answer.turn_id,
            "tenant_id": answer.tenant_id,
            "machine": _encode(answer.state),
            "previous_seq": answer.previous_seq,
            "last_seq": answer.last_seq,
            "complete": answer.complete,
            "state": _RESUMING if answer.complete else TurnState.REQUIRES_ACTION.value,
            "frames": answer.row.frames if answer.row else None,
            "key": answer.key,
            "fingerprint": answer.fingerprint,
        }
        return bool(await self._database.fetch(sql.ANSWER, params))

    async def given_answer(self, turn_id: TurnId, key: str) -> GivenAnswer | None:
        """The answers that came under this key."""
        rows = await self._database.fetch(sql.GIVEN_ANSWER, {"id": turn_id, "key": key})
        return GivenAnswer(fingerprint=rows[0].fingerprint, after=rows[0].after_seq, complete=rows[0].complete) if rows else None

    async def cancel_unwatched(self, turn_id: TurnId, reason: InterruptReason) -> Unwatched:
        """Mark a turn as to be stopped unless it is read on another replica."""
        rows = await self._database.fetch(sql.CANCEL_UNWATCHED, {"id": turn_id, "reason": reason.value})
        if not rows:
            return Unwatched.WATCHED
        return Unwatched.MARKED if rows[0].marked else Unwatched.SETTLED

    async def watch(self, turns: Sequence[TurnId], for_s: float) -> None:
        """Say that somebody here reads these turns."""
        await self._database.fetch(sql.WATCH, {"ids": list(turns), "for_s": for_s})

    async def get(self, tenant_id: TenantId, turn_id: TurnId) -> TurnView | None:
        """One turn, ``None`` when unknown to the tenant."""
        rows = await self._database.fetch(sql.GET, {"tenant_id": tenant_id, "id": turn_id})
        return _view(rows[0]) if rows else None

    async def list_for_session(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[TurnView]:
        """Turns of a session, newest first; ``before`` is a turn id."""
        params = {"tenant_id": tenant_id, "session_id": session_id, "before": before, "limit": limit + 1}
        views = [_view(row) for row in await self._database.fetch(sql.LIST, params)]
        return Page(data=tuple(views[:limit]), next_cursor=views[limit - 1].id if len(views) > limit else None)

    async def read_events(self, cursors: Sequence[tuple[TurnId, int]]) -> dict[tuple[TurnId, int], tuple[list[EventRow], bool]]:
        """For each (turn, after): the next stored rows behind ``after``, and whether that is all: the turn is over, or waits."""
        params = {"ids": [turn_id for turn_id, _ in cursors], "afters": [after for _, after in cursors], "rows": READ_ROWS}
        found: dict[tuple[TurnId, int], tuple[list[EventRow], bool]] = {}
        for row in await self._database.fetch(sql.READ_EVENTS, params):
            rows, _ = found.setdefault((TurnId(row.id), row.after), ([], row.waits or (row.ended and row.after >= row.turn_last_seq)))
            if row.first_seq is not None:
                rows.append(EventRow(row.first_seq, row.last_seq, RowKind(row.kind), row.frames))
        for cursor in cursors:
            found.setdefault(cursor, ([], True))  # the turn was deleted
        return found

    async def prune(self, ages: PruneAges) -> int:
        """Delete what is old, in batches; see the port. Keys go first: what they held back can then be deleted."""
        for forget in (sql.FORGET_TURN_KEYS, sql.FORGET_ANSWER_KEYS, sql.FORGET_STATELESS_KEYS, sql.FORGET_SESSION_KEYS):
            await self._database.fetch(forget, {"age_s": ages.idempotency_s})
        await self._database.fetch(sql.FORGET_REPLICAS, {"age_s": 10 * self._ttl_s})
        return await self._prune(sql.PRUNE_DELTAS, ages.deltas_s) + await self._prune(sql.DELETE_STATELESS, ages.stateless_s)

    async def _prune(self, statement: Statement, age_s: float) -> int:
        removed = 0
        while True:
            row = (await self._database.fetch(statement, {"age_s": age_s, "batch": PRUNE_BATCH}))[0]
            removed += int(row.removed)
            if row.found < PRUNE_BATCH:
                return removed


def _open_turn(row: Any) -> OpenTurn:
    return OpenTurn(
        fence=_fence(row),
        tenant_id=TenantId(row.tenant_id),
        request=_request.decode(row.request),
        state=_machine.decode(row.machine),
        last_seq=row.last_seq,
        next_message_seq=row.next_seq,
        system_prompt=row.system_prompt,
        tools=row.tools,
        model=row.model,
        kept=kept_of(row),
        keep_interrupted_text=row.keep_interrupted_text,
        cancel_reason=InterruptReason(row.cancel_reason) if row.cancel_reason else None,
        resumed=row.resumed,
    )


def _fence(row: Any) -> Fence:
    owner = ReplicaId(row.owner) if row.owner else None
    return Fence(turn_id=TurnId(row.id), session_id=_session_id(row), owner=owner, generation=row.generation)


def _session_id(row: Any) -> SessionId | None:
    return SessionId(row.session_id) if row.session_id else None


def _view(row: Any) -> TurnView:
    return TurnView(
        id=TurnId(row.id),
        session_id=_session_id(row),
        state=TurnState.QUEUED if row.state == _RESUMING else TurnState(row.state),
        reason=row.reason,
        request=_request.decode(row.request),
        machine=_machine.decode(row.machine),
        outcome=row.outcome,
        expires_at_ms=row.expires_at_ms,
        fence=_fence(row),
        last_seq=row.last_seq,
        created_at_ms=row.created_at_ms,
        started_at_ms=row.started_at_ms,
        ended_at_ms=row.ended_at_ms,
    )


def _open_state(commit: Commit) -> TurnState:
    if commit.waits_until_ms is not None:
        return TurnState.REQUIRES_ACTION
    return TurnState.QUEUED if commit.hand_over else TurnState.RUNNING


def _commit_params(commit: Commit) -> dict[str, Any]:
    closing = commit.closing
    machine = commit.state
    added = machine.spent.since(machine.counted) if closing or commit.counts else Spent()
    state = closing.state if closing else _open_state(commit)
    waits_until_ms = commit.waits_until_ms
    return {
        "id": commit.fence.turn_id,
        "session_id": commit.fence.session_id,
        "owner": commit.fence.owner,
        "generation": commit.fence.generation,
        "previous_seq": commit.previous_seq,
        "last_seq": commit.last_seq,
        "state": state.value,
        "new_owner": commit.fence.owner if state is TurnState.RUNNING else None,
        "waits_until": None if waits_until_ms is None else waits_until_ms / 1000,
        "machine": _encode(msgspec.structs.replace(machine, counted=machine.spent) if commit.counts else machine),
        "ended": closing is not None,
        "tokens": added.tokens,
        "cost_usd": added.cost_usd,
        "reason": closing.reason if closing else None,
        "outcome": closing.outcome if closing else None,
        "firsts": [row.first for row in commit.rows],
        "lasts": [row.last for row in commit.rows],
        "kinds": [int(row.kind) for row in commit.rows],
        "frames": [row.frames for row in commit.rows],
        "message_seqs": [message.seq for message in commit.messages],
        "message_ids": [message.id for message in commit.messages],
        "message_notes": [message.message.kind.value == "note" for message in commit.messages],
        "message_archived": [message.archived for message in commit.messages],
        "message_bodies": [encode_message(message.message) for message in commit.messages],
        "next_seq": commit.next_message_seq,
        "context": None if commit.context is None else _encode(commit.context),
        "forget": commit.forget,
        **call_params(commit.tool_calls),
    }
