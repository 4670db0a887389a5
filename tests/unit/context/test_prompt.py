import pytest

from app.context.prompt import build_prompt, memory_snapshot
from app.domain.memory import Memory


def test_an_empty_memory_has_no_snapshot() -> None:
    assert memory_snapshot(Memory(revision=7)) is None


def test_a_snapshot_shows_both_texts_under_their_headings() -> None:
    snapshot = memory_snapshot(Memory(notes="a\n§\nb", user="likes tea"))
    assert snapshot is not None
    assert snapshot.startswith("# Memory\n\n")
    assert snapshot.endswith("\n\n## Notes\n\na\n§\nb\n\n## About the user\n\nlikes tea")


def test_an_empty_text_has_no_heading() -> None:
    snapshot = memory_snapshot(Memory(user="likes tea"))
    assert snapshot is not None
    assert "## Notes" not in snapshot


def test_the_same_texts_give_the_same_bytes_whatever_the_revision() -> None:
    assert memory_snapshot(Memory(notes="a", revision=1)) == memory_snapshot(Memory(notes="a", revision=9))


@pytest.mark.parametrize(
    ("base", "snapshot", "prompt"),
    [("Be kind.", "# M", "Be kind.\n\n# M"), ("Be kind.", None, "Be kind."), ("", "# M", "# M"), ("", None, "")],
    ids=["both", "no memory", "no base", "nothing"],
)
def test_a_prompt_is_the_base_with_the_snapshot_behind_it(base: str, snapshot: str | None, prompt: str) -> None:
    assert build_prompt(base, snapshot) == prompt
