import pytest

from app.domain.model import Delta, MessageDelta, ReasoningDelta
from app.providers.reply_text import ReplyText


@pytest.mark.parametrize(
    ("pieces", "text", "reasoning"),
    [
        (["He", "y"], "Hey", ""),
        (["<thi", "nk>why</think>\n", "Hey"], "Hey", "why"),
        (["a\x00", "b"], "a\ufffdb", ""),
        (["a\ud83e", "\udd8ab"], "a🦊b", ""),
        (["a", "\ud83e"], "a\ufffd", ""),
        (["b", "\udd8a"], "b\ufffd", ""),
        (["<think>why"], "", "why"),
        (["<think>\ud83e"], "", "\ufffd"),
        (["<thi"], "<thi", ""),
    ],
    ids=["plain", "tag", "nul", "pair", "first-half", "second-half", "unclosed", "half-in-a-tag", "half-a-tag"],
)
def test_what_was_said(pieces: list[str], text: str, reasoning: str) -> None:
    said = ReplyText(1)
    for piece in pieces:
        said.add(piece, [])
    assert said.finish(complete=False) == (text, reasoning)


def test_deltas_come_at_once_and_only_for_what_there_is() -> None:
    said = ReplyText(3)
    deltas: list[Delta] = []
    said.add("<think>a", deltas)
    said.add("</think>b", deltas)
    said.add_reasoning("", deltas)
    said.add_visible("<think>c\x00", deltas)
    said.add_reasoning("d", deltas)
    assert deltas == [ReasoningDelta(3, "a"), MessageDelta(3, "b"), MessageDelta(3, "<think>c\ufffd"), ReasoningDelta(3, "d")]
    assert said.has_reasoning


@pytest.mark.parametrize(
    ("pieces", "complete", "verdict"),
    [
        (["<think>4"], True, ("4", "")),
        (["<think>4"], False, ("", "4")),
        (["<think>4</think>"], True, ("", "4")),
    ],
    ids=["complete", "cut", "closed"],
)
def test_a_tag_that_is_never_closed_held_the_answer(pieces: list[str], complete: bool, verdict: tuple[str, str]) -> None:
    said = ReplyText(1)
    for piece in pieces:
        said.add(piece, [])
    assert said.finish(complete=complete) == verdict
