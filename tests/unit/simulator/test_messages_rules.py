"""The table of what strict mode refuses in Messages."""

from typing import Any

import pytest

from app.simulator.messages_rules import messages_problems
from app.simulator.signatures import call_prefix, sign

USER = {"role": "user", "content": "hi"}
THOUGHTFUL = call_prefix(thoughtful=True) + "1"


def text(said: object = "hi", **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **members}


def call(call_id: object = "c1", name: object = "lookup", given: object = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if given is None else given}


def result(call_id: object = "c1", content: object = "ok", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **members}


def thought(words: object = "Hm.", signature: object = None, model: str = "m") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": sign(model, str(words)) if signature is None else signature}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def tool(name: object = "lookup", schema: object = None) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"} if schema is None else schema}


def problems(messages: list[Any], *, picky: bool = False, **fields: Any) -> list[str]:
    return messages_problems({"model": "m", "max_tokens": 9, "messages": messages, **fields}, picky=picky)


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([USER], id="one user message"),
        pytest.param([USER, assistant(text()), USER], id="plain talk"),
        pytest.param([USER, assistant(call("a"), call("b")), user(result("b"), result("a"), text())], id="results in any order"),
        pytest.param([USER, assistant(thought(), text(), call()), user(result())], id="signed thinking"),
        pytest.param([USER, assistant(thought(""), call()), user(result())], id="signed thinking without words"),
        pytest.param(
            [USER, assistant({"type": "redacted_thinking", "data": "x"}, call(THOUGHTFUL)), user(result(THOUGHTFUL))], id="redacted"
        ),
        pytest.param([user(text(), PNG, {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}})], id="images"),
        pytest.param([USER, assistant(call()), user({"type": "tool_result", "tool_use_id": "c1"})], id="result without content"),
        pytest.param([USER, assistant(call()), user(result(content=[text(), PNG], is_error=True))], id="result with blocks"),
    ],
)
def test_valid_history_has_no_problems(messages: list[Any]) -> None:
    marked = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    assert problems(messages, picky=True, tools=[tool()], system=marked, tool_choice={"type": "auto"}, temperature=1) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([], ["messages: at least one message is required"], id="empty"),
        pytest.param([assistant(text()), USER], ["messages: first message must use the user role"], id="assistant first"),
        pytest.param([USER, "x"], ["messages.1: is not an object"], id="not an object"),
        pytest.param(
            [{"role": ["user"], "content": "x"}],
            ["messages: first message must use the user role", "messages.0: unexpected role ['user']"],
            id="role is a list",
        ),
        pytest.param([{"role": "user", "content": " "}], ["messages.0: text content must be non-empty"], id="blank message"),
        pytest.param([user()], ["messages.0: content must be a text or a list of blocks that is not empty"], id="no blocks"),
        pytest.param([user(text("\n"))], ["messages.0.content.0: text content blocks must contain non-whitespace text"], id="blank text"),
        pytest.param(
            [user(thought())], ["messages.0.content.0: a block of type 'thinking' is not allowed in a message of role user"], id="misplaced"
        ),
        pytest.param(
            [user({"type": ["text"]})],
            ["messages.0.content.0: a block of type ['text'] is not allowed in a message of role user"],
            id="odd type",
        ),
        pytest.param(
            [USER, assistant(call())],
            ["messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: ['c1']"],
            id="unanswered",
        ),
        pytest.param(
            [USER, assistant(call()), USER, user(result())],
            [
                "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: ['c1']",
                "messages.3: unexpected `tool_use_id` found in `tool_result` blocks: 'c1'",
            ],
            id="result too late",
        ),
        pytest.param([user(result())], ["messages.0: unexpected `tool_use_id` found in `tool_result` blocks: 'c1'"], id="orphan result"),
        pytest.param(
            [USER, assistant(call()), user(result(), result())],
            ["messages.2: each tool_use must have a single result: 'c1'"],
            id="two results",
        ),
        pytest.param(
            [USER, assistant(call()), user(text(), result())], ["messages.2: tool_result blocks must come first"], id="text first"
        ),
        pytest.param(
            [USER, assistant(call()), user(result()), assistant(call()), user(result())],
            ["messages.3: `tool_use` ids must be unique: 'c1'"],
            id="repeated id",
        ),
        pytest.param(
            [USER, assistant(call("a.b")), user(result("a.b"))],
            ["messages.1.content.0.id: String should match pattern '^[a-zA-Z0-9_-]+$': 'a.b'"],
            id="illegal id",
        ),
        pytest.param(
            [USER, assistant(call(name="a.b")), user(result())], ["messages.1.content.0.name: illegal name 'a.b'"], id="illegal name"
        ),
        pytest.param(
            [USER, assistant(call(given="{}")), user(result())], ["messages.1.content.0.input: Input should be an object"], id="input"
        ),
        pytest.param(
            [USER, assistant(thought(signature=""), call()), user(result())],
            ["messages.1.content.0.signature: Field required"],
            id="unsigned",
        ),
        pytest.param(
            [USER, assistant(thought(signature="c2ln"), call()), user(result())],
            ["messages.1.content.0: Invalid `signature` in `thinking` block"],
            id="foreign signature",
        ),
        pytest.param(
            [USER, assistant(thought(model="other"), call()), user(result())],
            ["messages.1.content.0: Invalid `signature` in `thinking` block"],
            id="signature of another model",
        ),
        pytest.param(
            [USER, assistant({**thought(), "thinking": "Hm!"}, call()), user(result())],
            ["messages.1.content.0: Invalid `signature` in `thinking` block"],
            id="changed thinking",
        ),
        pytest.param(
            [USER, assistant({"type": "redacted_thinking"}, text())],
            ["messages.1.content.0.data: Field required"],
            id="redacted without data",
        ),
        pytest.param(
            [USER, assistant(thought())], ["messages.1: the final block in an assistant message cannot be thinking"], id="thinking last"
        ),
        pytest.param(
            [user({"type": "image", "source": {"type": "base64", "media_type": ["image/png"], "data": "a b"}})],
            ["messages.0.content.0.source.media_type: unexpected ['image/png']", "messages.0.content.0.source.data: invalid base64 data"],
            id="bad image",
        ),
        pytest.param([user({"type": "image"})], ["messages.0.content.0.source: Field required"], id="no image"),
        pytest.param(
            [user({"type": "image", "source": {"type": "url", "url": "data:,"}})],
            ["messages.0.content.0.source.url: Only HTTP(S) URLs are supported"],
            id="image at no address",
        ),
        pytest.param(
            [user({"type": "image", "source": {"type": "file"}})], ["messages.0.content.0.source.type: unexpected 'file'"], id="file"
        ),
        pytest.param(
            [USER, assistant(call()), user(result(content="", is_error=True))],
            ["messages.2.content.0: content cannot be empty if `is_error` is true"],
            id="error without content",
        ),
        pytest.param(
            [USER, assistant(call()), user(result(content=[call(), text(" ")]))],
            [
                "messages.2.content.0.content.0: unexpected type 'tool_use'",
                "messages.2.content.0.content.1: text content blocks must contain non-whitespace text",
            ],
            id="blocks of a result",
        ),
        pytest.param(
            [USER, assistant(call()), user(result(content=7))],
            ["messages.2.content.0.content: neither text nor a list of blocks"],
            id="number",
        ),
        pytest.param(
            [USER, assistant(call([])), user(result([]))],
            [
                "messages.1.content.0.id: String should match pattern '^[a-zA-Z0-9_-]+$': []",
                "messages.2.content.0.tool_use_id: Field required",
            ],
            id="id is a list",
        ),
    ],
)
def test_broken_history_is_refused_with_the_place(messages: list[Any], expected: list[str]) -> None:
    assert problems(messages) == expected


MARKED = text(cache_control={"type": "ephemeral"})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"max_tokens": None}, ["max_tokens: Field required"], id="no max_tokens"),
        pytest.param({"max_tokens": 0}, ["max_tokens: Field required"], id="no room"),
        pytest.param({"model": None}, ["model: Field required"], id="no model"),
        pytest.param({"stream_options": {}}, ["stream_options: Extra inputs are not permitted"], id="member of another protocol"),
        pytest.param({"system": ""}, ["system: neither text nor a list of text blocks"], id="empty system"),
        pytest.param({"system": [text(" ")]}, ["system.0: not a text block with non-whitespace text"], id="blank system"),
        pytest.param({"tools": []}, ["tools: not a list with tools"], id="no tools"),
        pytest.param({"tools": [tool("a b")]}, ["tools.0.name: illegal name 'a b'"], id="tool name"),
        pytest.param({"tools": [tool(schema={})]}, ["tools.0.input_schema: not a schema of type object"], id="schema"),
        pytest.param({"tools": [tool("b"), tool("a")]}, ["tools: not sorted by name"], id="unsorted"),
        pytest.param({"tools": [tool("a"), tool("a")]}, ["tools: Tool names must be unique"], id="twice"),
        pytest.param(
            {"tool_choice": {"type": "auto"}}, ["tool_choice: may only be specified while providing tools"], id="choice without tools"
        ),
        pytest.param({"tools": [tool()], "tool_choice": "auto"}, ["tool_choice: not of a known type"], id="choice as text"),
        pytest.param({"temperature": 1.5}, ["temperature: range: 0..1"], id="temperature"),
        pytest.param({"stop_sequences": ["\n"]}, ["stop_sequences: each stop sequence must contain non-whitespace"], id="blank stop"),
        pytest.param({"stop_sequences": 3}, ["stop_sequences: each stop sequence must contain non-whitespace"], id="stop is a number"),
        pytest.param(
            {"system": [MARKED], "messages": [user(MARKED, MARKED, MARKED, MARKED)]},
            ["A maximum of 4 blocks with cache_control may be provided. Found 5."],
            id="too many cache markers",
        ),
        pytest.param({"system": [text(cache_control={"type": "x"})]}, ["cache_control: not of a known form"], id="odd cache marker"),
        pytest.param(
            {"messages": [USER, assistant({**thought(), "cache_control": {"type": "ephemeral"}}, text())]},
            ["cache_control: not allowed on a block of type thinking"],
            id="cache marker on thinking",
        ),
    ],
)
def test_broken_options_are_refused(fields: dict[str, Any], expected: list[str]) -> None:
    assert problems(fields.pop("messages", [USER]), **fields) == expected


MISSING = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`"


@pytest.mark.parametrize(
    ("messages", "fields", "expected"),
    [
        pytest.param([USER, USER], {}, ["messages.1: roles must alternate: two user messages in a row"], id="two user messages"),
        pytest.param(
            [USER, assistant(text("So "))],
            {},
            [
                "messages: this model does not support assistant message prefill, the conversation must end with a user message",
                "messages: final assistant content cannot end with trailing whitespace",
            ],
            id="assistant last",
        ),
        pytest.param(
            [USER, assistant(call()), user(result())], {}, ["messages: tool_use blocks need tools in the request"], id="calls without tools"
        ),
        pytest.param(
            [USER], {"temperature": 0.5, "top_p": 0.5}, ["`temperature` and `top_p` cannot both be specified for this model"], id="both"
        ),
        pytest.param([USER, assistant(call(THOUGHTFUL)), user(result(THOUGHTFUL))], {"tools": [tool()]}, [MISSING], id="missing thinking"),
        pytest.param(
            [USER, assistant(call()), user(result())], {"tools": [tool()], "thinking": {"type": "enabled"}}, [MISSING], id="thinking is on"
        ),
    ],
)
def test_picky_refuses_what_strict_lets_pass(messages: list[Any], fields: dict[str, Any], expected: list[str]) -> None:
    assert problems(messages, **fields) == []
    assert problems(messages, picky=True, **fields) == expected


def test_older_calls_may_lose_their_thinking() -> None:
    messages = [USER, assistant(call(THOUGHTFUL)), user(result(THOUGHTFUL)), assistant(text()), USER]
    assert problems(messages, picky=True, tools=[tool()]) == []
