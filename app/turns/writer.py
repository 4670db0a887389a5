"""The only way to write a running turn: its frames, messages, machine state and end, each step one commit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from app.domain.compaction import ContextState
from app.domain.errors import LeaseLostError, UnavailableError
from app.domain.events import Fact, TerminalEvent
from app.domain.messages import StoredMessage
from app.domain.model import Delta
from app.domain.openings import OpenTurn
from app.domain.tools import CallRecord
from app.domain.turns import Closing, Commit, Committed, Compaction, EventRow, MachineState, NewMessage, RowKind, TurnState
from app.ports import Clock, TurnStore
from app.turns.counters import Counters
from app.turns.day_shares import TurnShare
from app.turns.event_log import EventLog
from app.turns.lease import Lease
from app.turns.live import LiveTurn

logger = logging.getLogger(__name__)

RETRY_S = (0.1, 0.2, 0.5, 1.0)
"""Waits between tries of a commit while the database is away; the last one repeats."""

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class TurnWriter:
    """Writes one turn. Facts are stored before they are shown; deltas are shown at once while the lease is valid."""

    def __init__(self, turn: OpenTurn, *, store: TurnStore, log: EventLog, lease: Lease, clock: Clock, counters: Counters) -> None:
        self._fence = turn.fence
        self._store = store
        self._log = log
        self._lease = lease
        self._clock = clock
        self._counters = counters
        self._fact_seq = turn.last_seq
        self.live = LiveTurn(turn.fence, turn.last_seq, turn.rows)
        self.state = turn.state
        self.closed = False
        self.share: TurnShare | None = None
        """Of the tenant's day, where that is limited: then each step adds to the day what the turn used."""
        self._counted = turn.state.counted
        self.others_wait = False
        """Whether the last commit saw turns that wait for the session."""
        self.placed: list[StoredMessage] = []
        """The session's messages as the turn sees them: the working set, and what its commits have added."""
        log.add(self.live)

    async def show(self, deltas: Sequence[Delta]) -> None:
        """Show deltas that arrived together. Raises LeaseLostError when the turn is no longer ours."""
        live = self.live
        if not self._lease.valid:
            await self._lease.wait_valid()
        await live.wait_drained()
        if live.lost:
            raise LeaseLostError
        first = seq = live.last_seq + 1
        frame = live.encoder.frame
        frames = []
        for delta in deltas:
            frames.append(frame(seq, delta))
            seq += 1
        live.show(first, seq - 1, b"".join(frames), self._clock.monotonic())
        self._counters.events_written += len(deltas)

    async def record(
        self,
        events: Sequence[Fact],
        messages: Sequence[StoredMessage],
        state: MachineState,
        *,
        context: ContextState | None = None,
        compaction: Compaction | None = None,
        calls: Sequence[CallRecord] = (),
    ) -> None:
        """Store facts with what they report, then show them. Raises LeaseLostError."""
        await uninterrupted(self._commit(events, messages, state, context=context, compaction=compaction, calls=calls))

    async def hand_over(self, event: Fact) -> None:
        """Put the turn back into the queue for another replica. Raises LeaseLostError."""
        await uninterrupted(self._commit((event,), (), self.state, ends=_LetGo()))

    async def pause(self, event: Fact, state: MachineState, *, until_ms: int) -> None:
        """Let the turn wait for somebody, at most until then (unix ms): nobody owns it meanwhile. Raises LeaseLostError."""
        await uninterrupted(self._commit((event,), (), state, ends=_LetGo(until_ms)))

    async def close(
        self,
        event: TerminalEvent,
        *,
        before: Sequence[Fact],
        messages: Sequence[StoredMessage],
        state: MachineState,
        to: TurnState,
        forget: bool,
        context: ContextState | None = None,
        calls: Sequence[CallRecord] = (),
    ) -> None:
        """End the turn with its terminal event; with ``forget`` its messages leave the model's context. Raises LeaseLostError."""
        closing = Closing(state=to, reason=event.reason, outcome=_encode(event))
        await uninterrupted(self._commit((*before, event), messages, state, ends=closing, forget=forget, context=context, calls=calls))

    async def _commit(
        self,
        events: Sequence[Fact],
        messages: Sequence[StoredMessage],
        state: MachineState,
        *,
        ends: "Closing | _LetGo | None" = None,
        forget: bool = False,
        context: ContextState | None = None,
        compaction: Compaction | None = None,
        calls: Sequence[CallRecord] = (),
    ) -> None:
        live = self.live
        closing, let_go = (ends, None) if isinstance(ends, Closing) else (None, ends)
        if state.counted != self._counted:
            state = msgspec.structs.replace(state, counted=self._counted)
        async with live.write:
            deltas = live.unstored()
            first = live.last_seq + 1
            frames = [live.encoder.frame(first + index, event) for index, event in enumerate(events)]
            kind = RowKind.TERMINAL if closing else RowKind.FACTS
            in_session = self._fence.session_id is not None
            rows = messages if in_session else ()  # the messages of a stateless call are its client's to keep
            facts = EventRow(first, first + len(frames) - 1, kind, b"".join(frames))
            await self._store_commit(
                Commit(
                    fence=self._fence,
                    previous_seq=self._fact_seq,
                    last_seq=facts.last,
                    rows=(deltas, facts) if deltas else (facts,),
                    messages=tuple(_new_message(stored) for stored in rows),
                    next_message_seq=_next_seq(self.placed) + 1 if forget and in_session else _next_seq(rows),
                    state=state,
                    closing=closing,
                    hand_over=let_go is not None and let_go.until_ms is None,
                    waits_until_ms=let_go.until_ms if let_go else None,
                    forget=forget,
                    context=context if in_session else None,
                    compaction=compaction if in_session else None,
                    tool_calls=tuple(calls),
                    counts=self.share is not None,
                )
            )
            self._fact_seq = facts.last
            self.state = state
            self.placed.extend(messages)
            self.closed = closing is not None or let_go is not None
            if deltas:
                live.mark_stored(deltas)
            live.add_stored(facts)
        self._counters.events_written += len(events)
        self._log.announce(self._fence.turn_id)

    async def _store_commit(self, commit: Commit) -> None:
        """Commit; while the database is away try again, since a turn that can go on must not end for it."""
        try:
            committed = await patiently(lambda: self._try_commit(commit), self._clock)
        except LeaseLostError:
            self.live.lose()
            raise
        self.others_wait = committed.others_wait
        if self.share is not None:
            self._counted = commit.state.spent
            self.share.count(self._counted, committed.day)

    async def _try_commit(self, commit: Commit) -> Committed:
        if self.live.lost:
            raise LeaseLostError
        return await self._store.commit(commit)


@dataclass(frozen=True, slots=True)
class _LetGo:
    """The turn is put back into the queue, or waits for somebody until then (unix ms)."""

    until_ms: int | None = None


def _new_message(stored: StoredMessage) -> NewMessage:
    return NewMessage(id=stored.id, seq=stored.seq, message=stored.message, archived=stored.archived)


def _next_seq(messages: Sequence[StoredMessage]) -> int:
    """The first free place behind ``messages``, the places of their calls' results included; 0 when there are none."""
    return max((stored.seq + 1 + len(stored.message.tool_calls) for stored in messages), default=0)


async def patiently(step: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Do ``step``; while the database is away, wait and do it again."""
    tries = 0
    while True:
        try:
            return await step()
        except UnavailableError:
            logger.warning("a turn waits for the database")
            await clock.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1


async def uninterrupted(step: Coroutine[Any, Any, T]) -> T:
    """Run ``step`` to its end even when the calling task is cancelled meanwhile; the cancellation is raised afterwards.

    A commit that was sent may have been applied: only its answer tells, so it is awaited.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
