import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.cut import Cut, Scale, cut_places, newest_user, plan, trim
from app.context.history import repair
from app.context.render import PRUNED_BYTES, View, render
from app.domain.compaction import ResultClip
from app.domain.messages import Message, MessageKind, Role, StoredMessage
from app.domain.tools import INTERRUPTED_OUTPUT
from tests.unit.context.rows import WIDE, anything, asked, counted, note, problems, result, rounds, said, seqs, stored, user

SCALE = Scale(view=WIDE)


def shown_of(cut: Cut) -> tuple[Message, ...]:
    return render(cut.keep, WIDE)


def paired(rows: tuple[StoredMessage, ...]) -> bool:
    """Whether every call and every result of ``rows`` has its counterpart there."""
    calls = [call.id for row in rows for call in row.message.tool_calls]
    results = [row.message.tool_call_id for row in rows if row.message.role is Role.TOOL]
    return sorted(calls) == sorted(str(one) for one in results)


def forty(early: int) -> list[Message]:
    """39 messages: an input, then rounds of one, two or three calls; an early message is ``early`` bytes long."""
    messages = [user("TASK: do X"), said("e" * early), user("go on")]
    for number in range(12):
        calls = [f"c{number}_{index}" for index in range(1 + number % 3)]
        messages += [said("", *calls), *(result(call, f"{call} ".ljust(60, ".")) for call in calls)]
    return messages


def test_at_every_place_a_cut_leaves_a_history_that_strict_providers_take() -> None:
    rows = stored(forty(10))
    starts = set()
    for keep in range(0, SCALE.tokens(rows) + 10, 3):
        cut = plan(rows, keep, SCALE)
        if cut is None:
            continue
        assert paired(cut.keep)
        assert paired(cut.archive)
        assert problems(asked(cut.keep)) == []
        assert any(message.content == "go on" for message in shown_of(cut))
        starts.add(cut.keep[1].seq if cut.keep[0].seq + 1 != cut.keep[1].seq else cut.keep[0].seq)
    assert starts >= {row.seq for row in rows[4:] if row.message.role is Role.ASSISTANT}


@pytest.mark.parametrize("early", range(0, 2_000, 37))
def test_the_length_of_an_early_message_moves_the_cut_and_parts_no_pair(early: int) -> None:
    rows = stored(forty(early))
    cut = plan(rows, 400, SCALE)
    assert cut is not None
    assert paired(cut.keep)
    assert problems(asked(cut.keep)) == []


def test_an_unanswered_call_at_the_end_is_kept_and_answered_as_interrupted() -> None:
    rows = stored([user("u"), *rounds(6), said("", "open")])
    cut = plan(rows, 0, SCALE)
    assert cut is not None
    assert seqs(cut.keep) == [1, 14]
    assert shown_of(cut)[-1].content == INTERRUPTED_OUTPUT
    assert problems(asked(cut.keep)) == []


def test_a_part_of_an_answer_is_kept_for_going_on_with_it() -> None:
    rows = stored([user("u"), *rounds(6), part("p" * 4_000), note("Go on.")])
    cut = plan(rows, 100, SCALE)
    assert cut is not None
    assert seqs(cut.keep) == [1, 14, 15]


def test_rows_that_are_broken_already_are_healed() -> None:
    rows = stored([user("u"), result("lost"), said("", "1"), *rounds(3), result("call_0"), user("v"), said("", "2"), user("w")])
    for keep in range(0, 60, 2):
        cut = plan(rows, keep, SCALE)
        assert cut is None or problems(asked(cut.keep)) == []


def part(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text, kind=MessageKind.NOTE)


PLACES: dict[str, tuple[list[Message], list[int]]] = {
    "nothing": ([], []),
    "texts": ([user("a"), said("b"), user("c")], [0, 1, 2]),
    "a call and its results": ([user("a"), said("", "1", "2"), result("1"), result("2"), said("b")], [0, 1, 4]),
    "a late result": ([said("", "1"), user("v"), result("1"), said("b")], [0, 3]),
    "calls of two neighbours": ([user("a"), said("", "1"), said("", "2"), result("1"), result("2"), said("b")], [0, 1, 5]),
    "an id that comes back": ([said("", "0"), result("0"), said("", "0"), result("0")], [0, 2]),
    "an orphan": ([user("a"), result("x"), said("b")], [0, 1, 2]),
    "an unanswered call": ([said("", "1"), user("a")], [0, 1]),
    "a call that waits": ([user("a"), said("", "1"), note("n"), note("m")], [0, 1]),
    "one of two calls that waits": ([user("a"), said("", "1", "2"), note("n"), result("1"), note("m")], [0, 1]),
    "parts of an answer": ([user("a"), part("b"), note("go on"), part("c"), note("go on")], [0, 1, 3]),
    "a note without a prompt": ([user("a"), part("b"), user("c")], [0, 1, 2]),
    "a call that is answered": ([said("", "1"), result("1"), note("n")], [0, 2]),
}


@pytest.mark.parametrize(("messages", "places"), PLACES.values(), ids=PLACES)
def test_where_a_history_may_be_cut(messages: list[Message], places: list[int]) -> None:
    assert cut_places(stored(messages)) == places


def test_the_newest_message_of_the_user_is_one_that_was_said() -> None:
    assert newest_user(stored([user("a"), said("b"), user("c"), note("n")])) == 2
    assert newest_user(stored([said("b"), note("n"), said("c")])) == 1
    assert newest_user(stored([said("b")])) is None


def test_the_task_stays_while_a_long_loop_of_tools_leaves() -> None:
    first = stored([user("TASK-7: do X"), *rounds(60)])
    cut = plan(first, 100, SCALE)
    assert cut is not None
    assert cut.keep[0].message.content == "TASK-7: do X"
    assert seqs(cut.keep)[1:] == list(range(seqs(cut.keep)[1], 122))
    assert 100 - 35 <= SCALE.tokens(cut.keep[1:]) <= 100
    again = plan([*cut.keep, *stored(rounds(60, first=60), first_seq=122)], 100, SCALE)
    assert again is not None
    assert again.keep[0].message.content == "TASK-7: do X"
    second = [*again.keep, *stored([user("stop X, do Y"), *rounds(30, first=120)], first_seq=300)]
    last = plan(second, 100, SCALE)
    assert last is not None
    assert [row.message.content for row in last.keep if row.message.role is Role.USER] == ["stop X, do Y"]
    assert "TASK-7: do X" in [row.message.content for row in last.archive]
    for one in (cut, again, last):
        assert problems(asked(one.keep)) == []


def test_the_last_exchange_stays_whatever_its_size() -> None:
    rows = stored([user("u"), *rounds(2), said("", "big"), result("big", "x" * 9_000)])
    cut = plan(rows, 10, SCALE)
    assert cut is not None
    assert seqs(cut.keep) == [1, 6, 7]


def test_nothing_leaves_when_all_of_it_fits_or_nothing_can() -> None:
    assert plan(stored([user("a"), said("b")]), 1_000, SCALE) is None
    assert plan(stored([user("a"), said("", "1"), result("1", "x" * 9_000)]), 0, SCALE) is None
    assert plan([], 0, SCALE) is None


def test_an_estimate_that_was_too_low_shortens_the_tail() -> None:
    rows = stored([user("u"), *rounds(40)])
    plain, scaled = plan(rows, 400, SCALE), plan(rows, 400, Scale(view=WIDE, ratio=2.0))
    assert plain is not None
    assert scaled is not None
    assert len(plain.keep) - 1 == pytest.approx(2 * (len(scaled.keep) - 1), abs=3)


def test_pruning_makes_room_for_more_exchanges() -> None:
    rows = stored([user("u"), *rounds(40, size=2_000)])
    plain, pruned = plan(rows, 3_000, SCALE), plan(rows, 3_000, SCALE, prune=True)
    assert plain is not None
    assert pruned is not None
    assert pruned.clip is not None
    assert len(pruned.keep) > len(plain.keep)
    assert SCALE.clipped(pruned.clip).tokens(pruned.keep[1:]) <= 3_000
    sizes = [len(str(message.content).encode()) for message in render(pruned.keep, WIDE.clipped(pruned.clip)) if message.role is Role.TOOL]
    assert set(sizes) == {PRUNED_BYTES, 2_000}
    assert sizes == sorted(sizes)
    assert sizes.count(2_000) == 2  # half of the tail
    assert problems(asked(pruned.keep, WIDE.clipped(pruned.clip))) == []


def test_pruning_leaves_no_clip_where_no_kept_result_is_cut() -> None:
    cut = plan(stored([user("a" * 400), said("b" * 400), user("c"), said("d"), user("e")]), 60, SCALE, prune=True)
    assert cut is not None
    assert cut.clip is None


def test_a_trim_drops_the_oldest_exchanges() -> None:
    rows = stored([user("TASK"), *rounds(40)])
    cut = trim(rows, 500, SCALE, comfortable=300)
    assert cut is not None
    assert cut.clip is None
    assert cut.keep[0].message.content == "TASK"
    assert SCALE.tokens(cut.keep) <= 300
    assert problems(asked(cut.keep)) == []


def test_a_trim_leaves_room_for_a_long_message_of_the_user() -> None:
    rows = stored([user("u" * 6_000), *rounds(100)])
    cut = trim(rows, 3_000, SCALE, comfortable=2_000)
    assert cut is not None
    assert 1_900 < SCALE.tokens(cut.keep) <= 2_000
    assert cut.keep[0] is rows[0]


def test_a_trim_cuts_the_results_of_the_last_exchange_harder() -> None:
    calls = [f"c{number}" for number in range(8)]
    rows = stored([user("TASK"), *rounds(5), said("", *calls), *(result(call, call + "x" * 20_000) for call in calls)])
    view = View(8_192)
    cut = trim(rows, 3_500, Scale(view=view), comfortable=3_000)
    assert cut is not None
    assert cut.clip is not None
    assert cut.clip.max_bytes == 1_000
    request = asked(cut.keep, view.clipped(cut.clip))
    assert counted(request) <= 3_500
    assert problems(request) == []


def test_a_trim_that_cannot_fit_says_so() -> None:
    assert trim(stored([user("u" * 40_000)]), 3_000, SCALE, comfortable=2_000) is None
    assert trim([], -1, SCALE, comfortable=-1) is None


def test_a_trim_with_nothing_to_do_changes_nothing() -> None:
    rows = stored([user("u"), said("", "1"), result("1")])
    assert trim(rows, 500, SCALE, comfortable=0) == Cut(archive=(), keep=tuple(rows))
    assert trim([], 0, SCALE, comfortable=0) == Cut(archive=(), keep=())


def check(rows: list[StoredMessage], cut: Cut) -> None:
    """Nothing is lost, order is kept, the user's newest message is there, and what stays is valid."""
    assert sorted((*cut.archive, *cut.keep), key=lambda row: row.seq) == rows
    for part in (cut.archive, cut.keep):
        assert seqs(part) == sorted(seqs(part))
    newest = newest_user(rows)
    assert newest is None or rows[newest] in cut.keep
    history = repair([row.message for row in cut.keep])
    assert repair(history) == history
    assert problems(asked(cut.keep)) == []


@given(messages=anything, last=st.sampled_from([user("do it"), user("é" * 900)]), keep=st.integers(0, 900), prune=st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_whatever_the_rows_say_a_cut_loses_nothing_and_stays_valid(messages: list[Message], last: Message, keep: int, prune: bool) -> None:
    rows = stored([*messages, last])
    cut = plan(rows, keep, SCALE, prune=prune)
    assert cut is None or cut.archive
    if cut is not None:
        check(rows, cut)


@given(before=anything, count=st.integers(0, 12), keep=st.integers(0, 300), prune=st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_same_in_the_middle_of_a_turn(before: list[Message], count: int, keep: int, prune: bool) -> None:
    rows = stored([*before, user("do it"), *rounds(count)])
    cut = plan(rows, keep, SCALE, prune=prune)
    if cut is not None:
        check(rows, cut)
        assert "do it" in [message.content for row in cut.keep for message in [row.message]]


@given(before=anything, count=st.integers(0, 12), budget=st.integers(0, 600))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_trim_fits_or_says_that_it_cannot(before: list[Message], count: int, budget: int) -> None:
    rows = stored([*before, user("do it"), *rounds(count, size=300)])
    cut = trim(rows, budget, SCALE, comfortable=budget // 2)
    if cut is None:
        least = plan(rows, 0, SCALE)
        assert SCALE.clipped(ResultClip(rows[-1].seq, PRUNED_BYTES)).tokens(rows if least is None else least.keep) > budget
        return
    check(rows, cut)
    assert SCALE.clipped(cut.clip).tokens(cut.keep) <= budget
