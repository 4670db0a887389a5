import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.transcript import ARGUMENTS_BYTES, MESSAGE_BYTES, MOST_PIECES, digest, entry, pieces, wire_size
from app.domain.messages import Message, Role
from tests.unit.context.rows import PICTURE, anything, note, result, rounds, said, stored, user

ENTRIES: dict[str, tuple[Message, str]] = {
    "user": (user(" hello \n"), "USER: hello"),
    "note": (note("hint"), "NOTE OF THE SYSTEM: hint"),
    "answer": (said("fine"), "ASSISTANT: fine"),
    "calls": (said("", "1", arguments='{"q":1}'), 'CALL lookup {"q":1}'),
    "answer with calls": (said("look", "1", "2"), "ASSISTANT: look\nCALL lookup {}\nCALL lookup {}"),
    "result": (result("1", "found"), "RESULT of lookup: found"),
    "failed result": (Message(role=Role.TOOL, content="no", tool_call_id="1", is_error=True), "RESULT of a tool (failed): no"),
    "nothing": (said(""), "ASSISTANT: "),
    "parts": (Message(role=Role.USER, content=[PICTURE, {"type": "text", "text": "what?"}]), "USER: what?\n[1 attachment(s)]"),
    "parts of text": (Message(role=Role.USER, content=[{"type": "text", "text": "what?"}]), "USER: what?"),
}


@pytest.mark.parametrize(("message", "text"), ENTRIES.values(), ids=ENTRIES)
def test_a_message_as_text(message: Message, text: str) -> None:
    assert entry(message) == text


def test_long_texts_and_arguments_are_cut() -> None:
    text = entry(said("a" * 50_000, "1", arguments='{"q":"' + "b" * 50_000 + '"}'))
    said_line, _, call_line = text.partition("\nCALL lookup ")
    assert len(said_line.encode()) == MESSAGE_BYTES + len("ASSISTANT: ")
    assert len(call_line.encode()) == ARGUMENTS_BYTES


def test_pieces_hold_everything_in_order_and_fit() -> None:
    rows = stored([user("u"), *rounds(30, size=500)])
    made = pieces(rows, 4_000)
    assert 1 < len(made) <= MOST_PIECES
    assert all(wire_size(piece) <= 4_000 for piece in made)
    joined = "\n\n".join(made)
    assert joined.split("\n\n")[0] == "USER: u"
    assert [joined.index(f"r{number} ") for number in range(30)] == sorted(joined.index(f"r{number} ") for number in range(30))


def test_messages_are_shortened_before_there_are_many_pieces() -> None:
    rows = stored(rounds(40, size=5_000))
    assert len(pieces(rows, 5_000)) <= 2 * MOST_PIECES
    assert len(pieces(rows, 15_000)) <= MOST_PIECES
    assert all(f"r{number} " in "".join(pieces(rows, 15_000)) for number in range(40))


def test_a_text_before_them_is_split_at_line_ends() -> None:
    before = "\n".join(f"- fact {number} " + "x" * 80 for number in range(100))
    made = pieces(stored([user("u")]), 2_000, before=before.replace("- fact 50 ", "\n \n- fact 50 "))
    lines = "\n\n".join(made).replace("\n\n", "\n").split("\n")
    assert lines == [*before.split("\n"), "USER: u"]


def test_there_are_no_pieces_without_room_or_text() -> None:
    assert pieces(stored([user("u")]), 999) == ()
    assert pieces(stored([user("u")]), -5) == ()
    assert pieces([], 5_000) == ()
    assert digest(stored([user("u")]), 999) == ""
    assert digest([], 5_000) == ""


def test_a_digest_shortens_then_leaves_out_the_oldest() -> None:
    rows = stored(rounds(100, size=5_000))
    shortened = digest(rows, 80_000)
    assert all(f"r{number} " in shortened for number in range(100))
    least = digest(rows, 5_000)
    assert wire_size(least) <= 5_000
    assert "r99 " in least
    assert "r0 " not in least
    assert digest(stored([user("u"), said("a")]), 5_000) == "USER: u\n\nASSISTANT: a"


def test_what_is_too_long_for_a_piece_is_cut_no_shorter_than_needed() -> None:
    for unit in ("x", '"'):
        (piece,) = pieces(stored([user(unit * 100_000)]), 4_000)
        assert 3_900 < wire_size(piece) <= 4_000


@given(text=st.text(alphabet=st.sampled_from('ab"\\\n\x00\x01é🦊\ud83e'), max_size=60))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_size_on_the_wire(text: str) -> None:
    cleaned = text.replace("\x00", "\ufffd").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert wire_size(text) == len(msgspec.json.encode(cleaned)) - 2


@given(
    messages=anything,
    unit=st.sampled_from(["\x01", '"', "\n", "é", "x", "🦊 "]),
    count=st.integers(0, 9_000),
    budget=st.integers(1_000, 4_000),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_whatever_the_rows_hold_the_pieces_fit(messages: list[Message], unit: str, count: int, budget: int) -> None:
    rows = stored([*messages, result("1", unit * count)])
    made = pieces(rows, budget, before=unit * (count // 3))
    assert made
    assert all(0 < wire_size(piece) <= budget for piece in made)
    assert 0 < wire_size(digest(rows, budget)) <= budget
