"""New turns on their way in: what their statements are given, and what comes back."""

from typing import Any

import msgspec

from app.domain.compaction import ContextState
from app.domain.ids import MessageId, TurnId
from app.domain.messages import Message, Role, StoredMessage, decode_message, encode_message
from app.domain.openings import Kept, NewTurn, OpenTurn, opened_stateless
from app.domain.turns import Fence, MachineState, TurnState
from app.store import opening_sql as sql

_encode = msgspec.json.Encoder().encode
_context = msgspec.json.Decoder(ContextState)
_INITIAL_STATE = _encode(MachineState())


def statement_of(turn: NewTurn) -> sql.OpeningStatement:
    """The statement that writes ``turn``."""
    if turn.stateless is not None:
        return sql.OPEN_STATELESS
    return sql.OPEN if turn.request.input and not turn.request.answers else sql.OPEN_WITH_ANSWERS


def params_of(turn: NewTurn) -> dict[str, Any]:
    """The statement's parameters."""
    request = turn.request
    params: dict[str, Any] = {
        "id": turn.id,
        "tenant_id": turn.tenant_id,
        "session_id": turn.session_id,
        "state": (TurnState.RUNNING if turn.owner else TurnState.QUEUED).value,
        "rank": 0 if request.on_busy.value == "interrupt" else 1,
        "owner": turn.owner,
        "request": _encode(request),
        "message_id": turn.message_id,
        "input_message": encode_message(Message(role=Role.USER, content=request.input)) if request.input else b"",
        "machine": _INITIAL_STATE,
        "last_seq": turn.rows[-1].last,
        "key": turn.idempotency_key,
        "fingerprint": turn.fingerprint,
        "parent_turn_id": turn.parent_turn_id,
        "max_queued": turn.max_queued,
        "first": turn.rows[0].first,
        "kind": int(turn.rows[0].kind),
        "frames": b"".join(row.frames for row in turn.rows),
    }
    if turn.stateless is not None:
        params |= {"history": _encode(turn.stateless.history), "key": None, "call_key": turn.idempotency_key}
    elif request.answers or not request.input:
        messages = turn.messages
        params["message_ids"] = [message_id for message_id, _ in messages]
        params["bodies"] = [encode_message(message) for _, message in messages]
    return params


def opened(turn: NewTurn, row: Any) -> OpenTurn:
    """The turn as it runs, from the row that its opening returned."""
    if turn.stateless is not None:
        return opened_stateless(turn, turn.stateless)
    own = _own_messages(turn, row.next_seq)
    return OpenTurn(
        fence=Fence(turn_id=turn.id, session_id=turn.session_id, owner=turn.owner, generation=1),
        tenant_id=turn.tenant_id,
        request=turn.request,
        state=MachineState(),
        last_seq=turn.rows[-1].last,
        next_message_seq=row.next_seq + len(own),
        system_prompt=row.system_prompt,
        tools=row.tools,
        model=row.model,
        kept=kept_of(row),
        keep_interrupted_text=row.keep_interrupted_text,
        cancel_reason=None,
        resumed=False,
        rows=turn.rows,
        working_set=_working_set(turn, row, own),
    )


def kept_of(row: Any) -> Kept:
    """What the session keeps, from a row with its columns."""
    context = ContextState() if row.context is None else _context.decode(row.context)
    return Kept(memory=row.memory, summary=row.summary, context=context)


def _own_messages(turn: NewTurn, next_seq: int) -> list[StoredMessage]:
    return [
        StoredMessage(
            id=message_id,
            session_id=turn.session_id,
            seq=next_seq + index,
            turn_id=turn.id,
            message=message,
            archived=False,
            created_at_ms=turn.created_at_ms,
        )
        for index, (message_id, message) in enumerate(turn.messages)
    ]


def _working_set(turn: NewTurn, row: Any, own: list[StoredMessage]) -> tuple[StoredMessage, ...] | None:
    """The messages that came with the opening and the turn's own; ``None`` when they are not surely the newest.

    A statement that waited for the turn before it has the session's row as it is now, but messages as they were when it began: then
    the last of them does not reach up to the session's next place. (Whatever changes the working set must move that place.)
    """
    found = [
        StoredMessage(
            id=MessageId(message_id),
            session_id=turn.session_id,
            seq=seq,
            turn_id=TurnId(turn_id) if turn_id else None,
            message=decode_message(body),
            archived=False,
            created_at_ms=created_at_ms,
        )
        for seq, message_id, turn_id, body, created_at_ms in zip(
            row.seqs or (), row.ids or (), row.turn_ids or (), row.bodies or (), row.times or (), strict=True
        )
    ]
    reached = found[-1].seq + 1 + len(found[-1].message.tool_calls) if found else 1
    return (*found, *own) if reached == row.next_seq else None
