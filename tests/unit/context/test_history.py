import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.context.history import CUT_MARK, FAILED_NOTE, INTERRUPTED_NOTE, closing_note, repair, unanswered
from app.domain.ids import ProviderId
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.model import ApiMode, ModelRequest
from app.domain.tenants import Provider, Route
from app.domain.tools import INTERRUPTED_OUTPUT
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, Interrupted, InterruptReason, Outcome
from app.providers.modes.chat_completions import ChatCompletions
from app.simulator.chat_rules import chat_problems


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def said(text: str = "", *calls: str, reasoning: str | None = None) -> Message:
    return Message(
        role=Role.ASSISTANT, content=text, tool_calls=tuple(ToolCall(call, "lookup", "{}") for call in calls), reasoning=reasoning
    )


def result(call: str, text: str = "found") -> Message:
    return Message(role=Role.TOOL, content=text, tool_call_id=call, tool_name="lookup")


def unknown(call: str) -> Message:
    return Message(role=Role.TOOL, content=INTERRUPTED_OUTPUT, tool_call_id=call, tool_name="lookup", is_error=True)


PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
TABLE: dict[str, tuple[list[Message], list[Message]]] = {
    "nothing": ([], []),
    "valid history stays": (
        [user("a"), said("", "1"), result("1"), said("b"), user("c")],
        [user("a"), said("", "1"), result("1"), said("b"), user("c")],
    ),
    "users are joined": ([user("first"), user("second")], [user("first\n\nsecond")]),
    "three users are joined": ([user("a"), user("b"), user("c")], [user("a\n\nb\n\nc")]),
    "blank user is left out": ([user(""), user("real")], [user("real")]),
    "blank user between answers": ([user("a"), said("b"), user(" \n"), said("c")], [user("a"), said("b\nc")]),
    "parts and text are joined as parts": (
        [Message(role=Role.USER, content=[PICTURE]), user("what is it?")],
        [Message(role=Role.USER, content=[PICTURE, {"type": "text", "text": "what is it?"}])],
    ),
    "empty parts are left out": ([Message(role=Role.USER, content=[]), user("a")], [user("a")]),
    "orphan result is left out": ([user("a"), said("b"), result("x"), user("c")], [user("a"), said("b"), user("c")]),
    "result before its call is left out": ([result("1"), user("a"), said("", "1")], [user("a"), said("", "1"), unknown("1")]),
    "orphan beside a result": (
        [user("a"), said("", "1"), result("1"), result("x"), said("b")],
        [user("a"), said("", "1"), result("1"), said("b")],
    ),
    "second result is left out": (
        [user("a"), said("", "1"), result("1", "first"), result("1", "second")],
        [user("a"), said("", "1"), result("1", "first")],
    ),
    "result without an id is left out": (
        [user("a"), Message(role=Role.TOOL, content="lost"), said("b")],
        [user("a"), said("b")],
    ),
    "calls of two messages share one": (
        [user("u"), said("", "A"), said("", "B"), result("A", "a"), result("B", "b")],
        [user("u"), said("", "A", "B"), result("A", "a"), result("B", "b")],
    ),
    "text and calls share one": ([user("u"), said("text"), said("", "1"), result("1")], [user("u"), said("text", "1"), result("1")]),
    "answers are joined": ([user("u"), said("First part."), said("Second part.")], [user("u"), said("First part.\nSecond part.")]),
    "reasoning is joined": (
        [user("u"), said("a", reasoning="r1"), said("b", reasoning="r2")],
        [user("u"), said("a\nb", reasoning="r1\n\nr2")],
    ),
    "rounds are kept apart": (
        [user("u"), said("", "1"), result("1"), said("", "2"), result("2"), said("end")],
        [user("u"), said("", "1"), result("1"), said("", "2"), result("2"), said("end")],
    ),
    "rounds are kept apart over a blank message": (
        [user("u"), said("", "1"), result("1"), said(" "), said("", "2"), result("2")],
        [user("u"), said("", "1"), result("1"), said("", "2"), result("2")],
    ),
    "rounds are kept apart over a blank user": (
        [user("u"), said("", "1"), result("1"), user(""), said("end")],
        [user("u"), said("", "1"), result("1"), said("end")],
    ),
    "an orphan does not keep answers apart": ([user("u"), said("a"), result("x"), said("b")], [user("u"), said("a\nb")]),
    "call alone": ([user("u"), said("", "1")], [user("u"), said("", "1"), unknown("1")]),
    "call without a result before a user": ([user("u"), said("", "1"), user("v")], [user("u"), said("", "1"), unknown("1"), user("v")]),
    "some results missing": (
        [user("u"), said("", "1", "2", "3"), result("2"), said("end")],
        [user("u"), said("", "1", "2", "3"), unknown("1"), result("2"), unknown("3"), said("end")],
    ),
    "results are put into call order": (
        [user("u"), said("", "1", "2"), result("2", "two"), result("1", "one")],
        [user("u"), said("", "1", "2"), result("1", "one"), result("2", "two")],
    ),
    "a late result goes back to its call": (
        [user("u"), said("", "1"), user("v"), result("1"), said("end")],
        [user("u"), said("", "1"), result("1"), user("v"), said("end")],
    ),
    "an id that comes back has its own result each time": (
        [user("u"), said("", "0"), result("0", "one"), said("", "0"), result("0", "two")],
        [user("u"), said("", "0"), result("0", "one"), said("", "0"), result("0", "two")],
    ),
    "an unanswered call does not take the result of a later one with its id": (
        [user("u"), said("", "0"), user("v"), said("", "0"), result("0", "two")],
        [user("u"), said("", "0"), unknown("0"), user("v"), said("", "0"), result("0", "two")],
    ),
    "an id twice in one message counts once": (
        [user("u"), said("", "1", "1"), result("1", "first"), result("1", "second")],
        [user("u"), said("", "1"), result("1", "first")],
    ),
    "blank result gets a text": (
        [user("u"), said("", "1"), result("1", "")],
        [user("u"), said("", "1"), result("1", "(empty)")],
    ),
    "blank answer is left out": ([user("u"), said("  ")], [user("u")]),
}


@pytest.mark.parametrize(("messages", "expected"), TABLE.values(), ids=TABLE)
def test_repair(messages: list[Message], expected: list[Message]) -> None:
    before = list(messages)
    assert repair(messages) == tuple(expected)
    assert messages == before


def test_messages_that_need_no_repair_are_passed_on_themselves() -> None:
    history = [user("a"), said("", "1"), result("1"), said("b")]
    assert [id(message) for message in repair(history)] == [id(message) for message in history]


ROUTE = Route(
    provider=Provider(
        id=ProviderId("prov_1"),
        name="primary",
        api_mode=ApiMode.CHAT_COMPLETIONS,
        base_url="http://127.0.0.1:9/v1",
        api_key="sk-test",
        headers={},
    ),
    model="m-test",
)


def wire(messages: Sequence[Message]) -> bytes:
    """The request body for an already repaired history."""
    return ChatCompletions().encode(ROUTE, ModelRequest(system="Be kind.", messages=tuple(messages), tools=(), first_attempt=1))


def problems(messages: Sequence[Message]) -> list[str]:
    return chat_problems(json.loads(wire(messages)), picky=True)


texts = st.sampled_from(["", " ", "a", "b", "a\x00b", "\ud83e", "é"])
ids = st.sampled_from(["1", "2", "3", "call_0", " ", ""])
names = st.sampled_from(["lookup", "bad name", "", "x" * 70])
arguments = st.sampled_from(["{}", '{"q": 1}', "", "[1]", '{"q":'])
parts = st.lists(st.sampled_from([PICTURE, {"type": "text", "text": "t"}, {"type": "text", "text": ""}]), max_size=2)
tool_calls = st.lists(st.builds(ToolCall, id=ids, name=names, arguments=arguments), max_size=3).map(tuple)
users = st.builds(Message, role=st.just(Role.USER), content=st.one_of(texts, parts))
assistants = st.builds(
    Message,
    role=st.just(Role.ASSISTANT),
    content=texts,
    tool_calls=tool_calls,
    reasoning=st.none() | texts,
    kind=st.sampled_from(MessageKind),
)
tool_results = st.builds(Message, role=st.just(Role.TOOL), content=texts, tool_call_id=st.none() | ids)
anything = st.lists(st.one_of(users, assistants, tool_results), max_size=12)
first = st.just(user("begin"))
"""Providers refuse a request without any user message; a turn always has one, its input."""


@given(start=first, rest=anything)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_whatever_the_rows_say_a_strict_provider_takes_the_repaired_history(start: Message, rest: list[Message]) -> None:
    assert problems(repair([start, *rest])) == []


@given(rest=anything, last=first)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_history_may_begin_with_anything(rest: list[Message], last: Message) -> None:
    assert problems(repair([*rest, last])) == []


@given(messages=anything)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_repairing_twice_changes_nothing(messages: list[Message]) -> None:
    once = repair(messages)
    assert repair(once) == once


@given(messages=anything)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_call_has_exactly_one_result_in_call_order_right_behind_it(messages: list[Message]) -> None:
    expected: list[str | None] = []
    for message in repair(messages):
        if message.role is Role.TOOL:
            assert message.tool_call_id == expected.pop(0)
            continue
        assert expected == []
        expected = [call.id for call in message.tool_calls]
    assert expected == []


@given(messages=anything)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_text_of_users_and_answers_is_lost(messages: list[Message]) -> None:
    def spoken(history: Sequence[Message]) -> list[str]:
        kept = [message for message in history if message.role is not Role.TOOL]
        return [word for message in kept if isinstance(message.content, str) for word in message.content.split()]

    plain = [message for message in messages if isinstance(message.content, str)]
    assert spoken(repair(plain)) == spoken(plain)


@st.composite
def turns(draw: st.DrawFn) -> list[list[Message]]:
    """Turns as the service writes them: an input, rounds of calls with all their results, and an answer or a note."""
    written = []
    for _ in range(draw(st.integers(1, 4))):
        turn = [user(draw(st.sampled_from(["a", "b"])))]
        for _ in range(draw(st.integers(0, 3))):
            asked = draw(st.lists(st.sampled_from(["call_0", "call_1", "call_2"]), min_size=1, max_size=3, unique=True))
            turn.append(said(draw(st.sampled_from(["", "look"])), *asked))
            turn.extend(result(call, draw(st.sampled_from(["one", "two", ""]))) for call in asked)
        turn.append(said(draw(st.sampled_from(["answer", INTERRUPTED_NOTE]))))
        written.append(turn)
    return written


def boundaries(turns_written: Sequence[Sequence[Message]]) -> list[list[Message]]:
    """The history at every model call: behind each input and behind the last result of each round."""
    seen: list[Message] = []
    at_calls = []
    for turn in turns_written:
        for place, message in enumerate(turn):
            seen.append(message)
            following = turn[place + 1] if place + 1 < len(turn) else None
            if following is not None and following.role is Role.ASSISTANT:
                at_calls.append(list(seen))
    return at_calls


@given(imported=anything, written=turns())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_repaired_history_of_each_model_call_extends_the_one_before(imported: list[Message], written: list[list[Message]]) -> None:
    before = list(repair(imported))
    shown = [repair([*before, *history]) for history in boundaries(written)]
    for shorter, longer in pairwise(shown):
        assert longer[: len(shorter)] == shorter
        assert wire(longer).startswith(wire(shorter).removesuffix(b"]}"))


@given(rows=anything, written=turns())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_rows_that_need_repair_do_not_break_the_prefix_either(rows: list[Message], written: list[list[Message]]) -> None:
    shown = [repair([*rows, *history]) for history in boundaries(written)]
    for shorter, longer in pairwise(shown):
        assert longer[: len(shorter)] == shorter
        assert wire(longer).startswith(wire(shorter).removesuffix(b"]}"))


def test_unanswered_names_each_open_call_with_its_reserved_place() -> None:
    placed = [(1, user("u")), (2, said("", "a", "b", "c")), (4, result("b")), (6, said("", "d"))]
    assert [(seq, call.id) for seq, call in unanswered(placed)] == [(3, "a"), (5, "c"), (7, "d")]


def test_nothing_is_unanswered_once_every_place_is_filled() -> None:
    placed = [(1, user("u")), (2, said("", "a", "b")), (3, result("a")), (4, result("b")), (5, said("end"))]
    assert unanswered(placed) == []


NOTES: dict[str, tuple[Outcome, bool, Message | None]] = {
    "completed": (Completed(reason=CompletedReason.ANSWER, output="x"), True, None),
    "interrupted": (
        Interrupted(reason=InterruptReason.REQUESTED, output="half"),
        False,
        Message(role=Role.ASSISTANT, content=INTERRUPTED_NOTE, kind=MessageKind.NOTE),
    ),
    "interrupted, text kept": (
        Interrupted(reason=InterruptReason.REQUESTED, output="half"),
        True,
        Message(role=Role.ASSISTANT, content=f"half\n\n{CUT_MARK}"),
    ),
    "interrupted without text": (
        Interrupted(reason=InterruptReason.REQUESTED, output=" \n"),
        True,
        Message(role=Role.ASSISTANT, content=INTERRUPTED_NOTE, kind=MessageKind.NOTE),
    ),
    "failed": (
        Failed(reason=FailedReason.OUTPUT_TRUNCATED, detail="cut", retryable=False, output="half"),
        True,
        Message(role=Role.ASSISTANT, content=FAILED_NOTE, kind=MessageKind.NOTE),
    ),
}


@pytest.mark.parametrize(("outcome", "keep_text", "expected"), NOTES.values(), ids=NOTES)
def test_closing_note(outcome: Outcome, keep_text: bool, expected: Message | None) -> None:
    assert closing_note(outcome, keep_text=keep_text) == expected
