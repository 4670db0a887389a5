import asyncio

import pytest

from app.domain.events import FrameEncoder, IterationStarted, frame_seq, split_frames
from app.domain.ids import ReplicaId, SessionId, TurnId
from app.domain.model import MessageDelta
from app.domain.turns import EventRow, Fence, RowKind
from app.turns.live import MAX_UNSTORED_BYTES, TAIL_BYTES, LiveTurn, cut

FENCE = Fence(turn_id=TurnId("turn_1"), session_id=SessionId("sess_1"), owner=ReplicaId("rep_a"), generation=1)


@pytest.fixture
def live() -> LiveTurn:
    return LiveTurn(FENCE, last_seq=2)


def show(live: LiveTurn, count: int = 1, text: str = "x") -> None:
    first = live.last_seq + 1
    frames = [live.encoder.frame(first + index, MessageDelta(attempt=1, text=text)) for index in range(count)]
    live.show(first, first + count - 1, b"".join(frames), now=1.0)


def store_fact(live: LiveTurn, kind: RowKind = RowKind.FACTS) -> None:
    row = live.unstored()
    if row is not None:
        live.mark_stored(row)
    seq = live.last_seq + 1
    live.add_stored(EventRow(seq, seq, kind, live.encoder.frame(seq, IterationStarted(iteration=1, max_iterations=9))))


def seqs(frames: bytes) -> list[int]:
    return [frame_seq(frame) for frame in split_frames(frames)]


def read(live: LiveTurn, after: int, *, stored_only: bool = False) -> list[int]:
    piece = live.piece(after, stored_only=stored_only)
    assert piece is not None
    return seqs(piece.frames)


def test_a_follower_gets_what_is_behind_its_cursor(live: LiveTurn) -> None:
    show(live, 3)
    store_fact(live)
    show(live, 2)
    assert [read(live, after) for after in range(2, 9)] == [list(range(after + 1, 9)) for after in range(2, 9)]


def test_memory_does_not_reach_back_before_the_turn_came_here(live: LiveTurn) -> None:
    assert live.piece(1, stored_only=False) is None


def test_unstored_deltas_can_be_held_back(live: LiveTurn) -> None:
    show(live, 2)
    store_fact(live)
    show(live, 2)
    assert read(live, 2, stored_only=True) == [3, 4, 5]


def test_deltas_that_came_during_a_write_stay_unstored(live: LiveTurn) -> None:
    show(live, 2)
    written = live.unstored()
    assert written is not None
    show(live, 1)
    live.mark_stored(written)
    rest = live.unstored()
    assert rest is not None
    assert (rest.first, rest.last) == (5, 5)
    assert live.unstored_bytes == len(rest.frames)
    assert read(live, 2) == [3, 4, 5]


def test_the_end_is_seen_with_the_terminal_row(live: LiveTurn) -> None:
    show(live, 1)
    store_fact(live, RowKind.TERMINAL)
    piece = live.piece(2, stored_only=False)
    assert piece is not None
    assert (piece.last, piece.end) == (4, True)


def test_the_tail_in_memory_is_bounded_and_older_cursors_go_to_storage(live: LiveTurn) -> None:
    for _ in range(200):
        show(live, 1, "y" * 400)
        store_fact(live)
    assert live.piece(2, stored_only=False) is None
    recent = live.last_seq - 4
    assert read(live, recent) == list(range(recent + 1, live.last_seq + 1))
    oldest = next(after for after in range(2, live.last_seq) if live.piece(after, stored_only=False) is not None)
    piece = live.piece(oldest, stored_only=False)
    assert piece is not None
    assert len(piece.frames) < 2 * TAIL_BYTES


async def test_a_writer_waits_while_storage_is_behind(live: LiveTurn) -> None:
    await live.wait_drained()
    show(live, 1, "z" * (MAX_UNSTORED_BYTES + 1))
    waiting = asyncio.ensure_future(live.wait_drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    row = live.unstored()
    assert row is not None
    live.mark_stored(row)
    await waiting


async def test_followers_wake_when_something_comes_and_when_the_turn_is_lost(live: LiveTurn) -> None:
    first, second = asyncio.ensure_future(live.changed()), asyncio.ensure_future(live.changed())
    await asyncio.sleep(0)
    show(live)
    await asyncio.gather(first, second)
    third = asyncio.ensure_future(live.changed())
    await asyncio.sleep(0)
    live.lose()
    await third
    assert live.lost


async def test_a_follower_that_gave_up_is_forgotten(live: LiveTurn) -> None:
    waiting = asyncio.ensure_future(live.changed())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    show(live)
    assert waiting.cancelled()


def test_a_row_is_cut_between_whole_frames() -> None:
    encoder = FrameEncoder(TurnId("turn_1"))
    frames = [encoder.frame(seq, MessageDelta(attempt=1, text="a\n\nb")) for seq in (7, 8, 9)]
    assert cut(EventRow(7, 9, RowKind.DELTAS, b"".join(frames)), 7) == frames[1] + frames[2]
