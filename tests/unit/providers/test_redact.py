import pytest

from app.providers.redact import MAX_LENGTH, redact

KEY = "sk-test-ABCD1234EFGH5678IJKL"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"Incorrect key {KEY}.", "ABCD1234"),
        (f"Incorrect key {KEY[:14]}.", KEY[:14]),
        ("Incorrect key sk-test-*****IJKL99.", "IJKL99"),
        ("Authorization: Bearer abc12345 was refused", "abc12345"),
        ("see https://inner.example/v1?key=1 now", "inner"),
        ("postgresql://u:pw@db/x is down", "pw"),
        ("cannot reach 10.1.2.3:8080", "10.1.2.3"),
        ("cannot reach models.corp.internal", "corp"),
        ("cannot reach host.name:8080", "host.name"),
        ("at /srv/models/run.py line 3", "/srv"),
        ("ask ops@corp.example please", "ops@"),
        ("token eyJhbGciOiJIUzI1NiJ9.e30.abc12345", "hbGci"),
    ],
)
def test_what_is_hidden(text: str, hidden: str) -> None:
    shown = redact(text, (KEY,))
    assert hidden not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    "text",
    [
        "temperature must be <= 2",
        "The model `gpt-4.1-mini` does not exist",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "messages[3].content: field required",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text, (KEY, "a", "")) == text


def test_markup_is_not_quoted_and_length_is_bounded() -> None:
    assert redact(" <html>secret</html>", ()) == ""
    assert redact("a\n b\x00\t c", ()) == "a b\ufffd c"
    assert len(redact("words " * 500, ())) == MAX_LENGTH
