"""The calls of a turn that ends before they have results: what answers them, and their records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.agent.run import Run
from app.context import history
from app.domain.events import Fact
from app.domain.ids import TurnId
from app.domain.messages import Message, StoredMessage, ToolCall
from app.domain.secret_arguments import HideAll
from app.domain.tools import CallRecord, CallStatus, record_of
from app.domain.turns import SEQ_GAP
from app.domain.waiting import PausedBatch
from app.turns.pauses import unfinished_call, waiting_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A call without a result, the message that answers it at place ``seq``, and its record."""

    seq: int
    message: Message
    record: CallRecord


def unfinished(
    rows: Iterable[StoredMessage], turn_id: TurnId, *, paused: PausedBatch | None, run: Run | None, now_ms: int
) -> list[Unfinished]:
    """The calls of ``turn_id`` among ``rows`` that have no result.

    Those that an earlier turn left to its client are not among them: their results may still come. ``run`` is the turn as it went on
    here; without it nobody knows which arguments are secret, and none is shown.
    """
    placed = sorted((row for row in rows if row.turn_id == turn_id), key=lambda row: row.seq)
    given = {} if paused is None else paused.unfinished()
    records = {} if paused is None else {record.seq: record for record in waiting_records(paused)}
    return [
        Unfinished(
            seq=seq,
            message=given.get(seq) or history.interrupted_result(call),
            record=records.get(seq) or interrupted_record(call, seq, run, now_ms),
        )
        for seq, call in history.unanswered((row.seq, row.message) for row in placed)
    ]


def lost_calls(turn_id: TurnId, calls: Sequence[ToolCall]) -> tuple[tuple[Fact, ...], tuple[CallRecord, ...]]:
    """The results of calls of a lost stateless call, as events and records. Their places are not known any more: far above all others."""
    placed = [(SEQ_GAP + index, call) for index, call in enumerate(calls)]
    answers = tuple(unfinished_call(turn_id, seq, history.interrupted_result(call)) for seq, call in placed)
    return answers, tuple(interrupted_record(call, seq, None, 0) for seq, call in placed)


def interrupted_record(call: ToolCall, seq: int, run: Run | None, now_ms: int) -> CallRecord:
    """The record of a call that ran when its turn ended."""
    began_ms = None if run is None else run.began_ms
    took = (None, 0) if began_ms is None else (began_ms, max(0, now_ms - began_ms))
    mask = HideAll() if run is None else run.rules.mask
    return record_of(call, seq=seq, status=CallStatus.INTERRUPTED, shown=mask.shown(call), took=took)
