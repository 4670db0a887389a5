"""What an OpenAI client is told of a turn's frames: streamed, where nothing can be taken back, and as a whole."""

import pytest

from app.api.facades.narration import Diverged, Ended, MessageDone, Narrator, Piece, Reasoning, Text
from app.domain.events import (
    MAX_EVENT_TEXT,
    AttemptReset,
    Event,
    FrameEncoder,
    IterationStarted,
    MessageCompleted,
    ProviderFallback,
    TurnCompleted,
    TurnInterrupted,
    TurnStarted,
    message_view,
)
from app.domain.ids import MessageId, TurnId
from app.domain.messages import Message, Role, StoredMessage, ToolCall
from app.domain.model import FailureReason, MessageDelta, ReasoningDelta, RouteRef, Usage

ROUTE = RouteRef(provider="p", model="m-one")
OTHER = RouteRef(provider="q", model="m-two")


def said(text: str, *calls: ToolCall, reasoning: str | None = None) -> MessageCompleted:
    message = Message(role=Role.ASSISTANT, content=text, tool_calls=calls, reasoning=reasoning)
    stored = StoredMessage(
        id=MessageId("msg_1"), session_id=None, seq=1, turn_id=TurnId("turn_1"), message=message, archived=False, created_at_ms=0
    )
    return MessageCompleted(attempt=1, iteration=1, route=OTHER, message=message_view(stored, limit=MAX_EVENT_TEXT))


def completed(output: str = "") -> TurnCompleted:
    return TurnCompleted(
        session_id=None, reason="answer", output=output, iterations=1, attempts=1, usage=Usage(), cost_usd=None, route=ROUTE
    )


def interrupted(output: str) -> TurnInterrupted:
    return TurnInterrupted(
        session_id=None, reason="shutdown", output=output, iterations=1, attempts=1, usage=Usage(), cost_usd=None, route=None
    )


def told(*events: Event, patient: bool = False) -> list[Piece]:
    """The pieces of one frame after another."""
    encoder, narrator = FrameEncoder(TurnId("turn_1")), Narrator(patient=patient)
    pieces: list[Piece] = []
    for seq, event in enumerate(events, 1):
        pieces += narrator.feed(encoder.frame(seq, event))
    return pieces


def deltas(text: str, attempt: int = 1) -> list[MessageDelta]:
    return [MessageDelta(attempt, character) for character in text]


def texts(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def test_an_answer_is_its_pieces_the_whole_message_and_the_end() -> None:
    pieces = told(TurnStarted(session_id=None, route=ROUTE), *deltas("Hi"), said("Hi"), completed("Hi"))
    assert pieces[:3] == [Text("H"), Text("i"), MessageDone("Hi", ())]
    assert isinstance(pieces[3], Ended)
    assert pieces[3].state == "completed"


def test_frames_that_come_together_are_told_together() -> None:
    encoder, narrator = FrameEncoder(TurnId("turn_1")), Narrator(patient=False)
    events: list[Event] = [*deltas("Hi"), said("Hi")]
    frames = b"".join(encoder.frame(seq, event) for seq, event in enumerate(events, 1))
    assert narrator.feed(frames) == [Text("H"), Text("i"), MessageDone("Hi", ())]


def test_text_that_looks_like_a_frame_is_text() -> None:
    text = 'event: attempt.reset\ndata: {"attempt":1}\n\nid: 9\n'
    assert texts(told(MessageDelta(1, text), said(text))) == text


def test_an_attempt_that_repeats_what_was_shown_goes_on_behind_it() -> None:
    pieces = told(
        *deltas("Hello"), AttemptReset(attempt=1), MessageDelta(2, "He"), MessageDelta(2, "llo wor"), *deltas("ld", 2), said("Hello world")
    )
    assert texts(pieces) == "Hello world"
    assert pieces[5:7] == [Text(" wor"), Text("l")]
    assert pieces[-1] == MessageDone("Hello world", ())


@pytest.mark.parametrize(
    "again",
    [
        pytest.param([MessageDelta(2, "Hey")], id="another piece"),
        pytest.param([MessageDelta(2, "Hel"), MessageDelta(2, "p me")], id="another way on"),
        pytest.param([MessageDelta(2, "Hell"), said("Hell")], id="a shorter text"),
        pytest.param([said("")], id="no text"),
    ],
)
def test_an_attempt_that_says_something_else_ends_the_stream(again: list[Event]) -> None:
    assert told(*deltas("Hello"), AttemptReset(attempt=1), *again)[5] == Diverged()


@pytest.mark.parametrize("patient", [False, True])
def test_an_attempt_that_fails_within_an_answer_in_parts_voids_its_own_part_alone(*, patient: bool) -> None:
    events: tuple[Event, ...] = (*deltas("One, "), *deltas("tw", 2), AttemptReset(attempt=2), *deltas("two.", 3), said("One, two."))
    pieces = told(*events, patient=patient)
    assert texts(pieces) == "One, two."
    assert not any(isinstance(piece, Diverged) for piece in pieces)


def test_a_void_attempt_that_showed_no_text_takes_none_back() -> None:
    events: tuple[Event, ...] = (
        *deltas("One, "),
        AttemptReset(attempt=2),
        *deltas("two.", 3),
        AttemptReset(attempt=4),
        *deltas("Three.", 5),
    )
    assert texts(told(*events, said("One, two.Three."))) == "One, two.Three."


def test_what_was_said_in_parts_stands_where_the_turn_is_interrupted() -> None:
    events: tuple[Event, ...] = (*deltas("One, "), *deltas("tw", 2), AttemptReset(attempt=2), interrupted("One, "))
    pieces = told(*events, patient=True)
    assert texts(pieces) == "One, "


def test_attempts_may_fail_again_and_again() -> None:
    reset = AttemptReset(attempt=1)
    pieces = told(*deltas("abc"), reset, *deltas("ab", 2), reset, *deltas("abcd", 3), reset, *deltas("abcde", 4), said("abcde"))
    assert texts(pieces) == "abcde"
    assert Diverged() not in pieces


def test_a_reset_before_any_text_is_nothing() -> None:
    assert told(AttemptReset(attempt=1), *deltas("x", 2), said("x")) == [Text("x"), MessageDone("x", ())]


def test_reasoning_of_later_attempts_is_left_out_of_a_stream() -> None:
    pieces = told(ReasoningDelta(1, "hm"), AttemptReset(attempt=1), ReasoningDelta(2, "well"), *deltas("x", 2), said("x"))
    assert pieces == [Reasoning("hm"), Text("x"), MessageDone("x", ())]


def test_a_message_that_nobody_streamed_is_told_all_the_same() -> None:
    assert told(said("I stopped here.")) == [Text("I stopped here."), MessageDone("I stopped here.", ())]


def test_a_long_answer_is_whole_although_its_event_is_not() -> None:
    text = "x" * (MAX_EVENT_TEXT + 10)
    for patient in (False, True):
        pieces = told(MessageDelta(1, text[:100]), MessageDelta(1, text[100:]), said(text), patient=patient)
        assert texts(pieces) == text
        assert pieces[-1] == MessageDone(text, ())


def test_a_long_answer_whose_pieces_are_gone_is_never_given_in_part() -> None:
    for patient in (False, True):
        assert told(said("x" * (MAX_EVENT_TEXT + 10)), patient=patient)[0] == Diverged(pruned=True)


def test_calls_come_with_their_message() -> None:
    (done,) = told(said("", ToolCall("c1", "f", '{"a":1}')))
    assert isinstance(done, MessageDone)
    assert [(call.id, call.function) for call in done.calls] == [("c1", {"name": "f", "arguments": '{"a":1}'})]


def test_each_message_begins_anew() -> None:
    pieces = told(*deltas("ab"), said("ab"), IterationStarted(iteration=2, max_iterations=9), *deltas("cd", 2), said("cd"))
    assert pieces == [Text("a"), Text("b"), MessageDone("ab", ()), Text("c"), Text("d"), MessageDone("cd", ())]


def test_as_a_whole_only_what_counts_in_the_end_is_told() -> None:
    events: list[Event] = [
        *deltas("wrong"),
        AttemptReset(attempt=1),
        ReasoningDelta(2, "hm"),
        *deltas("right", 2),
        said("right"),
        completed(),
    ]
    pieces = told(*events, patient=True)
    assert pieces[:3] == [Reasoning("hm"), Text("right"), MessageDone("right", ())]
    assert isinstance(pieces[3], Ended)


def test_the_text_of_a_turn_that_was_cut_comes_before_its_end() -> None:
    pieces = told(*deltas("Hel"), interrupted("Hel"), patient=True)
    assert pieces[0] == Text("Hel")
    assert isinstance(pieces[1], Ended)
    assert pieces[1].text == "Hel"


def test_the_model_is_the_one_that_is_asked() -> None:
    encoder, narrator = FrameEncoder(TurnId("turn_1")), Narrator(patient=False)
    narrator.feed(encoder.frame(1, TurnStarted(session_id=None, route=ROUTE)))
    assert narrator.model == "m-one"
    narrator.feed(encoder.frame(2, ProviderFallback(from_route=ROUTE, to_route=OTHER, reason=FailureReason.STALE)))
    assert narrator.model == "m-two"


def test_the_reasoning_of_an_attempt_that_showed_no_text_is_void_in_a_whole_answer() -> None:
    events: list[Event] = [ReasoningDelta(1, "hm"), AttemptReset(attempt=1), ReasoningDelta(2, "well"), *deltas("x", 2), said("x")]
    assert told(*events, patient=True) == [Reasoning("well"), Text("x"), MessageDone("x", ())]
