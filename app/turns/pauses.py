"""Turns that wait for somebody: what is told when one pauses, and how its calls are answered when it ends instead of going on."""

import secrets

from app.context import history
from app.domain.conversation_events import ActionCall, ToolRequiresAction
from app.domain.events import MAX_EVENT_TEXT, ToolCompleted, rfc3339
from app.domain.ids import MessageId, make_id
from app.domain.messages import Message, content_text
from app.domain.turns import Interrupted, MachineState, NewMessage
from app.domain.waiting import PausedBatch, WaitingCall


def requires_action(state: MachineState, until_ms: int) -> ToolRequiresAction:
    """The event of a turn that pauses. Raises RuntimeError when none of its calls waits."""
    if state.paused is None or not state.paused.open:
        raise RuntimeError("a turn pauses and none of its calls waits")
    return ToolRequiresAction(calls=action_calls(state.paused, limit=MAX_EVENT_TEXT), expires_at=rfc3339(until_ms))


def action_calls(paused: PausedBatch, *, limit: int | None = None) -> tuple[ActionCall, ...]:
    """The calls that wait, as clients see them; arguments are cut to ``limit`` characters."""
    return tuple(_action_call(waiting, limit) for waiting in paused.open)


def _action_call(waiting: WaitingCall, limit: int | None) -> ActionCall:
    arguments = waiting.call.arguments
    return ActionCall(
        tool_call_id=waiting.call.id,
        kind=waiting.kind,
        name=waiting.call.name,
        arguments=arguments[:limit],
        question=waiting.question,
        choices=waiting.choices,
        arguments_truncated=limit is not None and len(arguments) > limit,
    )


def unfinished_call(result: Message) -> ToolCompleted:
    """The event of a call that got its result from the end of its turn."""
    output = content_text(result.content)
    return ToolCompleted(
        tool_call_id=result.tool_call_id or "",
        name=result.tool_name or "",
        output=output[:MAX_EVENT_TEXT],
        is_error=result.is_error,
        duration_ms=0,
        output_truncated=len(output) > MAX_EVENT_TEXT,
    )


def closing_messages(paused: PausedBatch, outcome: Interrupted, now_ms: int) -> tuple[NewMessage, ...]:
    """What keeps the session's history valid when a paused turn ends: results for its calls, and the note where the answer is missing."""
    results = sorted(paused.unfinished().items())
    note = history.closing_note(outcome, keep_text=False)
    placed = results if note is None else [*results, (paused.place + 1 + paused.size, note)]
    ids = (MessageId(make_id("msg", now_ms, secrets.token_bytes(10))) for _ in placed)
    return tuple(NewMessage(id=one, seq=seq, message=message) for one, (seq, message) in zip(ids, placed, strict=True))
