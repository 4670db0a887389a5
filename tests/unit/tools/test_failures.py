"""Exceptions as texts for a model."""

import pytest
from typing_extensions import override

from app.tools.failures import MAX_MESSAGE, describe


class SilentError(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SilentError(), "SilentError (no message)"),
        (ValueError("  \n"), "ValueError (no message)"),
        (ValueError("a\x00b\ud800"), "ValueError: a\ufffdb\ufffd"),
        (FileNotFoundError(2, "No such file", "/etc/app/config.yml"), "FileNotFoundError: [Errno 2] No such file: '[path]'"),
    ],
    ids=["str raises", "blank", "unclean", "path"],
)
def test_a_description_is_never_empty_and_always_clean(error: Exception, text: str) -> None:
    assert describe(error) == text


def test_a_group_is_described_by_its_first_members() -> None:
    group = BaseExceptionGroup("g", [SystemExit(1), *(ValueError(str(number)) for number in range(100))])
    assert describe(group).startswith("BaseExceptionGroup: g (101 sub-exceptions): SystemExit: 1; ValueError: 0; ")
    assert len(describe(group)) < 300


def test_a_long_message_is_cut_without_showing_half_a_key() -> None:
    assert len(describe(ValueError("x " * 1_000_000))) < MAX_MESSAGE + 50
    key = "sk-test-AAAA1111BBBB2222CCCC3333"
    padding = "https://a.example/?" + "y" * (8_000 - 19 - 1 - 12)
    assert "sk-" not in describe(ValueError(f"{padding} {key}"))
