import pytest

from app.context import tokens
from app.context.compaction import (
    Sizing,
    after_overflow,
    calibration,
    compacted,
    context_size,
    due,
    failed,
    fitted,
    fixed_size,
    may_compact,
    new_mark,
    plan_compaction,
    plan_trim,
    tail_tokens,
    threshold_of,
)
from app.context.render import View
from app.context.summary import longest_summary
from app.domain.compaction import CompactionReason, CompactionResult, ContextMark, Fruitless, Room, Thresholds
from app.domain.messages import Message, Role, StoredMessage
from app.domain.model import Usage
from tests.unit.context.rows import asked, counted, problems, result, rounds, said, seqs, stored, user

DEFAULT = Thresholds()
SMALL = Room(8_192, 1_024)


def mark(tokens_seen: int, *, up_to_seq: int = 0, window: int = 100_000, ratio: float = 1.0) -> ContextMark:
    return ContextMark(tokens=tokens_seen, up_to_seq=up_to_seq, window=window, ratio=ratio)


def sizing(room: Room, *, fixed: int = 100, ratio: float = 1.0, view: View | None = None) -> Sizing:
    return Sizing(room=room, thresholds=DEFAULT, view=view or View(room.window), ratio=ratio, fixed_tokens=fixed)


GATEWAY = {
    "128k, below": (108_799, 128_000, None),
    "128k": (108_800, 128_000, CompactionReason.GATEWAY),
    "200k, below": (169_999, 200_000, None),
    "200k": (170_000, 200_000, CompactionReason.GATEWAY),
    "1M": (850_000, 1_000_000, CompactionReason.GATEWAY),
    "exactly 85 %": (85_000, 100_000, CompactionReason.GATEWAY),
    "half": (50_000, 100_000, None),
    "120k of 128k": (120_000, 128_000, CompactionReason.GATEWAY),
    "120k of 200k": (120_000, 200_000, None),
    "the output limit of a small window comes first": (3_840, 8_192, CompactionReason.GATEWAY),
    "below that": (3_839, 8_192, None),
}


@pytest.mark.parametrize("turn_starts", [False, True])
@pytest.mark.parametrize(("size", "window", "reason"), GATEWAY.values(), ids=GATEWAY)
def test_growth_is_compacted_near_the_window(size: int, window: int, reason: CompactionReason | None, turn_starts: bool) -> None:
    known = mark(size, window=window)
    assert due(size, Room(window, 4_096), DEFAULT, turn_starts=turn_starts, mark=known) is reason


def test_a_smaller_window_is_looked_at_when_a_turn_starts() -> None:
    room = Room(64_000, 4_096)
    larger, same = mark(40_000, window=128_000), mark(40_000, window=64_000)
    assert due(32_000, room, DEFAULT, turn_starts=True, mark=larger) is CompactionReason.PREFLIGHT
    assert due(31_999, room, DEFAULT, turn_starts=True, mark=larger) is None
    assert due(32_000, room, DEFAULT, turn_starts=False, mark=larger) is None
    assert due(32_000, room, DEFAULT, turn_starts=True, mark=same) is None
    assert due(32_000, room, DEFAULT, turn_starts=True, mark=None) is None
    every = Thresholds(preflight_every_turn=True)
    assert due(32_000, room, every, turn_starts=True, mark=same) is CompactionReason.PREFLIGHT
    assert due(60_000, room, every, turn_starts=False, mark=same) is CompactionReason.GATEWAY


def test_no_threshold_exceeds_what_may_be_sent() -> None:
    assert (SMALL.margin, SMALL.most) == (256, 8_192 - 1_024 - 256)
    assert Room(100_000, 4_096).margin == 2_000
    assert Room(8_192, 6_000).threshold(0.5) == 8_192 - 6_000 - 256
    assert Room(4_096, 4_096).most == 0


def test_what_the_provider_counted_decides_and_only_newer_rows_are_estimated() -> None:
    rows = stored([user("u" * 4_000), said("a" * 4_000), user("n" * 400)])
    known = mark(149_000, up_to_seq=2)
    view = View(128_000)
    size = context_size(known, rows, view, system="s" * 4_000, summary="", tools_bytes=8_000)
    assert size == 149_000 + 104
    doubled = ContextMark(tokens=149_000, up_to_seq=2, window=100_000, ratio=2.0)
    assert context_size(doubled, rows, view, system="", summary="", tools_bytes=0) == 149_000 + 208


def test_without_a_mark_all_of_it_is_estimated_as_it_is_shown() -> None:
    rows = stored([user("u" * 4_000), said("", "1"), result("1", "r" * 200_000)])
    view = View(8_192)
    size = context_size(None, rows, view, system="s" * 400, summary="m" * 400, tools_bytes=800)
    assert size == pytest.approx(100 + 100 + 200 + 1_000 + 4_915 / 4, abs=20)
    only_ratio = calibration(mark(9, ratio=1.5))
    assert only_ratio is not None
    scaled = context_size(only_ratio, rows, view, system="s" * 400, summary="m" * 400, tools_bytes=800)
    assert scaled == pytest.approx(1.5 * size, abs=2)
    assert calibration(None) is None


def test_a_reply_makes_a_mark() -> None:
    usage = Usage(input_tokens=3_000, output_tokens=500, reasoning_tokens=200)
    made = new_mark(usage, estimated=2_000, up_to_seq=7, window=9, replayed=False, previous=None)
    assert made == ContextMark(tokens=3_300, up_to_seq=7, window=9, ratio=1.5)
    replayed = new_mark(usage, estimated=2_000, up_to_seq=7, window=9, replayed=True, previous=None)
    assert replayed is not None
    assert replayed.tokens == 3_500


RATIOS = {
    "bounded above": (90_000, 1_000, None, 4.0),
    "bounded below": (100, 1_000, None, 0.5),
    "too small to tell": (900, 100, None, 1.0),
    "too small to tell, known before": (900, 100, mark(1, ratio=1.7), 1.7),
}


@pytest.mark.parametrize(("counted_tokens", "estimated", "previous", "ratio"), RATIOS.values(), ids=RATIOS)
def test_how_far_an_estimate_was_off(counted_tokens: int, estimated: int, previous: ContextMark | None, ratio: float) -> None:
    made = new_mark(Usage(input_tokens=counted_tokens), estimated=estimated, up_to_seq=1, window=9, replayed=False, previous=previous)
    assert made == ContextMark(tokens=counted_tokens, up_to_seq=1, window=9, ratio=ratio)


def test_a_provider_that_counts_nothing_changes_nothing() -> None:
    known = mark(5)
    assert new_mark(Usage(output_tokens=9), estimated=900, up_to_seq=1, window=9, replayed=False, previous=known) is known


def test_a_refusal_corrects_the_estimate() -> None:
    room = Room(32_768, 4_096)
    rows = stored([user("u" * 40_000)])
    refused = after_overflow(mark(9_000, ratio=1.2), estimated=10_000, room=room)
    assert context_size(refused, rows, View(32_768), system="", summary="", tools_bytes=0) >= room.most
    assert after_overflow(None, estimated=0, room=room).ratio == 1.0
    assert after_overflow(mark(9, ratio=3.0), estimated=28_000, room=room).ratio == 3.0


def test_the_tail_is_sized_by_the_session_s_window_and_shorter_when_aggressive() -> None:
    room = Room(128_000, 4_096)
    wide = sizing(room)
    assert tail_tokens(CompactionReason.PREFLIGHT, wide, rows_tokens=60_000) == 12_800
    assert tail_tokens(CompactionReason.GATEWAY, wide, rows_tokens=110_000) == 8_704
    assert tail_tokens(CompactionReason.OVERFLOW, wide, rows_tokens=110_000, attempt=2) == 4_352
    assert tail_tokens(CompactionReason.MANUAL, wide, rows_tokens=110_000) == 12_800
    assert tail_tokens(CompactionReason.MANUAL, wide, rows_tokens=2_000) == 500
    crowded = sizing(SMALL, fixed=3_500)
    assert tail_tokens(CompactionReason.PREFLIGHT, crowded, rows_tokens=3_000) == 0


def size_of(rows: list[StoredMessage], of: Sizing) -> int:
    return context_size(None, rows, of.view, system="Be kind.", summary="", tools_bytes=200)


def test_a_giant_newest_result_is_shown_cut_and_fits_a_small_window() -> None:
    rows = stored([user("TASK"), *rounds(2), said("", "big"), result("big", "x" * 200_000)])
    of = sizing(SMALL)
    assert size_of(rows, of) < SMALL.threshold(DEFAULT.gateway)
    assert counted(asked(rows, of.view)) <= SMALL.most
    assert problems(asked(rows, of.view)) == []


def grown(turns: int, size: int) -> list[Message]:
    messages = []
    for number in range(turns):
        messages += [user(f"Q{number} ".ljust(size, "q")), said("", f"c{number}"), result(f"c{number}", "r" * size), said("a" * size)]
    return messages


@pytest.mark.parametrize("reason", [CompactionReason.PREFLIGHT, CompactionReason.GATEWAY, CompactionReason.OVERFLOW])
def test_a_session_of_a_larger_window_is_cut_to_a_tail_that_fits_the_smaller_one(reason: CompactionReason) -> None:
    rows = stored([*grown(25, 3_000), user("NOW")])
    of = sizing(SMALL)
    assert size_of(rows, of) > 5 * SMALL.window
    cut = plan_compaction(reason, rows, of)
    assert cut is not None
    view = of.view.clipped(cut.clip)
    request = asked(cut.keep, view)
    assert counted(request) + longest_summary(SMALL) < SMALL.threshold(DEFAULT.preflight)
    assert problems(request) == []
    assert request.messages[-1].content == "NOW"


def test_a_second_round_after_a_refusal_keeps_less() -> None:
    rows = stored([*grown(25, 300), user("NOW")])
    first = plan_compaction(CompactionReason.OVERFLOW, rows, sizing(SMALL))
    second = plan_compaction(CompactionReason.OVERFLOW, rows, sizing(SMALL), attempt=2)
    assert first is not None
    assert second is not None
    assert len(second.keep) < len(first.keep)


def test_a_caller_can_compact_a_small_session() -> None:
    rows = stored(grown(4, 80))
    cut = plan_compaction(CompactionReason.MANUAL, rows, sizing(Room(128_000, 4_096)))
    assert cut is not None
    assert cut.clip is None
    assert plan_compaction(CompactionReason.MANUAL, stored([user("a"), said("b")])[:1], sizing(SMALL)) is None


def test_five_compactions_in_a_row_keep_the_session_valid() -> None:
    rows: list[StoredMessage] = []
    of = sizing(SMALL)
    seen: list[int] = []
    for number in range(5):
        first = rows[-1].seq + 1 if rows else 1
        rows = [*rows, *stored([*grown(8, 600), user(f"NOW {number}")], first_seq=first)]
        cut = plan_compaction(CompactionReason.GATEWAY, rows, of)
        assert cut is not None
        seen += seqs(cut.archive)
        rows = list(cut.keep)
        of = sizing(SMALL, view=of.view.clipped(cut.clip))
        assert len(of.view.clips) <= 1
        assert problems(asked(rows, of.view)) == []
    assert sorted([*seen, *seqs(rows)]) == list(range(1, rows[-1].seq + 1))


def test_a_trim_goes_down_to_half_of_the_window() -> None:
    rows = stored([*grown(25, 1_000), user("NOW")])
    of = sizing(SMALL)
    cut = plan_trim(rows, of, summary_tokens=300)
    assert cut is not None
    assert cut.archive
    request = asked(cut.keep, of.view)
    assert 2_000 < counted(request) + 400 <= SMALL.threshold(0.5) * 1.1
    assert problems(request) == []


def test_a_trim_that_cannot_help_says_so() -> None:
    assert plan_trim(stored([user("u" * 60_000)]), sizing(SMALL), summary_tokens=0) is None
    assert plan_trim(stored([user("u")]), sizing(SMALL, fixed=9_000), summary_tokens=0) is None


def test_prompt_and_tools_alone_above_the_mark_close_the_latch_after_two() -> None:
    room = Room(32_768, 1_024)
    fixed = round(0.6 * room.window)
    every = Thresholds(preflight_every_turn=True)
    state = Fruitless()
    rows: list[StoredMessage] = []
    made = 0
    for turn in range(10):
        rows = [*rows, *stored([user(f"turn {turn}"), said("fine")], first_seq=2 * turn + 1)]
        size = fixed + 20 * len(rows)
        reason = due(size, room, every, turn_starts=True, mark=None)
        if reason is not None and may_compact(state, reason, now_ms=0):
            cut = plan_compaction(reason, rows, sizing(room, fixed=fixed))
            rows = rows if cut is None else list(cut.keep)
            state = compacted(state, reason)
            made += 1
        state = fitted(state, fixed + 20 * len(rows), room, every)
    assert made == 2
    assert state.latched
    assert state.hopeless
    threshold = threshold_of(CompactionReason.PREFLIGHT, room, every)
    assert fitted(state, threshold, room, every) is state
    assert fitted(state, threshold - 1, room, every) == Fruitless()


def test_a_compaction_that_helped_does_not_count() -> None:
    state = Fruitless()
    for _ in range(5):
        assert may_compact(state, CompactionReason.GATEWAY, now_ms=0)
        state = fitted(compacted(state, CompactionReason.GATEWAY), SMALL.threshold(0.85) - 1, SMALL, DEFAULT)
    assert state == Fruitless()


def test_a_compaction_that_a_caller_asked_for_does_not_count() -> None:
    state = Fruitless(count=1, failures=2, cool_until_ms=9)
    for _ in range(5):
        state = compacted(state, CompactionReason.MANUAL)
    assert state == Fruitless(count=1)


def test_failed_summaries_wait_longer_each_time() -> None:
    state = Fruitless(count=1)
    waits = []
    for _ in range(4):
        state = failed(state, now_ms=1_000)
        waits.append(state.cool_until_ms - 1_000)
        assert not may_compact(state, CompactionReason.GATEWAY, now_ms=state.cool_until_ms - 1)
        assert may_compact(state, CompactionReason.GATEWAY, now_ms=state.cool_until_ms)
        assert may_compact(state, CompactionReason.MANUAL, now_ms=0)
    assert waits == [60_000, 300_000, 900_000, 900_000]
    assert (state.count, state.failures, state.latched, state.hopeless) == (1, 4, False, True)
    assert fitted(state, 1, SMALL, DEFAULT) == Fruitless(failures=4, cool_until_ms=901_000)
    assert compacted(state, CompactionReason.GATEWAY) == Fruitless(count=2)


def test_what_is_fixed_is_calibrated_too() -> None:
    assert fixed_size("s" * 400, 400) == tokens.estimate("s" * 400, (), tools_bytes=400) == 200
    assert fixed_size("s" * 400, 400, mark(1, ratio=1.5)) == 300


def test_a_result_names_the_rows_that_left() -> None:
    made = CompactionResult(reason=CompactionReason.MANUAL, archived_seqs=(2, 3, 9), summary="s", clips=(), tokens_before=9, tokens_after=1)
    assert (made.first_seq, made.last_seq) == (2, 9)
    none = CompactionResult(reason=CompactionReason.OVERFLOW, archived_seqs=(), summary=None, clips=(), tokens_before=9, tokens_after=1)
    assert (none.first_seq, none.last_seq) == (None, None)


def test_pictures_count() -> None:
    picture = Message(role=Role.USER, content=[{"type": "image_url", "image_url": {"url": "https://x/a.png"}}])
    assert context_size(None, stored([picture]), View(9), system="", summary="", tools_bytes=0) == 1_504
