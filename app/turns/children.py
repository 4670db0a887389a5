"""Child turns: ordinary turns in hidden sessions, run in their parent's process and ended before it."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from typing_extensions import override

from app.agent.allowance import Share
from app.domain.children import ChildEnded, ChildNews, ChildRefused, ChildrenUse, ChildStarted, ChildStatus, ChildTask
from app.domain.errors import InvalidRequestError, UnavailableError
from app.domain.events import Event, FrameEncoder, IterationStarted, TurnStarted
from app.domain.ids import MessageId, ReplicaId, SessionId, TurnId, make_id
from app.domain.kanban import MAX_CARD_RESULT, MAX_TITLE, CardChange, CardState, NewCard
from app.domain.model import Usage
from app.domain.openings import NewTurn, OpenTurn
from app.domain.sessions import NewSession
from app.domain.tenants import Tenant
from app.domain.turns import EventRow, InterruptReason, RowKind, TurnRequest, TurnState, TurnView
from app.ports import ChildTurns, Clock, KanbanStore, ModelClients, SessionStore, TurnStore
from app.turns.writer import patiently

CHILD_PROMPT = """You are a sub-agent: another agent has handed you one task, and nobody else reads along. \
Work on it by yourself with the tools you have; you cannot ask anything back. \
Your final answer is all that the other agent gets: put everything it needs in there, and say what you could not do."""

logger = logging.getLogger(__name__)

_NOT_STARTED = "Not run: the sub-agent could not be started."
_CARD_STATES = {
    ChildStatus.COMPLETED: CardState.DONE,
    ChildStatus.INTERRUPTED: CardState.CANCELLED,
    ChildStatus.FAILED: CardState.FAILED,
}


class Running(Protocol):
    """The turns that run in this process, as far as children need them."""

    def start(self, turn: OpenTurn, tenant: Tenant | None, *, announced: bool, share: Share | None = None) -> None:
        """Run a turn that this replica owns, with a share of a budget."""

    def cancel(self, turn_id: TurnId, reason: InterruptReason) -> bool:
        """Interrupt a turn; false when it does not run here."""

    async def until_ended(self, turn_id: TurnId) -> None:
        """Return when the turn has ended here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """What child turns of this process take."""

    sessions: SessionStore
    turns: TurnStore
    kanban: KanbanStore
    models: ModelClients
    clock: Clock
    replica: ReplicaId


@dataclass(slots=True, eq=False)
class _Child:
    """One child, from the call for it to its end."""

    task: ChildTask
    share: Share
    turn_id: TurnId
    session_id: SessionId
    card_id: str
    born: "asyncio.Future[str | None] | None" = None
    """Its writing; the result is why it came to nothing, if it did."""
    end: "asyncio.Task[ChildEnded] | None" = None
    """Waits for its end, once it runs."""
    start_told: bool = False
    end_told: bool = False
    """What of it is among the facts of its parent."""


class TurnChildren(ChildTurns):
    """The children of one turn, as :class:`app.ports.ChildTurns`. ``reason`` says why the turn is interrupted, when it is."""

    def __init__(
        self, parts: Children, running: Running, parent: OpenTurn, tenant: Tenant, *, share: Share, reason: Callable[[], InterruptReason]
    ) -> None:
        self._parts = parts
        self._running = running
        self._parent = parent
        self._tenant = tenant
        self._share = share
        self._reason = reason
        self._open: set[_Child] = set()
        self._unseen: list[_Child] = []
        """Children whose end is not among the parent's facts."""
        self._closed = False

    @override
    async def run(self, task: ChildTask) -> AsyncGenerator[ChildNews, None]:
        """See :class:`app.ports.ChildTurns`."""
        child = self._admit(task)
        if isinstance(child, ChildRefused):
            yield child
            return
        kept = False
        try:
            child.born = asyncio.ensure_future(self._bear(child))
            failure = await asyncio.shield(child.born)
            if failure is not None or child.end is None:
                yield ChildRefused(detail=failure or _NOT_STARTED)
                return
            kept = task.background
            yield _started(child)
            if kept:
                return
            yield await asyncio.shield(child.end)
        finally:
            if not kept:
                await self._stop(child, self._reason())

    @override
    def news(self) -> list[ChildNews]:
        """See :class:`app.ports.ChildTurns`."""
        news: list[ChildNews] = []
        for child in self._unseen:
            if child.end is not None and child.end.done():
                news += [child.end.result()] if child.start_told else [_started(child), child.end.result()]
                child.start_told = child.end_told = True
        self._unseen = [child for child in self._unseen if not child.end_told]
        return news

    @override
    def told(self, *, started: Iterable[TurnId], ended: Iterable[TurnId]) -> None:
        """See :class:`app.ports.ChildTurns`."""
        begun, over = set(started), set(ended)
        for child in self._unseen:
            child.start_told = child.start_told or child.turn_id in begun
            child.end_told = child.turn_id in over
        self._unseen = [child for child in self._unseen if not child.end_told]

    async def settle(self, reason: InterruptReason) -> list[ChildNews]:
        """Interrupt what still runs and wait for its end; no child begins any more. Returns what was not told yet."""
        self._closed = True
        await asyncio.gather(*(self._stop(child, reason) for child in list(self._open)))
        return self.news()

    def _admit(self, task: ChildTask) -> _Child | ChildRefused:
        """A place for a child. Nobody comes between the looks and the taking: there is no await in here."""
        most = self._tenant.settings.max_concurrent_children
        if self._closed:
            return ChildRefused(detail="Not run: the turn is ending.")
        if len(self._open) >= most:
            return ChildRefused(detail=f"Not run: at most {most} sub-agents run at the same time. Ask again when one has ended.")
        share = self._share.allowance.child(task.max_iterations)
        if share is None:
            return ChildRefused(detail="Not run: nothing is left of the turn's budget.")
        child = _Child(
            task=task,
            share=share,
            turn_id=TurnId(self._id("turn")),
            session_id=SessionId(self._id("sess")),
            card_id=self._id("card"),
        )
        self._open.add(child)
        return child

    async def _bear(self, child: _Child) -> str | None:
        """Write the child and start it; why that failed, else ``None``."""
        parts, failure = self._parts, None
        try:
            turn = self._new_turn(child)
            if await parts.kanban.add(self._new_card(child)) is None:
                self._forget(child)
                return "Not run: the board is full, and each sub-agent has a card on it."
            await parts.sessions.create(await self._new_session(child))
            opening = await parts.turns.open(turn)
            if isinstance(opening, OpenTurn):
                self._running.start(opening, self._tenant, announced=True, share=child.share)
                child.end = asyncio.create_task(self._end(child), name=f"end of child {child.turn_id}")
                self._unseen.append(child)
                await self._mark(child, CardChange(state=CardState.RUNNING))
                return None
            failure = _NOT_STARTED
        except UnavailableError:
            failure = "Not run: the storage is not available right now. Ask again."
        except InvalidRequestError as error:
            failure = f"Not run: {error.detail}"
        except Exception:
            # The boundary of one child: its place must not stay taken.
            logger.exception("a child turn cannot be started", extra={"turn_id": self._parent.fence.turn_id})
            failure = _NOT_STARTED
        if child.end is not None:
            return None  # it runs: only its card could not be written
        await self._mark(child, CardChange(state=CardState.FAILED, result=failure))
        self._forget(child)
        return failure

    async def _mark(self, child: _Child, change: CardChange) -> None:
        """Change the child's card, if that is possible: cards of ended turns are shown as such in any case."""
        try:
            await self._parts.kanban.change(self._session_id, child.card_id, change)
        except UnavailableError:
            logger.warning("a card cannot be changed right now", extra={"turn_id": child.turn_id})

    async def _stop(self, child: _Child, reason: InterruptReason) -> None:
        """See a child to its end, whatever it is at. One that is being written is interrupted as soon as it is there."""
        if child.born is not None:
            await asyncio.wait((child.born,))
        if child.end is not None:
            self._running.cancel(child.turn_id, reason)
            await asyncio.wait((child.end,))

    async def _end(self, child: _Child) -> ChildEnded:
        """What becomes of a child; its card says it as well."""
        parts = self._parts
        await self._running.until_ended(child.turn_id)
        if child.born is not None:
            await asyncio.wait((child.born,))  # it still writes to the card, which is to say the end in the end
        view = await patiently(lambda: parts.turns.get(self._tenant.id, child.turn_id), parts.clock)
        ended = _ended(child, view)
        change = CardChange(state=_CARD_STATES[ended.status], result=ended.output[:MAX_CARD_RESULT])
        await patiently(lambda: parts.kanban.change(self._session_id, child.card_id, change), parts.clock)
        self._forget(child)
        return ended

    def _forget(self, child: _Child) -> None:
        self._open.discard(child)
        child.share.leave(begun=child.end is not None)

    async def _new_session(self, child: _Child) -> NewSession:
        parent = await self._parts.sessions.get(self._tenant.id, self._session_id)
        return NewSession(
            id=child.session_id,
            tenant_id=self._tenant.id,
            system_prompt=CHILD_PROMPT,
            model=child.task.model,
            toolsets=(),
            tools=msgspec.json.encode(child.task.tools, order="sorted"),
            user=None if parent is None else parent.user,
            keep_interrupted_text=False,
            metadata={},
            messages=(),
            idempotency_key=None,
            fingerprint=b"",
            parent_session_id=self._session_id,
        )

    def _new_turn(self, child: _Child) -> NewTurn:
        task, now_ms = child.task, self._parts.clock.unix_ms()
        request = TurnRequest(
            input=f"{task.goal}\n\nContext:\n{task.context}" if task.context else task.goal,
            model=task.model,
            background=self._parent.request.background,
            max_iterations=child.share.budget.iterations,
            depth=task.depth,
        )
        model = self._parts.models.for_chat(self._tenant, task.model)
        encoder = FrameEncoder(child.turn_id)
        events: tuple[Event, ...] = (
            TurnStarted(session_id=child.session_id, route=model.primary),
            IterationStarted(iteration=1, max_iterations=request.max_iterations),
        )
        frames = b"".join(encoder.frame(1 + index, event) for index, event in enumerate(events))
        return NewTurn(
            id=child.turn_id,
            tenant_id=self._tenant.id,
            session_id=child.session_id,
            request=request,
            owner=self._parts.replica,
            message_id=MessageId(self._id("msg")),
            rows=(EventRow(1, len(events), RowKind.FACTS, frames),),
            max_queued=1,
            idempotency_key=None,
            fingerprint=b"",
            created_at_ms=now_ms,
            parent_turn_id=self._parent.fence.turn_id,
        )

    def _new_card(self, child: _Child) -> NewCard:
        return NewCard(
            id=child.card_id,
            session_id=self._session_id,
            turn_id=self._parent.fence.turn_id,
            title=" ".join(child.task.goal.split())[:MAX_TITLE],
            state=CardState.TODO,
            owner="sub-agent",
            child_turn_id=child.turn_id,
        )

    @property
    def _session_id(self) -> SessionId:
        session_id = self._parent.fence.session_id
        if session_id is None:
            raise RuntimeError("a stateless call has no children")
        return session_id

    def _id(self, prefix: str) -> str:
        return make_id(prefix, self._parts.clock.unix_ms(), secrets.token_bytes(10))


def _started(child: _Child) -> ChildStarted:
    return ChildStarted(tool_call_id=child.task.tool_call_id, turn_id=child.turn_id, session_id=child.session_id, card_id=child.card_id)


class _Outcome(msgspec.Struct):
    """What is read of a terminal event."""

    output: str = ""
    iterations: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None
    children: ChildrenUse | None = None


_outcome = msgspec.json.Decoder(_Outcome)
_STATUSES = {
    TurnState.COMPLETED: ChildStatus.COMPLETED,
    TurnState.INTERRUPTED: ChildStatus.INTERRUPTED,
    TurnState.FAILED: ChildStatus.FAILED,
}


def _ended(child: _Child, view: TurnView | None) -> ChildEnded:
    outcome = _Outcome() if view is None or view.outcome is None else _outcome.decode(view.outcome)
    own = ChildrenUse(turns=1, iterations=outcome.iterations, usage=outcome.usage, cost_usd=outcome.cost_usd)
    status = ChildStatus.INTERRUPTED if view is None else _STATUSES.get(view.state, ChildStatus.INTERRUPTED)
    return ChildEnded(
        tool_call_id=child.task.tool_call_id,
        turn_id=child.turn_id,
        card_id=child.card_id,
        status=status,
        reason=(view.reason if view is not None else None) or InterruptReason.WORKER_LOST.value,
        output=outcome.output,
        used=own if outcome.children is None else own + outcome.children,
    )
