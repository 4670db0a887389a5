import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.redact import MAX_LENGTH, is_markup, redact

KEY = "sk-test-ABCD1234EFGH5678IJKL"
WORD = "hunter/two+three"
PAIR = base64.b64encode(f"gateway:{WORD}".encode()).decode()


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
        ("blocked, Ray ID: 00aa11bb", "00aa"),
        ("Limit reached for m in organization org-AbcDefGhi on tokens per min", "AbcDef"),
        ("Limit reached in organization `Acme Works` on `on_demand`", "Acme"),
        ("Project proj_abcdefgh is archived", "abcdefgh"),
        ("workspace-9f8e7d is over its limit", "9f8e7d"),
    ],
)
def test_what_is_hidden(text: str, hidden: str) -> None:
    shown = redact(text, (KEY,))
    assert hidden not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    "echo",
    [
        quote(WORD, safe=""),
        quote(WORD, safe="").lower(),
        f"password={WORD[:13]}",
        f"x{WORD[3:]}x",
        base64.b64encode(WORD.encode()).decode(),
        base64.urlsafe_b64encode(WORD.encode()).decode(),
        PAIR,
        PAIR[:-6],
        PAIR[9:],
        f"auth={PAIR}",
        quote(PAIR, safe=""),
    ],
    ids=["url", "url-lower", "first-half", "last-part", "base64", "base64url", "basic", "cut", "behind", "named", "basic-in-url"],
)
def test_a_secret_in_other_clothes(echo: str) -> None:
    shown = redact(f"I was sent {echo} today", (WORD,))
    assert shown.removeprefix("I was sent ").removeprefix("auth=") == "[redacted] today"


@pytest.mark.parametrize(
    "text",
    [
        "temperature must be <= 2",
        "The model `gpt-4.1-mini` does not exist",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "messages[3].content: field required",
        "<400> Range of input length should be [1, 8]",
        "unsupported_parameter_combination in request",
        "a=b=c&d%20e",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text, (KEY, "a", "")) == text


@pytest.mark.parametrize("text", [" <html>secret</html>", "<!DOCTYPE html>", "<!-- x -->", "<?xml version='1.0'?>", "<h1>", "</div>"])
def test_markup_is_not_quoted(text: str) -> None:
    assert is_markup(text)
    assert redact(text, ()) == ""


def test_markup_behind_words_is_cut_off_and_length_is_bounded() -> None:
    assert redact("upstream said: <html><body>secret</body></html>", ()) == "upstream said:"
    assert redact("a\n b\x00\t c", ()) == "a b\ufffd c"
    assert len(redact("words " * 500, ())) == MAX_LENGTH


@given(st.text(max_size=300), st.lists(st.text(max_size=30), max_size=3))
def test_any_text_with_any_secrets(text: str, secrets: list[str]) -> None:
    shown = redact(text, tuple(secrets))
    assert len(shown) <= MAX_LENGTH
