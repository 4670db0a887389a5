"""The turns that run in this process: their tasks, their interrupts, and their drain at shutdown."""

import asyncio
import logging

from app.agent.allowance import Share
from app.domain.errors import UnavailableError
from app.domain.ids import ReplicaId, TurnId
from app.domain.openings import OpenTurn
from app.domain.tenants import Tenant
from app.domain.turns import InterruptReason
from app.ports import Clock, ReplicaStore
from app.turns.runner import RunnerParts, TurnRunner

logger = logging.getLogger(__name__)

HAND_OVER_S = 2.0
"""Part of the drain's time that is kept for closing what did not end by itself."""


class ActiveTurns:
    """Owns the task of every turn that runs here."""

    def __init__(self, parts: RunnerParts, *, limit: int) -> None:
        self._parts = parts
        self._limit = limit
        self._tasks: dict[TurnId, asyncio.Task[None]] = {}
        self._runners: dict[TurnId, TurnRunner] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()
        self.on_end: list[asyncio.Event] = []
        """Set whenever a turn has ended here: its session may have others waiting."""

    @property
    def count(self) -> int:
        """Turns that run now."""
        return len(self._tasks)

    @property
    def free(self) -> int:
        """Turns that may still be started."""
        return max(0, self._limit - len(self._tasks))

    def ids(self) -> list[TurnId]:
        """The turns that run now."""
        return list(self._tasks)

    def start(self, turn: OpenTurn, tenant: Tenant | None, *, announced: bool, share: Share | None = None) -> None:
        """Run a turn that this replica owns; without ``tenant`` the runner looks it up. A child comes with its ``share`` of a budget."""
        turn_id = turn.fence.turn_id
        runner = TurnRunner(self._parts, turn, announced=announced, running=self, share=share)
        task = asyncio.get_running_loop().create_task(runner.run(tenant), name=turn_id)
        self._tasks[turn_id] = task
        self._runners[turn_id] = runner
        self._emptied.clear()
        self._parts.counters.started += 1
        self._parts.counters.active = len(self._tasks)
        task.add_done_callback(lambda done: self._ended(turn_id, done))

    def cancel(self, turn_id: TurnId, reason: InterruptReason) -> bool:
        """Interrupt a turn; false when it does not run here. The first reason counts."""
        task, runner = self._tasks.get(turn_id), self._runners.pop(turn_id, None)
        if task is None:
            return False
        if runner is not None:  # once only: a second cancellation would tear the closing
            runner.interrupt_reason = reason
            runner.interrupted = True
            # Not at once: a task that is cancelled before its first step never runs, and its turn would stay open.
            asyncio.get_running_loop().call_soon(task.cancel)
        return True

    def followers(self, turn_id: TurnId) -> int:
        """Readers of a turn attached in this process."""
        runner = self._runners.get(turn_id)
        return runner.followers if runner else 0

    async def ended(self, turn_id: TurnId, timeout_s: float) -> bool:
        """Whether the turn runs here no more, waited for until it does not, at the latest until ``timeout_s`` have passed."""
        task = self._tasks.get(turn_id)
        if task is not None:
            await asyncio.wait((task,), timeout=timeout_s)
        return task is None or task.done()

    async def until_ended(self, turn_id: TurnId) -> None:
        """Return when the turn has ended here; at once when it does not run here."""
        task = self._tasks.get(turn_id)
        if task is not None:
            await asyncio.wait((task,))

    async def revalidate(self) -> None:
        """After a lapse of the lease: stop the turns that others have taken. Raises UnavailableError."""
        mine = list(self._tasks)
        kept = await self._parts.turns.owned(self._parts.lease.replica, mine)
        for turn_id in mine:
            if turn_id not in kept:
                self._drop(turn_id)

    async def run_cancel_polls(self, clock: Clock, poll_s: float, hint: asyncio.Event) -> None:
        """Look for interrupts that came in elsewhere, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(poll_s):
                    await hint.wait()
            except TimeoutError:
                pass
            hint.clear()
            if self._tasks:
                await self._poll_cancels()
            await clock.sleep(0.02)

    async def _poll_cancels(self) -> None:
        try:
            requests = await self._parts.turns.cancel_requests(self._parts.lease.replica)
        except UnavailableError:
            logger.warning("interrupts cannot be read right now")
            return
        for turn_id, reason in requests.items():
            self.cancel(turn_id, reason)

    async def drain(self, grace_s: float) -> None:
        """Give turns the time to end or to be handed over, then interrupt the rest; returns within about ``grace_s``."""
        try:
            async with asyncio.timeout(max(0.0, grace_s - HAND_OVER_S)):
                await self._emptied.wait()
        except TimeoutError:
            self.interrupt_all()
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._emptied.wait()
        except TimeoutError:
            logger.warning("turns are left open at exit; another replica ends them", extra={"turns": len(self._tasks)})

    def interrupt_all(self) -> None:
        """Interrupt every turn because this process shuts down."""
        for turn_id in list(self._tasks):
            self.cancel(turn_id, InterruptReason.SHUTDOWN)

    def _drop(self, turn_id: TurnId) -> None:
        live = self._parts.log.live(turn_id)
        if live is not None:
            live.lose()
        self.cancel(turn_id, InterruptReason.WORKER_LOST)

    def _ended(self, turn_id: TurnId, task: asyncio.Task[None]) -> None:
        full = not self.free
        self._tasks.pop(turn_id, None)
        runner = self._runners.pop(turn_id, None)
        self._parts.counters.active = len(self._tasks)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a turn's task broke", exc_info=task.exception(), extra={"turn_id": turn_id})
        if not self._tasks:
            self._emptied.set()
        if full or runner is None or runner.others_wait:
            for event in self.on_end:
                event.set()


class Departure:
    """Whether this replica is leaving, and whether another is there to go on with its turns."""

    def __init__(self, replica: ReplicaId, replicas: ReplicaStore) -> None:
        self._replica = replica
        self._replicas = replicas
        self.draining = False
        self._others = False

    async def begin(self) -> None:
        """Start to leave."""
        self.draining = True
        try:
            self._others = await self._replicas.others_alive(self._replica)
        except UnavailableError:
            self._others = False

    def should_hand_over(self) -> bool:
        """Whether a turn at an iteration boundary goes back into the queue."""
        return self.draining and self._others
