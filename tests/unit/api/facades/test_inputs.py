"""Conversations in OpenAI's two forms, as histories of ours."""

from typing import Any

import pytest

from app.api.facades.chat_input import read_messages
from app.api.facades.response_input import read_input
from app.domain.errors import InvalidRequestError
from app.domain.messages import CALLERS, Message, Replay, Role, ToolCall

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "input_image", "image_url": "https://x.test/i.png"}


def test_system_messages_anywhere_are_one_prompt() -> None:
    history = read_messages([{"role": "system", "content": "a"}, USER, {"role": "developer", "content": [{"type": "text", "text": "b"}]}])
    assert history.system_prompt == "a\n\nb"
    assert history.messages == (Message(role=Role.USER, content="hi"),)


def test_a_whole_conversation_of_chat_completions() -> None:
    image = [{"type": "image_url", "image_url": {"url": "https://x.test/i.png"}}]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    history = read_messages(
        [
            {"role": "user", "content": image, "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None, "function_call": None},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]},
            {"role": "assistant", "content": "", "tool_calls": None},
            {"role": "assistant", "content": None, "refusal": "I will not."},
        ]
    )
    assert history.system_prompt is None
    assert history.messages == (
        Message(role=Role.USER, content=image),
        Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall("c1", "f", '{"a":1}'),)),
        Message(role=Role.TOOL, content="done", tool_call_id="c1"),
        Message(role=Role.ASSISTANT, content="I will not."),
    )


def test_reasoning_that_a_caller_sends_with_its_calls_is_its_own_to_send() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling, saying = read_messages(
        [
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        ]
    ).messages
    assert calling.replay == Replay(origin=CALLERS, items=({"reasoning_content": "hm"},))
    assert (saying.reasoning, saying.replay) == ("hm", None)


@pytest.mark.parametrize(
    ("item", "pointer"),
    [
        ({"role": "function", "name": "f", "content": "x"}, "/messages/1"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}, "/messages/1"),
        ({"role": "robot", "content": "x"}, "/messages/1/role"),
        ({"role": "user", "content": ""}, "/messages/1/content"),
        ({"role": "user", "content": [{"type": "video"}]}, "/messages/1/content/0/type"),
        ({"role": "tool", "content": "x"}, "/messages/1/tool_call_id"),
    ],
    ids=str,
)
def test_a_bad_message_is_named(item: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_messages([USER, item])
    assert raised.value.pointer == pointer


def test_a_text_is_what_the_user_says() -> None:
    history = read_input("hi", "be kind")
    assert (history.system_prompt, history.messages) == ("be kind", (Message(role=Role.USER, content="hi"),))


def test_a_whole_conversation_of_responses() -> None:
    history = read_input(
        [
            {"role": "developer", "content": "short"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "https://x.test/u.png"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "content": [{"type": "output_text", "text": "wait", "annotations": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        ],
        "be kind",
    )
    assert history.system_prompt == "be kind\n\nshort"
    assert history.messages == (
        Message(
            role=Role.USER, content=[{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x.test/u.png"}}]
        ),
        Message(role=Role.ASSISTANT, content="wait", tool_calls=(ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "{}"))),
        Message(role=Role.TOOL, content="one", tool_call_id="c1"),
        Message(role=Role.TOOL, content="two", tool_call_id="c2"),
    )


@pytest.mark.parametrize(
    ("item", "pointer"),
    [
        ({"type": "item_reference", "id": "x"}, "/input/1/type"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "/input/1/content/0"),
        ({"role": "user", "content": ["x"]}, "/input/1/content/0"),
        ({"role": "user", "content": ""}, "/input/1/content"),
        ({"type": "function_call_output", "output": "x"}, "/input/1/call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": [IMAGE]}, "/input/1/output/0"),
        ({"type": "function_call_output", "call_id": "c", "output": [{}]}, "/input/1/output/0"),
        ({"type": "function_call_output", "call_id": "c"}, "/input/1/output"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "/input/1/call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "/input/1/name"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}, "/input/1/arguments"),
    ],
    ids=str,
)
def test_a_bad_item_is_named(item: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_input([{"type": "message", **USER}, item], "be kind")
    assert raised.value.pointer == pointer


def test_a_bad_call_behind_words_and_other_calls_is_named() -> None:
    said = {"type": "message", "role": "assistant", "content": "wait"}
    calls = [{"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": text} for number, text in enumerate(("{}", "["))]
    with pytest.raises(InvalidRequestError) as raised:
        read_input([USER, said, *calls], None)
    assert raised.value.pointer == "/input/3/arguments"


def test_a_bad_text_has_no_place_within_it() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_input(" ", "be kind")
    assert raised.value.pointer == "/input"
