"""The turn server of one process: everything between a POST and the turn's terminal event.

Owns the lease, the event log, the running turns and the background tasks: heartbeat, delta flusher, stored tail, cancel polls, the queue
of waiting turns, recovery of lost replicas' turns, pruning.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from app.domain.errors import UnavailableError
from app.domain.ids import ReplicaId, TenantId, TurnId
from app.domain.openings import NewTurn, Opening, OpenTurn
from app.domain.tenants import Tenant
from app.domain.turns import InterruptReason, PruneAges, TurnState, TurnView, Unwatched
from app.ports import (
    Clock,
    KanbanStore,
    MemoryStore,
    MessageStore,
    ModelClients,
    ReplicaStore,
    SessionStore,
    TenantStore,
    TodoStore,
    Toolboxes,
    TurnStore,
    UsageStore,
    Wakeups,
)
from app.turns.active import ActiveTurns, Departure
from app.turns.children import Children
from app.turns.counters import Counters
from app.turns.day_shares import DayShares
from app.turns.event_log import EventLog
from app.turns.lease import Lease
from app.turns.pacing import Pacing
from app.turns.queued import close_queued
from app.turns.runner import RunnerParts, TurnRunner

logger = logging.getLogger(__name__)

CANCEL_TOPIC = "cancel"
QUEUE_TOPIC = "queue"
CLAIM_LIMIT = 50
RECOVER_LIMIT = 50
RECOVER_ROUNDS = 6
"""One for each depth of turns that started turns."""
PRUNE_EVERY_S = 60.0
EXPIRE_EVERY_S = 2.0
EXPIRE_LIMIT = 50
ABANDONED_S = 0.2
"""Between looks at turns whose client is gone while somebody else still reads them."""
IDEMPOTENCY_AGE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores that the turn server uses."""

    turns: TurnStore
    messages: MessageStore
    replicas: ReplicaStore
    tenants: TenantStore
    todos: TodoStore
    memory: MemoryStore
    usage: UsageStore
    sessions: SessionStore
    kanban: KanbanStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of the turn server, in seconds, and the most turns it runs at once, and tool calls of one of them."""

    lease_ttl_s: float = 20.0
    lease_beat_s: float = 5.0
    poll_s: float = 0.4
    delta_retention_s: float = 6 * 3600.0
    action_timeout_s: float = 24 * 3600.0
    stateless_retention_s: float = 30 * 86_400.0
    max_running_turns: int = 2_000
    tool_calls_per_turn: int = 256


class TurnServer:
    """Starts, follows, interrupts and recovers turns."""

    def __init__(
        self,
        replica: ReplicaId,
        stores: Stores,
        *,
        models: ModelClients,
        toolboxes: Toolboxes,
        clock: Clock,
        wakeups: Wakeups,
        timing: Timing,
    ) -> None:
        self.counters = Counters()
        self._stores = stores
        self._clock = clock
        self._wakeups = wakeups
        self._timing = timing
        self.lease = Lease(replica, stores.replicas, clock, ttl_s=timing.lease_ttl_s, beat_s=timing.lease_beat_s)
        self.departure = Departure(replica, stores.replicas)
        self.log = EventLog(stores.turns, lease=self.lease, clock=clock, wakeups=wakeups, counters=self.counters)
        self.pacing = Pacing(clock, self.counters)
        self.shares = DayShares()
        self._parts = RunnerParts(
            turns=stores.turns,
            messages=stores.messages,
            models=models,
            toolboxes=toolboxes,
            todos=stores.todos,
            memory=stores.memory,
            tenants=stores.tenants,
            log=self.log,
            lease=self.lease,
            clock=clock,
            counters=self.counters,
            usage=stores.usage,
            shares=self.shares,
            children=Children(
                sessions=stores.sessions,
                turns=stores.turns,
                kanban=stores.kanban,
                models=models,
                clock=clock,
                replica=replica,
            ),
            should_hand_over=self.departure.should_hand_over,
            action_timeout_s=timing.action_timeout_s,
            calls_at_once=timing.tool_calls_per_turn,
        )
        self.active = ActiveTurns(self._parts, limit=timing.max_running_turns)
        self._cancel_hint = asyncio.Event()
        self._queue_hint = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: set[TurnId] = set()
        self._abandoned: dict[TurnId, TenantId] = {}
        self._abandon_hint = asyncio.Event()
        self._claiming = asyncio.Lock()

    async def start(self) -> None:
        """Take the lease and begin the background work. Raises UnavailableError when the database is away."""
        await self.lease.beat(self.active.revalidate)
        self._wakeups.subscribe(CANCEL_TOPIC, lambda _turn_id: self._cancel_hint.set())
        self._wakeups.subscribe(QUEUE_TOPIC, lambda _turn_id: self._queue_hint.set())
        self.active.on_end.append(self._queue_hint)
        self._spawn("heartbeat", lambda: self.lease.run(self.active.revalidate))
        self._spawn("pacing", self.pacing.run)
        self._spawn("flusher", self.log.run_flusher)
        self._spawn("tail", self.log.tail.run)
        self._spawn("watches", self.log.run_watches)
        self._spawn("cancels", lambda: self.active.run_cancel_polls(self._clock, self._timing.poll_s, self._cancel_hint))
        self._spawn("queue", self._run_queue)
        self._spawn("abandoned", self._run_abandoned)
        self._spawn("recovery", self._run_recovery)
        self._spawn("expiry", self._run_expiry)
        self._spawn("pruning", self._run_pruning)

    async def drain(self, grace_s: float) -> None:
        """Leave: new turns are refused, running ones end, are handed over, or are closed as ``shutdown``; within ``grace_s``."""
        await self.departure.begin()
        await self.active.drain(grace_s)
        await self._flush_last()

    async def stop(self) -> None:
        """End the background work and give the lease back. Turns that still run are interrupted first."""
        self.departure.draining = True
        if self.active.count:
            self.active.interrupt_all()
            await self.active.drain(0.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._stores.replicas.leave(self.lease.replica)
        except UnavailableError:
            logger.warning("the lease could not be given back; it will lapse")

    @property
    def free(self) -> int:
        """Turns that may still be started, those that are being written counted."""
        return max(0, self.active.free - len(self._opening))

    async def open(self, turn: NewTurn, tenant: Tenant) -> Opening:
        """Write a turn and, when it may start at once, run it."""
        if turn.owner is not None:
            self._opening.add(turn.id)
        try:
            opening = await self._stores.turns.open(turn)
            if isinstance(opening, OpenTurn):
                self.active.start(opening, tenant, announced=True)
                await asyncio.sleep(0)  # the turn goes first: its request is on the way while the response is built
        finally:
            self._opening.discard(turn.id)
        if isinstance(opening, OpenTurn):
            return opening
        if turn.owner is None:
            self.counters.queued += 1
            self.look_for_turns()
        return opening

    def follow(self, turn_id: TurnId, after: int, *, watched: bool = False) -> AsyncGenerator[bytes, None]:
        """Frames behind ``after`` until the turn's end; see :meth:`app.turns.event_log.EventLog.follow`."""
        return self.log.follow(turn_id, after, watched=watched)

    def interrupt(self, turn_id: TurnId, reason: InterruptReason) -> bool:
        """Interrupt a turn whose wish to stop is stored: at once when it runs here, else by telling its owner."""
        if self.active.cancel(turn_id, reason):
            return True
        self._wakeups.announce(CANCEL_TOPIC, (turn_id,))
        return False

    async def close_queued(self, view: TurnView, reason: InterruptReason) -> bool:
        """End a turn that nobody owns; false when somebody has taken it up meanwhile. Raises UnavailableError."""
        stores = self._stores
        closed = await close_queued(view, reason, store=stores.turns, log=self.log, clock=self._clock, counters=self.counters)
        if closed and view.started_at_ms is not None:
            self.look_for_turns()  # its session is free
        return closed

    def look_for_turns(self) -> None:
        """There is a turn that can be run: say so here and to the other replicas."""
        self._queue_hint.set()
        self._wakeups.announce(QUEUE_TOPIC)

    def abandon(self, tenant_id: TenantId, turn_id: TurnId) -> None:
        """Interrupt a turn as ``client_gone`` as soon as nobody reads it."""
        self._abandoned[turn_id] = tenant_id
        self._abandon_hint.set()

    async def _run_abandoned(self) -> None:
        """See to turns whose client is gone until each has ended or was interrupted."""
        while True:
            await self._abandon_hint.wait()
            for turn_id, tenant_id in list(self._abandoned.items()):
                if self.active.followers(turn_id) == 0 and await self._end_abandoned(tenant_id, turn_id):
                    del self._abandoned[turn_id]
            if not self._abandoned:
                self._abandon_hint.clear()
            await self._clock.sleep(ABANDONED_S)

    async def _end_abandoned(self, tenant_id: TenantId, turn_id: TurnId) -> bool:
        """Interrupt a turn that nobody reads, also one that has just left the queue: it starts with the mark. False while it is read."""
        found = await self._stores.turns.cancel_unwatched(turn_id, InterruptReason.CLIENT_GONE)
        if found is not Unwatched.MARKED:
            return found is Unwatched.SETTLED
        view = await self._stores.turns.get(tenant_id, turn_id)
        if view is None or view.state is not TurnState.QUEUED or not await self.close_queued(view, InterruptReason.CLIENT_GONE):
            self.interrupt(turn_id, InterruptReason.CLIENT_GONE)
        return True

    async def _flush_last(self) -> None:
        """Store what is left and let every reader come to its end."""
        try:
            await self.log.flush()
            await self.log.tail.end()
        except UnavailableError:
            logger.warning("the last events could not be stored or read")

    async def _run_queue(self) -> None:
        """Start waiting turns whose session is free, while there is room."""
        while True:
            try:
                async with asyncio.timeout(self._timing.poll_s):
                    await self._queue_hint.wait()
            except TimeoutError:
                pass
            self._queue_hint.clear()
            if self.free and self.lease.valid and not self.departure.draining:
                await self._claim()

    async def _claim(self) -> None:
        async with self._claiming:
            limit = max(1, min(CLAIM_LIMIT, self.free))
            claimed = await self._stores.turns.claim(self.lease.replica, limit)
            for turn in claimed:
                self.active.start(turn, None, announced=False)
        if len(claimed) == limit:
            self._queue_hint.set()

    async def _run_recovery(self) -> None:
        """End the turns of replicas that are gone, once our own contact has lasted long enough to judge them."""
        while True:
            await self.lease.wait_beaten()
            for _ in range(RECOVER_ROUNDS):
                if not self.lease.settled or self.departure.draining or not await self.recover():
                    break

    async def recover(self) -> bool:
        """Take over and end lost turns: those of dead replicas, and our own without a task (a write whose answer never came).

        True when there were any: those that started them are to be ended next, since a turn is passed over while a child of it is open.
        """
        async with self._claiming:
            known = [*self._opening, *self.active.ids()]
            lost = await self._stores.turns.take_over(self.lease.replica, known, RECOVER_LIMIT, beat=self.lease.stamp)
        for turn in lost:
            try:
                await TurnRunner(self._parts, turn, announced=True).end_lost()
            except Exception:
                # The boundary between turns: one that cannot be ended must not keep the others open.
                logger.exception("a lost turn cannot be ended", extra={"turn_id": turn.fence.turn_id})
        if lost:
            logger.warning("ended turns of a lost replica", extra={"turns": len(lost)})
            self._queue_hint.set()
        return bool(lost)

    async def _run_expiry(self) -> None:
        """End turns that wait for somebody and whose time is over."""
        while True:
            await self._clock.sleep(EXPIRE_EVERY_S)
            for view in await self._stores.turns.expire(EXPIRE_LIMIT):
                # Whoever else takes it up before ends it just so: it is marked.
                await self.close_queued(view, InterruptReason.EXPIRED)

    async def _run_pruning(self) -> None:
        timing = self._timing
        ages = PruneAges(deltas_s=timing.delta_retention_s, idempotency_s=IDEMPOTENCY_AGE_S, stateless_s=timing.stateless_retention_s)
        while True:
            await self._clock.sleep(PRUNE_EVERY_S)
            await self._stores.turns.prune(ages)

    def _spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_going(name, work), name=name))

    async def _keep_going(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background task for ever: a fault is logged and the task starts again."""
        while True:
            try:
                await work()
            except UnavailableError:
                logger.warning("background work waits for the database", extra={"task": name})
            except Exception:
                # The background-task boundary: one bad row must not end heartbeats or recovery.
                logger.exception("background work failed", extra={"task": name})
            await self._clock.sleep(0.5)
