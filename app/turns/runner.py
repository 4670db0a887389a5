"""Runs one turn: pulls the loop's facts, commits each before the next, and closes the turn whatever happens."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from app.agent import machine
from app.agent.allowance import Allowance, Share
from app.agent.budget import Budget
from app.agent.delegation import told_late
from app.agent.facts import End, Pause, Record, Show
from app.agent.loop import AgentLoop
from app.agent.run import LoopParts
from app.context import history
from app.domain.compaction import ContextState
from app.domain.conversation_events import CompactionCompleted, CompactionFailed
from app.domain.errors import InvalidRequestError, LeaseLostError
from app.domain.events import (
    AttemptFailedEvent,
    AttemptReset,
    Fact,
    IterationStarted,
    ProviderThrottled,
    TurnQueued,
    TurnResumed,
    TurnStarted,
)
from app.domain.ids import MessageId, make_id
from app.domain.messages import Message, StoredMessage
from app.domain.model import MessageDelta
from app.domain.openings import OpenTurn
from app.domain.tenants import Purpose, Tenant
from app.domain.terminal_events import leaves_calls, terminal_event, terminal_state
from app.domain.tools import CallRecord
from app.domain.turns import Failed, FailedReason, Interrupted, InterruptReason, MachineState, Outcome, TurnKind
from app.ports import Clock, MemoryStore, MessageStore, ModelClient, ModelClients, TenantStore, TodoStore, Toolboxes, TurnStore, UsageStore
from app.turns.children import Children, Running, TurnChildren
from app.turns.counters import Counters
from app.turns.day_shares import DayShares
from app.turns.event_log import EventLog
from app.turns.lease import Lease
from app.turns.pauses import requires_action, unfinished_call
from app.turns.remains import open_calls, stored_rows, text_of
from app.turns.unfinished import Unfinished, lost_calls, unfinished
from app.turns.writer import TurnWriter, patiently

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What running turns takes."""

    turns: TurnStore
    messages: MessageStore
    tenants: TenantStore
    models: ModelClients
    toolboxes: Toolboxes
    todos: TodoStore
    memory: MemoryStore
    log: EventLog
    lease: Lease
    clock: Clock
    counters: Counters
    usage: UsageStore
    shares: DayShares
    should_hand_over: Callable[[], bool]
    """Whether this replica is leaving and another one can go on with its turns."""
    action_timeout_s: float
    """How long a turn waits for somebody."""
    calls_at_once: int
    """Tool calls of one turn that run together."""
    children: Children


class TurnRunner:
    """The body of one turn's task."""

    def __init__(
        self, parts: RunnerParts, turn: OpenTurn, *, announced: bool, running: Running | None = None, share: Share | None = None
    ) -> None:
        """``announced``: the turn's first events (``turn.started``, ``iteration.started``) are stored already.

        ``running`` starts its children; a child comes with its ``share`` of a budget.
        """
        self._running = running
        self._share = share
        self._children: TurnChildren | None = None
        self._parts = parts
        self._turn = turn
        self._announced = announced
        self._writer = TurnWriter(turn, store=parts.turns, log=parts.log, lease=parts.lease, clock=parts.clock, counters=parts.counters)
        self._loop: AgentLoop | None = None
        self._loaded = False
        self._open_attempt = 0
        self._open_text: list[str] = []
        self._open_chars = 0
        """What the open attempt has shown, its reasoning included."""
        self.interrupt_reason = turn.cancel_reason or InterruptReason.SHUTDOWN
        """Why, once the task is cancelled."""
        self.interrupted = False
        """Somebody has cancelled it, for that reason."""

    @property
    def others_wait(self) -> bool:
        """Whether turns wait for the session."""
        return self._writer.others_wait

    @property
    def followers(self) -> int:
        """Readers attached in this process."""
        return self._writer.live.followers

    async def run(self, tenant: Tenant | None) -> None:
        """Run the turn to its end. Never raises: a turn that cannot go on is closed as failed, one that was taken over is left alone."""
        try:
            await self._run_guarded(tenant)
        except LeaseLostError:
            self._parts.counters.lost += 1
            logger.warning("the turn was taken over by another replica", extra={"turn_id": self._turn.fence.turn_id})
            if self._children is not None:
                await self._children.settle(InterruptReason.WORKER_LOST)
        finally:
            if self._writer.share is not None:
                self._writer.share.close()
            self._parts.log.remove(self._writer.live)

    async def end_lost(self) -> None:
        """Close a turn whose replica was lost: ended once, its open calls answered, their effect unknown."""
        turn = self._turn
        try:
            await self._load()
            rows = await stored_rows(self._parts.turns, self._parts.clock, turn.fence.turn_id)
            attempt = turn.state.attempts + 1
            outcome = Interrupted(
                reason=turn.cancel_reason or InterruptReason.WORKER_LOST, output="".join((*turn.state.parts, text_of(rows, attempt)))
            )
            # The calls of a session's turn are answered from its messages, in the closing; a stateless call has but its events.
            calls = open_calls(rows) if turn.fence.session_id is None else []
            answers, records = lost_calls(turn.fence.turn_id, calls)
            reset: tuple[Fact, ...] = () if answers or self._unanswered() else (AttemptReset(attempt=attempt),)
            await self._close(outcome, before=(*answers, *reset), calls=records)
            self._parts.counters.recovered += 1
        except LeaseLostError:
            logger.warning("another replica ends the lost turn", extra={"turn_id": turn.fence.turn_id})
        finally:
            self._parts.log.remove(self._writer.live)

    async def _run_guarded(self, tenant: Tenant | None) -> None:
        try:
            if self._turn.cancel_reason is None:
                await self._run_loop(tenant)
            else:
                await self._close(Interrupted(reason=self._turn.cancel_reason))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()  # the interrupt is consumed here: the closing below must be able to wait
            if not self._writer.closed:
                await self._close(Interrupted(reason=self.interrupt_reason, output=self._shown_text()))
        except LeaseLostError:
            raise
        except InvalidRequestError as error:
            await self._close_failed(FailedReason.PROVIDER_UNAVAILABLE, error.detail)
        except Exception:
            # The turn boundary: whatever broke, the turn ends and its session lives on.
            logger.exception("the turn failed", extra={"turn_id": self._turn.fence.turn_id})
            await self._close_failed(FailedReason.INTERNAL_ERROR, "An internal error ended the turn.")

    async def _run_loop(self, tenant: Tenant | None) -> None:
        parts = self._parts
        if tenant is None:
            tenant = await patiently(lambda: parts.tenants.tenant(self._turn.tenant_id), parts.clock)
            if tenant is None:
                raise InvalidRequestError("The tenant is disabled.")
            await self._look_at_day(tenant)
        if tenant.settings.limits_day:
            self._writer.share = parts.shares.open(tenant, self._turn.state.counted)
        model = parts.models.for_chat(tenant, self._turn.request.model or self._turn.model)
        await self._load()
        if not self._announced:
            await self._writer.record(self._first_events(model), (), self._turn.state)
        await self._parts.lease.wait_valid()
        share = self._share or self._allowance().root()
        if self._running is not None and self._turn.fence.session_id is not None:
            self._children = TurnChildren(parts.children, self._running, self._turn, tenant, share=share, reason=self._stop_reason)
        loop = self._loop = AgentLoop(
            LoopParts(
                model=model,
                summariser=parts.models.for_purpose(tenant, Purpose.COMPRESSION),
                toolbox=parts.toolboxes.for_tenant(tenant),
                clock=parts.clock,
                settings=tenant.settings,
                todos=parts.todos,
                memory=parts.memory,
                allowance=self._writer.share,
                share=share,
                children=self._children,
                calls_at_once=parts.calls_at_once,
            )
        )
        async with aclosing(loop.run(self._turn, self._writer.placed)) as facts:
            async for fact in facts:
                if isinstance(fact, Show):
                    await self._show(fact)
                elif await self._commit(fact):
                    return

    async def _look_at_day(self, tenant: Tenant) -> None:
        """A turn that waited was let in by what was left then."""
        parts = self._parts
        if tenant.settings.limits_day:
            parts.shares.learn(tenant.id, await patiently(lambda: parts.usage.today(tenant.id), parts.clock))

    def _stop_reason(self) -> InterruptReason:
        """Why the turn's children are interrupted, when they are."""
        return self.interrupt_reason if self.interrupted else InterruptReason.REQUESTED

    def _allowance(self) -> Allowance:
        """What the turn and its children may use together; what children used before it went on here counts."""
        request = self._turn.request
        total = Budget(iterations=request.max_iterations, tokens=request.max_tokens, cost_usd=request.max_cost_usd)
        return Allowance(total, self._turn.state.children)

    async def _load(self) -> None:
        """Take the session's messages, the turn's own included. A stateless call that was lost has none left: nobody goes on with it."""
        parts, session_id = self._parts, self._turn.fence.session_id
        if self._turn.working_set is not None:
            self._writer.placed = list(self._turn.working_set)
        elif session_id is not None:
            self._writer.placed = await patiently(lambda: parts.messages.working_set(session_id), parts.clock)
        self._loaded = True

    def _first_events(self, model: ModelClient) -> tuple[Fact, ...]:
        turn = self._turn
        if turn.resumed:
            return (TurnResumed(session_id=turn.fence.session_id, route=model.primary),)
        started = TurnStarted(session_id=turn.fence.session_id, route=model.primary)
        if turn.request.kind is TurnKind.COMPACTION:
            return (started,)
        return (started, IterationStarted(iteration=turn.state.iteration, max_iterations=turn.request.max_iterations))

    async def _show(self, fact: Show) -> None:
        for delta in fact.deltas:
            if delta.attempt != self._open_attempt:
                self._open_attempt = delta.attempt
                self._open_text.clear()
                self._open_chars = 0
            self._open_chars += len(delta.text)
            if isinstance(delta, MessageDelta):
                self._open_text.append(delta.text)
        await self._writer.show(fact.deltas)

    async def _commit(self, fact: Record | Pause | End) -> bool:
        """Commit one fact; true when the turn is over here."""
        match fact:
            case Record():
                await self._record(fact)
                session_id = self._turn.fence.session_id
                # A stateless call is not handed over: its client waits on this very connection, and its messages are no rows.
                if fact.boundary and session_id is not None and self._parts.should_hand_over():
                    await self._settle_children(InterruptReason.SHUTDOWN)
                    if self._turn.request.depth:  # it would go on without its parent; that goes on elsewhere, with what it has of this one
                        await self._close(Interrupted(reason=InterruptReason.SHUTDOWN, output=self._shown_text()))
                        return True
                    await self._writer.hand_over(TurnQueued(session_id=session_id, reason="handed_over"))
                    return True
                return False
            case Pause():
                state = await self._settle_children(InterruptReason.REQUESTED, fact.state)
                until_ms = self._parts.clock.unix_ms() + round(self._parts.action_timeout_s * 1000)
                await self._writer.pause(requires_action(state, until_ms), state, until_ms=until_ms)
                return True
            case End(outcome=outcome):
                await self._close(
                    outcome,
                    before=fact.events,
                    messages=fact.messages,
                    state=fact.state,
                    forget=fact.forget,
                    context=fact.context,
                    calls=fact.calls,
                )
                return True

    async def _settle_children(self, reason: InterruptReason, state: MachineState | None = None) -> MachineState:
        """End the children that still run, before the turn leaves this process; what became of them is stored."""
        state = state or self._writer.state
        late = [] if self._children is None else await self._children.settle(reason)
        if late:
            facts, used = told_late(late, self._turn.request.depth)
            state = machine.count_children(state, used)
            await self._writer.record(facts, (), state)
        return state

    async def _record(self, fact: Record) -> None:
        self._open_text.clear()
        self._open_chars = 0
        for event in fact.events:
            if isinstance(event, AttemptFailedEvent):
                self._parts.counters.attempt_failures[event.reason.value] += 1
            elif isinstance(event, ProviderThrottled):
                self._parts.counters.throttled[event.limit, "skipped" if event.skipped else "waited"] += 1
            elif isinstance(event, CompactionCompleted):
                self._parts.counters.compactions[event.reason.value, "trimmed" if event.summary_id is None else "completed"] += 1
            elif isinstance(event, CompactionFailed):
                self._parts.counters.compactions[event.reason.value, "failed"] += 1
        await self._writer.record(
            fact.events, fact.messages, fact.state, context=fact.context, compaction=fact.compaction, calls=fact.calls
        )
        # A call may start after its intent is stored, but only while the turn is surely ours.
        await self._parts.lease.wait_valid()

    def _unanswered(self, added: Sequence[StoredMessage] = ()) -> list[Unfinished]:
        """The turn's calls that have no result, neither stored nor in ``added``."""
        rows, run = (*self._writer.placed, *added), None if self._loop is None else self._loop.under_way
        paused, now_ms = self._writer.state.paused, self._parts.clock.unix_ms()
        return unfinished(rows, self._turn.fence.turn_id, paused=paused, run=run, now_ms=now_ms)

    def _next_seq(self, added: Sequence[StoredMessage]) -> int:
        """The first free place behind everything, the places of results included."""
        everything = [*self._writer.placed, *added]
        return max((stored.seq + 1 + len(stored.message.tool_calls) for stored in everything), default=self._turn.next_message_seq)

    def _stored(self, seq: int, message: Message) -> StoredMessage:
        now_ms = self._parts.clock.unix_ms()
        return StoredMessage(
            id=MessageId(make_id("msg", now_ms, secrets.token_bytes(10))),
            session_id=self._turn.fence.session_id,
            seq=seq,
            turn_id=self._turn.fence.turn_id,
            message=message,
            archived=False,
            created_at_ms=now_ms,
        )

    async def _close_failed(self, reason: FailedReason, detail: str) -> None:
        await self._close(Failed(reason=reason, detail=detail, retryable=True, output=self._shown_text()))

    def _shown_text(self) -> str:
        """The text that the turn has shown and not completed: parts of an answer, and that of the open attempt."""
        return "".join((*self._writer.state.parts, *self._open_text))

    async def _close(
        self,
        outcome: Outcome,
        *,
        before: Sequence[Fact] = (),
        messages: Sequence[StoredMessage] = (),
        state: MachineState | None = None,
        forget: bool = False,
        context: ContextState | None = None,
        calls: Sequence[CallRecord] = (),
    ) -> None:
        """End the turn with everything that keeps its session's history valid, in one commit. Its children end first."""
        if self._children is not None:
            late = await self._children.settle(outcome.reason if isinstance(outcome, Interrupted) else InterruptReason.REQUESTED)
            facts, used = told_late(late, self._turn.request.depth)
            before, state = (*before, *facts), machine.count_children(state or self._open_state(), used)
        if not self._loaded and self._turn.state.paused is not None:
            await self._load()  # it ends before it goes on, and has calls without results
        left = [] if leaves_calls(outcome) else self._unanswered(messages)
        added = [*messages, *(self._stored(one.seq, one.message) for one in left)]
        spoken = self._turn.request.kind is TurnKind.CHAT
        note = history.closing_note(outcome, keep_text=self._turn.keep_interrupted_text) if spoken and not forget else None
        if note is not None:
            added.append(self._stored(self._next_seq(added), note))
        state = state or self._open_state()
        fence = self._turn.fence
        to = terminal_state(outcome)
        await self._writer.close(
            terminal_event(fence.turn_id, fence.session_id, outcome, state),
            before=(*before, *(unfinished_call(fence.turn_id, one.seq, one.message) for one in left)),
            messages=added,
            state=state,
            to=to,
            forget=forget,
            context=context,
            calls=(*calls, *(one.record for one in left)),
        )
        self._parts.counters.ended[to.value, outcome.reason.value] += 1

    def _open_state(self) -> MachineState:
        """The machine's state with the attempt that was showing text and with calls that ended, which no commit has counted yet."""
        state = self._writer.state
        counted = None if self._loop is None else self._loop.interrupted_state(self._open_chars)
        if counted is not None:
            state = msgspec.structs.replace(
                state,
                attempts=counted.attempts,
                usage=counted.usage,
                cost_usd=counted.cost_usd,
                routes=counted.routes,
            )
        return msgspec.structs.replace(state, attempts=max(state.attempts, self._open_attempt))
