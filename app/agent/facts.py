"""What the loop yields. It writes nothing itself: the turn server commits each fact before it pulls the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from app.agent import machine
from app.agent.budget import Budget, Pressure
from app.domain.compaction import ContextState
from app.domain.conversation_events import BudgetWarning
from app.domain.events import (
    MAX_EVENT_TEXT,
    AttemptFailedEvent,
    AttemptReset,
    Fact,
    ProviderFallback,
    ProviderThrottled,
    ToolCompleted,
    ToolStarted,
    output_url,
    tool_completed,
)
from app.domain.ids import TurnId
from app.domain.messages import StoredMessage, ToolCall, content_text
from app.domain.model import (
    AttemptAccepted,
    AttemptFailed,
    Delta,
    MessageDelta,
    ModelChunk,
    ModelReply,
    ReasoningDelta,
    RouteRef,
    Throttled,
)
from app.domain.tools import CallRecord, FinishedCall
from app.domain.turns import Compaction, MachineState, Outcome, PressureLevel


@dataclass(frozen=True, slots=True)
class Show:
    """Deltas that arrived together: may be shown before they are stored."""

    deltas: list[Delta]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Facts to be stored in one step, then shown. ``boundary``: the turn can be resumed here by anybody.

    ``context`` is kept with the session when it is given; ``compaction`` changes what the session's next request holds; ``calls`` are the
    records of those whose results are among the messages.
    """

    events: tuple[Fact, ...]
    messages: tuple[StoredMessage, ...]
    state: MachineState
    boundary: bool = False
    context: ContextState | None = None
    compaction: Compaction | None = None
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The turn's outcome, with the facts that belong to it; always the last.

    ``forget``: the turn's messages leave the model's context.
    """

    events: tuple[Fact, ...]
    messages: tuple[StoredMessage, ...]
    state: MachineState
    outcome: Outcome
    forget: bool = False
    context: ContextState | None = None
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Everything else of a reply's calls is stored: the turn waits for the rest (``state.paused``) without a task. Nothing follows here."""

    state: MachineState


LoopFact: TypeAlias = Show | Record | Pause | End


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What a batch of model chunks means: facts in order, the state after them, and the reply if it was the last."""

    facts: list[LoopFact]
    state: MachineState
    reply: ModelReply | None
    open_route: RouteRef | None
    """Of the attempt that was accepted and is not over."""

    @classmethod
    def of(cls, batch: Sequence[ModelChunk], state: MachineState, open_route: RouteRef | None = None) -> "Arrivals":
        """Deltas of a batch stay together, failed attempts stand between them as records. ``open_route``: as before the batch."""
        facts: list[LoopFact] = []
        deltas: list[Delta] = []
        reply: ModelReply | None = None
        for chunk in batch:
            if isinstance(chunk, MessageDelta | ReasoningDelta):
                deltas.append(chunk)
                continue
            if deltas:
                facts.append(Show(deltas))
                deltas = []
            if isinstance(chunk, ModelReply):
                reply, open_route = chunk, None
            elif isinstance(chunk, AttemptAccepted):
                open_route = chunk.route
            elif isinstance(chunk, Throttled):
                facts.append(Record(events=(_throttled(chunk),), messages=(), state=state))
            else:
                state = machine.count_failure(state, chunk)
                open_route = None
                facts.append(Record(events=_attempt_events(chunk), messages=(), state=state))
        if deltas:
            facts.append(Show(deltas))
        return cls(facts=facts, state=state, reply=reply, open_route=open_route)


def _throttled(chunk: Throttled) -> ProviderThrottled:
    return ProviderThrottled(route=chunk.route, limit=chunk.limit, delay_s=chunk.delay_s, skipped=chunk.skipped)


def _attempt_events(failed: AttemptFailed) -> tuple[Fact, ...]:
    events: list[Fact] = [
        AttemptFailedEvent(
            attempt=failed.attempt,
            route=failed.route,
            reason=failed.reason,
            status=failed.status,
            message=failed.message,
            next_route=failed.next_route,
            delay_s=failed.delay_s,
        )
    ]
    if failed.text_shown:
        events.append(AttemptReset(attempt=failed.attempt))
    if failed.next_route is not None and failed.next_route != failed.route:
        events.append(ProviderFallback(from_route=failed.route, to_route=failed.next_route, reason=failed.reason))
    return tuple(events)


def budget_warning(told: Pressure, state: MachineState, budget: Budget) -> BudgetWarning:
    """The event of what the model is told of its budget; ``state`` is the one that follows."""
    used = state.iteration if told.level is PressureLevel.EXHAUSTED else state.iteration - 1
    return BudgetWarning(level=told.level, iteration=used, max_iterations=budget.iterations, message=told.text)


def tools_started(calls: Sequence[ToolCall]) -> tuple[Fact, ...]:
    """The events of calls that are about to run; ``calls`` as they are shown."""
    return tuple(ToolStarted(tool_call_id=call.id, name=call.name, arguments=call.arguments[:MAX_EVENT_TEXT]) for call in calls)


def tools_completed(turn_id: TurnId, done: Sequence[FinishedCall], results: Sequence[StoredMessage]) -> tuple[Fact, ...]:
    """The events of calls that finished together, each with its stored result."""
    return tuple(_completed(turn_id, one, result) for one, result in zip(done, results, strict=True))


def _completed(turn_id: TurnId, done: FinishedCall, result: StoredMessage) -> ToolCompleted:
    outcome = msgspec.structs.replace(done.outcome, output=content_text(result.message.content))
    call, url = done.call, output_url(turn_id, done.call.id, result.seq)
    return tool_completed(outcome, (call.id, call.name), duration_ms=done.duration_ms, url=url)
