"""The table of what strict mode refuses in Responses."""

from typing import Any

import pytest

from app.simulator.responses_events import sealed_reasoning
from app.simulator.responses_rules import responses_problems
from tests.unit.simulator.responses_client import GET_TIME


def message(text: Any = "hi", role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text" if role == "user" else "output_text", "text": text}]}


def call(call_id: Any = "c1", name: Any = "lookup", arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: Any = "c1", text: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def reasoning(content: Any = None, summary: Any = ()) -> dict[str, Any]:
    sealed = sealed_reasoning("m", 3) if content is None else content
    return {"type": "reasoning", "summary": list(summary) if isinstance(summary, tuple) else summary, "encrypted_content": sealed}


def tool(name: Any = "lookup", parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters}


USER = message()
SAID = message("ok", "assistant")
UNSEALED = "the encrypted content could not be verified"


def problems(given: Any, *, picky: bool = False, **fields: Any) -> list[str]:
    return responses_problems({"model": "m", "store": False, "input": given, **fields}, picky=picky)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param("hi", id="text"),
        pytest.param([USER], id="one message"),
        pytest.param([{"role": "user", "content": "hi"}], id="short form"),
        pytest.param([{"role": "developer", "content": "be brief"}, USER, SAID, USER], id="plain talk"),
        pytest.param([USER, call("a"), call("b"), output("b"), output("a")], id="outputs in any order"),
        pytest.param([USER, reasoning(), reasoning(), call(), output(), reasoning(), SAID], id="reasoning before what came of it"),
        pytest.param([USER, call(), output(text=[{"type": "input_image", "image_url": "data:,"}])], id="image as output"),
    ],
)
def test_valid_input_has_no_problems(given: Any) -> None:
    include = ["reasoning.encrypted_content"]
    assert problems(given, picky=True, tools=[GET_TIME], include=include, max_output_tokens=16, instructions="x") == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([], ["input: nothing is said"], id="empty"),
        pytest.param("", ["input: nothing is said"], id="empty text"),
        pytest.param([USER, call()], ["input: no tool output found for function call 'c1'"], id="unanswered"),
        pytest.param([USER, output("x")], ["input[1]: no tool call found for call_id 'x'"], id="orphan output"),
        pytest.param(
            [USER, output(), call()],
            ["input[1]: no tool call found for call_id 'c1'", "input: no tool output found for function call 'c1'"],
            id="output before its call",
        ),
        pytest.param([USER, call(), output(), output()], ["input[3]: second output for call 'c1'"], id="repeated output"),
        pytest.param(
            [USER, call(), output(), call(), output()],
            [
                "input[3]: repeats the call_id 'c1'",
                "input[4]: second output for call 'c1'",
            ],
            id="repeated id",
        ),
        pytest.param([USER, call("")], ["input[1]: has no call_id"], id="empty id"),
        pytest.param(
            [USER, call("c" * 65), output("c" * 65)],
            [
                "input[1]: call_id is longer than 64",
                "input[2]: call_id is longer than 64",
            ],
            id="long id",
        ),
        pytest.param([USER, call(name="a.b"), output()], ["input[1]: has the illegal name 'a.b'"], id="illegal name"),
        pytest.param([USER, call(arguments={}), output()], ["input[1]: arguments is not a string"], id="arguments are an object"),
        pytest.param([USER, call(arguments=""), output()], ["input[1]: arguments is not a JSON object: ''"], id="empty arguments"),
        pytest.param([USER, call(), output(text=None)], ["input[2].output: is neither text nor a list of parts"], id="no output"),
        pytest.param([{"role": "bot", "content": "x"}], ["input[0]: unknown role 'bot'"], id="unknown role"),
        pytest.param([{"role": "user"}], ["input[0].content: is neither text nor a list of parts"], id="no content"),
        pytest.param([{"role": "user", "content": []}], ["input[0].content: is an empty list"], id="no parts"),
        pytest.param([message(None)], ["input[0].content[0]: is no valid part"], id="part without text"),
        pytest.param(
            [USER, {"role": "assistant", "content": USER["content"]}], ["input[1].content[0]: is no valid part"], id="part of another role"
        ),
        pytest.param([USER, {"type": "text"}], ["input[1]: unknown type 'text'"], id="unknown type"),
        pytest.param([USER, {"content": "x"}], ["input[1]: unknown type None"], id="no type"),
        pytest.param([USER, "x"], ["input[1]: is not an object"], id="not an object"),
        pytest.param(
            [USER, {"type": "item_reference", "id": "msg_1"}], ["input[1]: item 'msg_1' not found: nothing is stored"], id="reference"
        ),
        pytest.param(
            [USER, reasoning(""), SAID],
            ["input[1]: reasoning without encrypted_content: nothing is stored"],
            id="reasoning without content",
        ),
        pytest.param([USER, reasoning("sim-enc.3.0123"), SAID], [f"input[1]: {UNSEALED}"], id="foreign reasoning"),
        pytest.param([USER, reasoning(sealed_reasoning("n", 3)), SAID], [f"input[1]: {UNSEALED}"], id="reasoning of another model"),
        pytest.param([USER, reasoning(summary=None), SAID], ["input[1]: summary is missing"], id="reasoning without summary"),
        pytest.param(
            [USER, reasoning(), USER], ["input[1]: reasoning without the item that has to follow it"], id="reasoning before a user message"
        ),
        pytest.param([USER, reasoning()], ["input[1]: reasoning without the item that has to follow it"], id="reasoning at the end"),
    ],
)
def test_broken_input_is_refused_with_the_index(given: Any, expected: list[str]) -> None:
    assert problems(given) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"tools": [tool("a b")]}, ["tools[0]: illegal name 'a b'"], id="tool name"),
        pytest.param({"tools": [tool(parameters=[])]}, ["tools[0]: parameters is not an object"], id="parameters"),
        pytest.param({"tools": [{"type": "function", "function": {"name": "a"}}]}, ["tools[0]: illegal name None"], id="nested"),
        pytest.param({"tools": [{"type": "x"}]}, ["tools[0]: not of type function"], id="other type"),
        pytest.param({"tools": {}}, ["tools: not a list"], id="no list"),
        pytest.param({"tools": [tool("b"), tool("a")]}, ["tools: not sorted by name"], id="unsorted"),
        pytest.param({"tools": [tool("a"), tool("a")]}, ["tools: a name is defined twice"], id="twice"),
        pytest.param({"tool_choice": "required"}, ["tool_choice: 'required' needs tools"], id="choice without tools"),
        pytest.param({"tool_choice": {"type": "function", "name": "x"}}, ["tool_choice: 'x' not found in tools"], id="unknown choice"),
        pytest.param({"model": None}, ["model: missing"], id="no model"),
        pytest.param(
            {"store": True, "include": ["reasoning.encrypted_content"]},
            ["include: reasoning.encrypted_content is only given with store: false"],
            id="encrypted but stored",
        ),
        pytest.param({"previous_response_id": "resp_1"}, ["previous_response_id: not found: nothing is stored"], id="stored response"),
        pytest.param({"max_tokens": 5}, ["max_tokens: unknown parameter"], id="parameter of chat completions"),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}},
            ["text.format: json_schema needs a name and a schema"],
            id="format of chat completions",
        ),
    ],
)
def test_broken_options_are_refused(fields: dict[str, Any], expected: list[str]) -> None:
    assert problems([USER], **fields) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param([USER, USER], ["input[1]: two user messages in a row"], id="two user messages"),
        pytest.param([USER, SAID, SAID], ["input[2]: two assistant messages in a row"], id="two assistant messages"),
        pytest.param([USER, message(" \n", "assistant")], ["input[1]: empty assistant message"], id="blank assistant"),
        pytest.param([message("")], ["input[0]: empty user message"], id="blank user"),
        pytest.param([{**USER, "id": "msg_1"}], ["input[0]: item 'msg_1' not found: nothing is stored"], id="id"),
        pytest.param(
            [USER, call(), USER, output()], ["input[2]: comes before the output of the call before it"], id="message before the output"
        ),
    ],
)
def test_picky_refuses_what_strict_lets_pass(given: Any, expected: list[str]) -> None:
    assert problems(given) == []
    assert problems(given, picky=True) == expected


def test_picky_wants_room_for_an_answer() -> None:
    assert problems("x", max_output_tokens=15) == []
    assert problems("x", max_output_tokens=15, picky=True) == ["max_output_tokens: below the minimum of 16"]


def test_an_image_alone_is_no_blank_message() -> None:
    assert problems([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}], picky=True) == []
