"""The end of a turn that nobody owns, since it is in the queue or has waited for somebody: whoever wants it ended does it."""

import msgspec

from app.domain.errors import LeaseLostError
from app.domain.events import Fact, FrameEncoder
from app.domain.messages import Role
from app.domain.terminal_events import terminal_event
from app.domain.turns import Closing, Commit, EventRow, Interrupted, InterruptReason, RowKind, TurnState, TurnView
from app.ports import Clock, TurnStore
from app.turns.counters import Counters
from app.turns.event_log import EventLog
from app.turns.pauses import closing_messages, unfinished_call, waiting_records


async def close_queued(
    view: TurnView, reason: InterruptReason, *, store: TurnStore, log: EventLog, clock: Clock, counters: Counters
) -> bool:
    """End a turn that nobody owns; false when somebody has taken it up meanwhile. Raises UnavailableError."""
    outcome = Interrupted(reason=reason)
    event = terminal_event(view.id, view.session_id, outcome, view.machine)
    paused = view.machine.paused
    messages = () if paused is None else closing_messages(paused, outcome, clock.unix_ms())
    events: tuple[Fact, ...] = (
        *(unfinished_call(view.id, one.seq, one.message) for one in messages if one.message.role is Role.TOOL),
        event,
    )
    first, last = view.last_seq + 1, view.last_seq + len(events)
    encoder = FrameEncoder(view.id)
    frames = b"".join(encoder.frame(first + index, one) for index, one in enumerate(events))
    commit = Commit(
        fence=view.fence,
        previous_seq=view.last_seq,
        last_seq=last,
        rows=(EventRow(first, last, RowKind.TERMINAL, frames),),
        messages=messages,
        tool_calls=() if paused is None else waiting_records(paused),
        next_message_seq=messages[-1].seq + 1 if messages else 0,
        state=view.machine,
        closing=Closing(state=TurnState.INTERRUPTED, reason=reason.value, outcome=msgspec.json.encode(event)),
    )
    try:
        await store.commit(commit)
    except LeaseLostError:
        return False
    log.announce(view.id)
    counters.ended[TurnState.INTERRUPTED.value, reason.value] += 1
    return True
