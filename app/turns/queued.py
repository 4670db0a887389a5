"""The end of a turn that waits in the queue: nobody owns it, so whoever wants it ended does it."""

import msgspec

from app.domain.errors import LeaseLostError
from app.domain.events import FrameEncoder
from app.domain.terminal_events import terminal_event
from app.domain.turns import Closing, Commit, EventRow, Interrupted, InterruptReason, RowKind, TurnState, TurnView
from app.ports import TurnStore
from app.turns.counters import Counters
from app.turns.event_log import EventLog


async def close_queued(view: TurnView, reason: InterruptReason, *, store: TurnStore, log: EventLog, counters: Counters) -> bool:
    """End a turn that waits; false when it has left the queue meanwhile. Raises UnavailableError."""
    event = terminal_event(view.id, view.session_id, Interrupted(reason=reason), view.machine)
    seq = view.last_seq + 1
    row = EventRow(seq, seq, RowKind.TERMINAL, FrameEncoder(view.id).frame(seq, event))
    closing = Closing(state=TurnState.INTERRUPTED, reason=reason.value, outcome=msgspec.json.encode(event))
    try:
        await store.commit(
            Commit(fence=view.fence, previous_seq=view.last_seq, last_seq=seq, rows=(row,), state=view.machine, closing=closing)
        )
    except LeaseLostError:
        return False
    log.announce(view.id)
    counters.ended[TurnState.INTERRUPTED.value, reason.value] += 1
    return True
