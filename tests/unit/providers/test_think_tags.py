import pytest

from app.providers.think_tags import ThinkTags

TEXTS = [
    pytest.param("<think>why</think>because", "why", "because", id="at-the-start"),
    pytest.param("<thinking>why</think></thinking>because", "why</think>", "because", id="thinking"),
    pytest.param("<thought>why</thought>because", "why", "because", id="thought"),
    pytest.param("<reasoning>why</reasoning>because", "why", "because", id="reasoning"),
    pytest.param("<REASONING_SCRATCHPAD>why</REASONING_SCRATCHPAD>because", "why", "because", id="scratchpad"),
    pytest.param("<thinker>why", "", "<thinker>why", id="another-tag"),
    pytest.param("\n <think>why</think>\n\nbecause", "why", "because", id="blanks-around"),
    pytest.param("so <think>why</think>", "", "so <think>why</think>", id="later-tags-are-text"),
    pytest.param("<think>a < b </thin</think>c <think> d", "a < b </thin", "c <think> d", id="half-a-close-tag-inside"),
    pytest.param("<thinly", "", "<thinly", id="not-a-tag"),
    pytest.param("<thi", "", "<thi", id="ends-within-the-open-tag"),
    pytest.param("  ", "", "  ", id="only-blanks"),
    pytest.param("a < b", "", "a < b", id="plain"),
    pytest.param("<think>never closed </th", "never closed </th", "", id="unclosed"),
]


def split(pieces: list[str]) -> tuple[str, str]:
    tags = ThinkTags()
    parts = [tags.split(piece) for piece in pieces]
    parts.append(tags.finish())
    return "".join(reasoning for reasoning, _ in parts), "".join(visible for _, visible in parts)


@pytest.mark.parametrize(("text", "reasoning", "visible"), TEXTS)
def test_in_one_piece(text: str, reasoning: str, visible: str) -> None:
    assert split([text]) == (reasoning, visible)


@pytest.mark.parametrize(("text", "reasoning", "visible"), TEXTS)
def test_in_pieces_of_one_character(text: str, reasoning: str, visible: str) -> None:
    assert split(list(text)) == (reasoning, visible)


def test_plain_text_is_not_held_back() -> None:
    assert ThinkTags().split("a < b") == ("", "a < b")
