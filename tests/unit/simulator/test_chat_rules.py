"""The table of what strict mode refuses."""

from typing import Any

import pytest

from app.simulator.chat_rules import chat_problems
from tests.unit.simulator.client import GET_TIME

USER = {"role": "user", "content": "hi"}


def call(call_id: object = "c1", name: object = "lookup", arguments: object = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: object = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def tool(name: object = "lookup", parameters: object = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {} if parameters is None else parameters}}


def problems(messages: list[Any], *, picky: bool = False, **fields: Any) -> list[str]:
    return chat_problems({"model": "m", "messages": messages, **fields}, picky=picky)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([USER], id="one user message"),
        pytest.param([{"role": "system", "content": "be brief"}, USER, {"role": "assistant", "content": "ok"}, USER], id="plain talk"),
        pytest.param([USER, calling(call("a"), call("b")), result("b"), result("a")], id="results in any order"),
        pytest.param([USER, calling(call()), result(), calling(call()), result()], id="an id used again in a later round"),
        pytest.param([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], id="content parts"),
    ],
)
def test_valid_history_has_no_problems(messages: list[Any]) -> None:
    assert problems(messages, picky=True, tools=[GET_TIME]) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([], ["messages: no user message"], id="empty"),
        pytest.param([USER, calling(call())], ["messages[1]: tool calls ['c1'] are unanswered at the end"], id="unanswered at the end"),
        pytest.param([USER, calling(call()), USER], ["messages[2]: comes before the results of tool calls ['c1']"], id="unanswered"),
        pytest.param(
            [USER, calling(call("a"), call("b")), result("a"), USER, result("b")],
            [
                "messages[3]: comes before the results of tool calls ['b']",
                "messages[4]: tool_call_id 'b' matches no call of the assistant message directly before",
            ],
            id="result not directly after its call",
        ),
        pytest.param(
            [USER, result("x")],
            ["messages[1]: tool_call_id 'x' matches no call of the assistant message directly before"],
            id="orphan result",
        ),
        pytest.param([USER, calling(call()), result(), result()], ["messages[3]: second result for tool call 'c1'"], id="repeated result"),
        pytest.param([USER, calling(call(""))], ["messages[1]: tool_calls[0] has no id"], id="empty id"),
        pytest.param(
            [USER, calling(call("a"), call("a")), result("a"), result("a")], ["messages[1]: tool_calls[1] repeats the id 'a'"], id="same id"
        ),
        pytest.param(
            [USER, calling(call(name="a.b")), result()], ["messages[1]: tool_calls[0] has the illegal name 'a.b'"], id="illegal name"
        ),
        pytest.param(
            [USER, calling(call(name="n" * 65)), result()],
            [f"messages[1]: tool_calls[0] has the illegal name {'n' * 65!r}"],
            id="name too long",
        ),
        pytest.param(
            [USER, calling(call(arguments={"a": 1})), result()], ["messages[1]: tool_calls[0]: arguments is not a string"], id="object"
        ),
        pytest.param(
            [USER, calling(call(arguments="")), result()],
            ["messages[1]: tool_calls[0]: arguments is not a JSON object: ''"],
            id="empty arguments",
        ),
        pytest.param(
            [USER, calling(call(arguments="[1]")), result()],
            ["messages[1]: tool_calls[0]: arguments is not a JSON object: '[1]'"],
            id="arguments are a list",
        ),
        pytest.param([USER, {"role": "bot", "content": "x"}], ["messages[1]: unknown role 'bot'"], id="unknown role"),
        pytest.param([USER, {"role": ["user"], "content": "x"}], ["messages[1]: unknown role ['user']"], id="role is a list"),
        pytest.param([USER, "text"], ["messages[1]: is not an object"], id="not an object"),
        pytest.param([{"role": "user", "content": None}], ["messages[0]: content is missing"], id="user without content"),
        pytest.param([USER, {"role": "assistant"}], ["messages[1]: content is missing"], id="assistant without content"),
        pytest.param([{"role": "user", "content": 7}], ["messages[0]: content is neither text nor a list of parts"], id="number"),
        pytest.param([{"role": "user", "content": []}], ["messages[0]: content is an empty list"], id="no parts"),
        pytest.param([{"role": "user", "content": [{"type": "text"}]}], ["messages[0]: content[0] is no valid part"], id="bad part"),
        pytest.param(
            [USER, calling()], ["messages[1]: content is missing", "messages[1]: tool_calls is not a list with calls"], id="no calls"
        ),
        pytest.param(
            [{"role": "user", "content": "x", "tool_calls": []}],
            ["messages[0]: tool_calls in a message of role user"],
            id="user with calls",
        ),
        pytest.param([USER, calling("x")], ["messages[1]: tool_calls[0] is not an object"], id="call is text"),
    ],
)
def test_broken_history_is_refused_with_the_index(messages: list[Any], expected: list[str]) -> None:
    assert problems(messages) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"tools": [tool("a b")]}, ["tools[0]: illegal name 'a b'"], id="tool name"),
        pytest.param({"tools": [tool(parameters=[])]}, ["tools[0]: parameters is not an object"], id="parameters"),
        pytest.param({"tools": [{"type": "function"}]}, ["tools[0]: not of type function"], id="no function"),
        pytest.param({"tools": []}, ["tools: not a list with tools"], id="no tools"),
        pytest.param({"tools": [tool("b"), tool("a")]}, ["tools: not sorted by name"], id="unsorted"),
        pytest.param({"tools": [tool("a"), tool("a")]}, ["tools: a name is defined twice"], id="twice"),
        pytest.param({"tool_choice": "auto"}, ["tool_choice: only allowed with tools"], id="choice without tools"),
        pytest.param(
            {"stream_options": {"include_usage": True}}, ["stream_options: only allowed with stream"], id="options without stream"
        ),
        pytest.param({"model": None}, ["model: missing"], id="no model"),
    ],
)
def test_broken_options_are_refused(fields: dict[str, Any], expected: list[str]) -> None:
    assert problems([USER], **fields) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([USER, USER], ["messages[1]: two user messages in a row"], id="two user messages"),
        pytest.param(
            [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            ["messages[2]: two assistant messages in a row"],
            id="two assistant messages",
        ),
        pytest.param([USER, {"role": "assistant", "content": " \n"}], ["messages[1]: empty assistant message"], id="blank assistant"),
    ],
)
def test_picky_refuses_what_strict_lets_pass(messages: list[Any], expected: list[str]) -> None:
    assert problems(messages) == []
    assert problems(messages, picky=True) == expected
