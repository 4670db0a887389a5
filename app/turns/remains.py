"""What the stored events of a lost turn say of how far it came."""

from collections.abc import Sequence
from functools import partial

import msgspec

from app.domain.events import ToolCompleted, shown_text, split_frames
from app.domain.ids import TurnId
from app.domain.messages import ToolCall
from app.domain.turns import EventRow
from app.ports import Clock, TurnStore
from app.turns.writer import patiently


class _Started(msgspec.Struct):
    tool_call_id: str
    name: str


_started = msgspec.json.Decoder(_Started).decode
_completed = msgspec.json.Decoder(ToolCompleted).decode


async def stored_rows(store: TurnStore, clock: Clock, turn_id: TurnId) -> list[EventRow]:
    """Every stored event of a turn; waits while the database is away."""
    found: list[EventRow] = []
    while True:
        position = (turn_id, found[-1].last if found else 0)
        rows, _ = (await patiently(partial(store.read_events, [position]), clock))[position]
        if not rows:
            return found
        found += rows


def text_of(rows: Sequence[EventRow], attempt: int) -> str:
    """As much of an attempt's text as was stored."""
    return "".join(shown_text(row.frames, attempt) for row in rows)


def open_calls(rows: Sequence[EventRow]) -> list[ToolCall]:
    """The calls that began and have no result, in their order; of their arguments nothing is told."""
    calls: dict[str, ToolCall] = {}
    for row in rows:
        for frame in split_frames(row.frames):
            head, _, data = frame.partition(b"\ndata: ")
            if head.endswith(b"\nevent: tool.started"):
                started = _started(data)
                calls[started.tool_call_id] = ToolCall(started.tool_call_id, started.name, "{}")
            elif head.endswith(b"\nevent: tool.completed"):
                calls.pop(_completed(data).tool_call_id, None)
    return list(calls.values())
