import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import Message, Role, ToolCall
from app.domain.search_terms import (
    MAX_CHARACTERS,
    MAX_QUERY_TERMS,
    MAX_TERM,
    QueryTerm,
    matches,
    message_text,
    query_terms,
    telling_terms,
    terms,
)

CUTS = {
    "English": ("Don't PANIC: e-mail ada@example.com!", {"don", "t", "panic", "e", "mail", "ada", "example", "com"}),
    "identifiers": ("user_id=42 fooBar v1.2", {"user", "id", "42", "foobar", "v1", "2"}),
    "German": ("Straße Ärger", {"strasse", "ärger"}),
    "decomposed": ("A\u0308rger", {"ärger"}),
    "Chinese": ("数据库v2很好", {"数据", "据库", "库", "v2", "很好", "好"}),
    "halfwidth": ("ﾃｽﾄ", {"テス", "スト", "ト"}),
    "nothing": (" _-!🦀 ", set()),
}


@pytest.mark.parametrize(("text", "expected"), CUTS.values(), ids=CUTS)
def test_text_is_cut_into_terms(text: str, expected: set[str]) -> None:
    assert terms(text) == expected


def test_long_words_are_found_by_their_beginning() -> None:
    for letter in ("x", "ж"):
        assert terms(f"{letter * 500} {letter * 70}") == {letter * MAX_TERM}
        (term,) = query_terms(letter * 500)
        assert term.text == letter * MAX_TERM


def test_long_text_is_found_by_its_beginning_and_its_end() -> None:
    found = terms("first " + "middle " * MAX_CHARACTERS + "last")
    assert found == {"first", "middle", "last"} | (found - {"first", "middle", "last"})
    assert "needle" not in terms("x " * MAX_CHARACTERS + "needle " + "y " * MAX_CHARACTERS)


def test_long_words_of_a_query_stand_for_their_beginnings_and_short_ones_and_numbers_for_themselves() -> None:
    assert query_terms("an invoice 2024 Invoice 库 数据库") == (
        QueryTerm("an", prefix=False),
        QueryTerm("invoice", prefix=True),
        QueryTerm("2024", prefix=False),
        QueryTerm("库", prefix=True),
        QueryTerm("数据", prefix=False),
        QueryTerm("据库", prefix=False),
    )


def test_a_query_has_few_terms() -> None:
    assert len(query_terms(" ".join(f"w{number}" for number in range(100)))) == MAX_QUERY_TERMS


def test_short_words_say_little_unless_there_are_no_others() -> None:
    assert [term.text for term in telling_terms(query_terms("what is the 42 budget of 东京"))] == ["what", "42", "budget", "东京"]
    assert [term.text for term in telling_terms(query_terms("is it on"))] == ["is", "it", "on"]


def test_calls_and_results_are_part_of_a_messages_text_and_thoughts_are_not() -> None:
    call = ToolCall("c", "get_weather", '{"city":"Ulm"}')
    message = Message(role=Role.ASSISTANT, content="I look.", tool_calls=(call,), reasoning="hidden")
    assert message_text(message) == 'I look.\nget_weather {"city":"Ulm"}'
    result = Message(role=Role.TOOL, content=[{"type": "text", "text": "rain"}], tool_call_id="c", tool_name="get_weather")
    assert message_text(result) == "get_weather\nrain"


@given(st.text(max_size=60))
def test_every_text_is_found_by_itself_and_terms_are_safe_to_join(text: str) -> None:
    found = terms(text)
    assert all(term.isalnum() and len(term) <= MAX_TERM for term in found)
    assert all(matches(found, term) for term in query_terms(text))


@given(st.text(alphabet="数据库很好ab ", max_size=30), st.data())
def test_every_part_of_unspaced_text_is_found(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    part = "".join(each for each in text[start : start + 4] if each not in "ab ")
    if part in text:
        assert all(matches(terms(text), term) for term in query_terms(part))


def test_the_largest_text_is_cut_fast() -> None:
    start = time.perf_counter()
    terms("数据库很好 word " * 100_000)
    assert time.perf_counter() - start < 0.2
