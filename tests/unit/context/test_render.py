import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.render import PRUNED_BYTES, View, cap_result, cut_middle, render, result_limit, shown
from app.domain.compaction import ResultClip
from app.domain.messages import Message, Role, encode_message
from tests.unit.context.rows import PICTURE, result, rounds, said, stored, user

SIZES = {
    "small window": (8_192, 4_915),
    "tiny window": (2_000, 2_000),
    "usual window": (128_000, 76_800),
    "huge window": (1_000_000, 100_000),
}


@pytest.mark.parametrize(("window", "limit"), SIZES.values(), ids=SIZES)
def test_a_result_gets_its_share_of_the_window(window: int, limit: int) -> None:
    assert result_limit(window) == limit
    assert len(cap_result("x" * 300_000, window).encode()) == limit


def test_a_result_within_its_share_is_the_same_text() -> None:
    text = "é" * 2_457
    assert cap_result(text, 8_192) is text
    assert cap_result(f"{text}éé", 8_192) != text + "éé"


def test_a_giant_result_says_what_is_missing_and_where_it_is() -> None:
    capped = cap_result("HEAD" + "x" * 200_000 + "TAIL", 8_192)
    head, _, tail = capped.partition("\n[… ")
    middle, _, tail = tail.partition(" …]\n")
    assert (head[:4], tail[-4:]) == ("HEAD", "TAIL")
    assert middle == f"{200_008 - len(head) - len(tail)} of 200008 bytes left out here; the full text is in the transcript"
    assert len(head) == pytest.approx(2 * len(tail), abs=2)


@given(text=st.text(max_size=400), limit=st.integers(0, 500))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_what_is_cut_is_valid_short_enough_and_settled(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    size = len(cut.encode())
    assert cut == cut_middle(text, limit)
    if len(text.encode("utf-8", "replace")) <= limit:
        assert cut is text
    elif limit >= 100:
        assert size <= limit
        assert cut_middle(cut, limit) == cut
    else:
        assert size < 100 + limit


def test_halves_of_characters_are_never_shown() -> None:
    for limit in range(200, 240):
        assert "\ufffd" not in cut_middle("🦊" * 400, limit)
    assert cut_middle("\ud83e" * 400, 200).encode()


def test_only_results_are_cut() -> None:
    rows = stored([user("u" * 50_000), said("a" * 50_000, "1", arguments='{"q":"' + "x" * 50_000 + '"}'), result("1", "r" * 50_000)])
    before = [encode_message(row.message) for row in rows]
    first, second, third = render(rows, View(8_192))
    assert first is rows[0].message
    assert second is rows[1].message
    assert isinstance(third.content, str)
    assert len(third.content.encode()) == 4_915
    assert [encode_message(row.message) for row in rows] == before


def test_a_clip_reaches_up_to_its_row_and_the_smallest_counts() -> None:
    rows = stored([user("u"), *rounds(3, size=3_000)])
    view = View(128_000, (ResultClip(3, 500), ResultClip(5, 1_000)))
    assert [len(str(message.content).encode()) for message in render(rows, view) if message.role is Role.TOOL] == [500, 1_000, 3_000]


def test_a_clip_never_lengthens_a_result() -> None:
    row = stored([result("1", "r" * 50_000)])[0]
    assert shown(row, View(8_192, (ResultClip(1, 8_000),))) == shown(row, View(8_192))


def test_needless_clips_are_dropped() -> None:
    view = View(8_192).clipped(ResultClip(10, 500)).clipped(ResultClip(20, 500)).clipped(None)
    assert view.clips == (ResultClip(20, 500),)
    assert view.clipped(ResultClip(30, 1_000)).clips == (ResultClip(20, 500), ResultClip(30, 1_000))


def parts(*texts: str) -> Message:
    content = [PICTURE, *({"type": "text", "text": text} for text in texts)]
    return Message(role=Role.TOOL, content=content, tool_call_id="1")


def test_parts_of_a_result_share_its_limit() -> None:
    row = stored([parts("x" * 9_000, "y" * 100)])[0]
    content = shown(row, View(8_192)).content
    assert isinstance(content, list)
    assert content[0] is PICTURE
    assert [len(part["text"].encode()) for part in content[1:]] == [2_457, 100]
    small = stored([parts("x", "y")])[0]
    assert shown(small, View(8_192)) is small.message


def test_a_pruned_result_loses_its_pictures() -> None:
    pruned = shown(stored([parts("x" * 9_000)])[0], View(8_192, (ResultClip(1, PRUNED_BYTES),))).content
    assert isinstance(pruned, list)
    assert [part["type"] for part in pruned] == ["text", "text"]
    assert len(pruned[0]["text"].encode()) == PRUNED_BYTES
    only_text = Message(role=Role.TOOL, content=[{"type": "text", "text": "x" * 9_000}], tool_call_id="1")
    assert len(shown(stored([only_text])[0], View(8_192, (ResultClip(1, PRUNED_BYTES),))).content) == 1
