"""Turns that wait for somebody: what is told when one pauses, and how its calls are answered when it ends instead of going on."""

import secrets

from app.context import history
from app.domain.conversation_events import ActionCall, ToolRequiresAction
from app.domain.events import MAX_EVENT_TEXT, ToolCompleted, output_url, rfc3339, tool_completed
from app.domain.ids import MessageId, TurnId, make_id
from app.domain.messages import Message, content_text
from app.domain.tools import CallRecord, ToolOutcome, record_of
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
    arguments = waiting.arguments
    return ActionCall(
        tool_call_id=waiting.call.id,
        kind=waiting.kind,
        name=waiting.call.name,
        arguments=arguments[:limit],
        question=waiting.question,
        choices=waiting.choices,
        arguments_truncated=limit is not None and len(arguments) > limit,
    )


def unfinished_call(turn_id: TurnId, seq: int, result: Message) -> ToolCompleted:
    """The event of a call that got its result, at place ``seq``, from the end of its turn."""
    call_id, name = result.tool_call_id or "", result.tool_name or ""
    outcome = ToolOutcome(output=content_text(result.content), is_error=result.is_error)
    return tool_completed(outcome, (call_id, name), url=output_url(turn_id, call_id, seq))


def waiting_records(paused: PausedBatch) -> tuple[CallRecord, ...]:
    """The records of a paused turn's calls when it ends instead of going on."""
    return tuple(_waiting_record(paused, one) for one in paused.waiting)


def _waiting_record(paused: PausedBatch, one: WaitingCall) -> CallRecord:
    return record_of(one.call, seq=paused.place + 1 + one.index, status=one.unfinished_as, shown=one.arguments)


def closing_messages(paused: PausedBatch, outcome: Interrupted, now_ms: int) -> tuple[NewMessage, ...]:
    """What keeps the session's history valid when a paused turn ends: results for its calls, and the note where the answer is missing."""
    results = sorted(paused.unfinished().items())
    note = history.closing_note(outcome, keep_text=False)
    placed = results if note is None else [*results, (paused.place + 1 + paused.size, note)]
    ids = (MessageId(make_id("msg", now_ms, secrets.token_bytes(10))) for _ in placed)
    return tuple(NewMessage(id=one, seq=seq, message=message) for one, (seq, message) in zip(ids, placed, strict=True))
