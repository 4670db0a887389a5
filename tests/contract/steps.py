"""Steps of turns, as their owner writes them."""

from app.domain.events import FrameEncoder, IterationStarted
from app.domain.ids import ReplicaId, SessionId, TenantId
from app.domain.openings import OpenTurn
from app.domain.turns import Closing, Commit, DeltaBatch, EventRow, MachineState, NewMessage, PruneAges, RowKind, TurnState
from app.ports import TurnStore
from tests.integration.store.builders import A, a_turn


async def opened(turns: TurnStore, tenant_id: TenantId, session_id: SessionId, owner: ReplicaId = A) -> OpenTurn:
    opening = await turns.open(a_turn(tenant_id, session_id, owner=owner))
    assert isinstance(opening, OpenTurn)
    return opening


def step(
    turn: OpenTurn,
    *messages: NewMessage,
    closing: Closing | None = None,
    hand_over: bool = False,
    state: MachineState | None = None,
    seq: int | None = None,
) -> Commit:
    seq = turn.last_seq + 1 if seq is None else seq
    frame = FrameEncoder(turn.fence.turn_id).frame(seq, IterationStarted(iteration=2, max_iterations=90))
    kind = RowKind.TERMINAL if closing else RowKind.FACTS
    return Commit(
        fence=turn.fence,
        previous_seq=turn.last_seq,
        last_seq=seq,
        rows=(EventRow(seq, seq, kind, frame),),
        messages=messages,
        next_message_seq=max((message.seq + 1 for message in messages), default=0),
        state=state or turn.state,
        closing=closing,
        hand_over=hand_over,
    )


def deltas(turn: OpenTurn, first: int, last: int) -> DeltaBatch:
    return DeltaBatch(fence=turn.fence, row=EventRow(first, last, RowKind.DELTAS, b"id: %d\n\n" % first))


DONE = Closing(state=TurnState.COMPLETED, reason="answer", outcome=b'{"output":"x"}')
STOPPED = Closing(state=TurnState.INTERRUPTED, reason="requested", outcome=b'{"output":""}')
PRUNE_AGES = PruneAges(deltas_s=3_600.0, idempotency_s=86_400.0, stateless_s=7 * 86_400.0)
