import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.history import repair
from app.domain.messages import Content, Message, Replay, Role, ToolCall, ToolSpec
from app.domain.model import NO_OPTIONS, ApiMode, ModelOptions, ModelRequest
from app.domain.tenants import Route
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.anthropic_messages.encoder import encode_request
from app.simulator.messages_rules import messages_problems
from app.simulator.signatures import sign
from tests.unit.providers.modes.conversations import TOOLS, call, result, route_of, said, user

ROUTE = route_of(ApiMode.ANTHROPIC_MESSAGES)
MARKER = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": sign("m", "Hm.")}
OWN = Replay(origin=ROUTE.origin, items=(THOUGHT,))


def encode(
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (),
    system: str = "",
    options: ModelOptions = NO_OPTIONS,
    route: Route = ROUTE,
) -> bytes:
    return encode_request(route, ModelRequest(system=system, messages=messages, tools=tools, first_attempt=1, options=options))


def sent(*messages: Message) -> list[dict[str, Any]]:
    body = json.loads(encode(*messages))
    for message in body["messages"]:
        for block in message["content"]:
            block.pop("cache_control", None)
    assert isinstance(body["messages"], list)
    return body["messages"]


def user_content(content: Content) -> Any:
    return sent(user(content))[0]["content"]


def test_a_whole_body() -> None:
    options = ModelOptions(temperature=0.5)
    assert encode(user("hé"), tools=TOOLS[1:], system="Be kind.", options=options) == (
        b'{"model":"m","max_tokens":99,"stream":true,"temperature":0.5,"tools":['
        b'{"description":"The time.","input_schema":{"type":"object"},"name":"now"}],"system":['
        b'{"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral"}}],"messages":['
        b'{"role":"user","content":[{"type":"text","text":"h\xc3\xa9","cache_control":{"type":"ephemeral"}}]}]}'
    )


def test_headers_name_the_version_and_the_key() -> None:
    mode = AnthropicMessages()
    assert mode.headers(ROUTE.provider) == {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert mode.headers(msgspec.structs.replace(ROUTE.provider, api_key="")) == {"anthropic-version": "2023-06-01"}
    assert mode.path == "/messages"


OPTIONS = [
    pytest.param(ModelOptions(max_output_tokens=7), {"max_tokens": 7}, id="limit"),
    pytest.param(ModelOptions(temperature=1.7, top_p=0.5), {"temperature": 1.0}, id="temperature-first-and-at-most-1"),
    pytest.param(ModelOptions(top_p=0.5), {"top_p": 0.5}, id="top-p"),
    pytest.param(ModelOptions(stop=("END", " ")), {"stop_sequences": ["END"]}, id="stop"),
    pytest.param(ModelOptions(stop=("\n",)), {}, id="blank-stop"),
    pytest.param(ModelOptions(tool_choice="auto"), {"tool_choice": {"type": "auto"}}, id="auto"),
    pytest.param(ModelOptions(tool_choice="required"), {"tool_choice": {"type": "any"}}, id="required"),
    pytest.param(ModelOptions(tool_choice="none", parallel_tool_calls=False), {"tool_choice": {"type": "none"}}, id="none"),
    pytest.param(ModelOptions(tool_choice="tool:a.b"), {"tool_choice": {"type": "tool", "name": "a_b"}}, id="tool"),
    pytest.param(
        ModelOptions(parallel_tool_calls=False), {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, id="one-by-one"
    ),
    pytest.param(
        ModelOptions(tool_choice="required", parallel_tool_calls=False),
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        id="required-one-by-one",
    ),
    pytest.param(ModelOptions(parallel_tool_calls=True), {}, id="parallel"),
    pytest.param(
        ModelOptions(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}),
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        id="schema",
    ),
    pytest.param(ModelOptions(response_format={"type": "json_object"}), {}, id="no-word-for-it"),
    pytest.param(ModelOptions(reasoning_effort="high"), {"output_config": {"effort": "high"}}, id="effort"),
    pytest.param(
        ModelOptions(
            reasoning_effort="minimal",
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        ),
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}},
        id="effort-and-schema",
    ),
]


@pytest.mark.parametrize(("options", "expected"), OPTIONS)
def test_options(options: ModelOptions, expected: dict[str, Any]) -> None:
    body = json.loads(encode(user("x"), tools=TOOLS, options=options))
    assert {key: body[key] for key in body if key not in {"model", "stream", "tools", "messages"}} == {"max_tokens": 99} | expected
    assert messages_problems(body, picky=True) == []


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("claude-opus-4-5", "max", "high"),
        ("claude-opus-4-6", "max", "max"),
        ("claude-sonnet-4-6", "xhigh", "high"),
        ("claude-opus-4-7", "xhigh", "xhigh"),
        ("claude-opus-4-7", "none", "low"),
        ("claude-opus-4-1", "none", None),
    ],
)
def test_an_effort_is_the_nearest_that_the_model_knows(model: str, asked: str, sent: str | None) -> None:
    route = Route(provider=ROUTE.provider, model=model)
    body = json.loads(encode(user("x"), options=ModelOptions(reasoning_effort=asked), route=route))
    assert body.get("output_config") == (None if sent is None else {"effort": sent})


def test_a_strict_tool_is_one_here_too() -> None:
    tools = (ToolSpec(name="f", description="", parameters={}, strict=True), ToolSpec(name="g", description="", parameters={}))
    assert [tool.get("strict") for tool in json.loads(encode(user("x"), tools=tools))["tools"]] == [True, None]


def test_a_choice_of_tools_needs_tools() -> None:
    assert "tool_choice" not in json.loads(encode(user("x"), options=ModelOptions(tool_choice="required", parallel_tool_calls=False)))


def test_calls_of_a_history_need_tools_even_when_none_is_offered_any_more() -> None:
    """The API refuses a history with calls and no tools: what was called is named, and cannot be called."""
    body = json.loads(encode(user("q"), said("", call("c1"), call("c2")), result("c1"), result("c2"), user("e")))
    (tool,) = body["tools"]
    assert (tool["name"], tool["input_schema"]) == (call("c1").name, {"type": "object"})
    assert body["tool_choice"] == {"type": "none"}
    asked = json.loads(encode(user("q"), said("", call("c1")), result("c1"), options=ModelOptions(tool_choice="required")))
    assert asked["tool_choice"] == {"type": "none"}


def marked(body: dict[str, Any]) -> list[str]:
    """Where the body has cache markers."""
    places = [f"tools.{index}" for index, tool in enumerate(body.get("tools", ())) if tool.get("cache_control") == MARKER]
    places += [f"system.{index}" for index, block in enumerate(body.get("system", ())) if block.get("cache_control") == MARKER]
    for index, message in enumerate(body["messages"]):
        places += [f"{index}.{at}" for at, block in enumerate(message["content"]) if block.get("cache_control") == MARKER]
    return places


TALK = (user("a"), said("b"), user("c"), said("d", call("c1"), call("c2")), result("c1"), result("c2"), user("e"))


@pytest.mark.parametrize(
    ("system", "tools", "messages", "places"),
    [
        pytest.param("s", TOOLS, TALK, ["system.0", "2.0", "3.2", "4.2"], id="system-and-the-last-messages"),
        pytest.param("", TOOLS, TALK, ["tools.1", "2.0", "3.2", "4.2"], id="tools-in-place-of-a-system-prompt"),
        pytest.param("s", (), TALK[:1], ["system.0", "0.0"], id="one-message"),
        pytest.param("", (), TALK[:2], ["0.0", "1.0"], id="messages-only"),
    ],
)
def test_cache_markers(system: str, tools: tuple[ToolSpec, ...], messages: tuple[Message, ...], places: list[str]) -> None:
    assert marked(json.loads(encode(*messages, system=system, tools=tools))) == places


def test_own_thinking_comes_first_and_unchanged() -> None:
    items = (THOUGHT, {"type": "redacted_thinking", "data": "x"})
    history = sent(user("q"), said("Looking.", call("c1"), replay=Replay(origin=ROUTE.origin, items=items), reasoning="Hm."), result("c1"))
    assert history[1]["content"][:2] == list(items)
    assert [block["type"] for block in history[1]["content"][2:]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(said("Hi.", replay=Replay(origin="elsewhere", items=(THOUGHT,)), reasoning="Hm."), id="of-another-route"),
        pytest.param(said("Hi.", reasoning="Hm."), id="unsigned"),
    ],
)
def test_other_thinking_is_not_sent(message: Message) -> None:
    assert sent(user("q"), message)[1]["content"] == [{"type": "text", "text": "Hi."}]


def test_thinking_alone_is_no_message() -> None:
    assert sent(user("q"), said(" ", replay=OWN), user("r"))[0]["content"] == [
        {"type": "text", "text": "q"},
        {"type": "text", "text": "r"},
    ]


def test_a_conversation_begins_with_the_user_and_has_no_blank_texts() -> None:
    assert sent(said("Hello. \n"), user("")) == [
        {"role": "user", "content": [{"type": "text", "text": "[The conversation begins here.]"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "user", "content": [{"type": "text", "text": "[empty message]"}]},
    ]


def test_neighbours_of_one_role_are_one_message() -> None:
    assert [(message["role"], len(message["content"])) for message in sent(user("a"), user(""), user("b"), said("c"), said("d"))] == [
        ("user", 2),
        ("assistant", 2),
    ]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        pytest.param(
            {"type": "image_url", "image_url": "data:image/JPG;charset=x;base64,QQ=="},
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QQ=="}},
            id="url-as-text-odd-type",
        ),
        pytest.param({"type": "text", "text": "a\ud800"}, {"type": "text", "text": "a\ufffd"}, id="half-a-pair"),
        pytest.param(
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ=="}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}},
            id="pdf-without-a-name",
        ),
    ],
)
def test_content_parts(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert user_content([part]) == [block]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": "ftp://x/a.png"}},
        {"type": "image_url"},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "data:text/csv;base64,QQ=="}},
        {"type": 7},
    ],
    ids=["audio", "ftp", "no-image", "file-id", "csv", "odd-type"],
)
def test_parts_without_a_block_are_named(part: dict[str, Any]) -> None:
    (block,) = user_content([part])
    assert block == {"type": "text", "text": f"[A part of type {part['type']} was left out: it cannot be shown here.]"}


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("", {}),
        ("{", {}),
        ("[1]", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a":"\\ud800\\u0000"}', {"a": "\ufffd\ufffd"}),
        ('{"a":"\\u0000"}', {"a": "\ufffd"}),
        ('{"a":"\\udc00"}', {"a": "\ufffd"}),
        ('"{\\"a\\":1}"', {"a": 1}),
    ],
    ids=["empty", "cut", "list", "object", "half-a-pair", "nul", "second-half", "encoded-twice"],
)
def test_input_is_always_an_object(arguments: str, read: dict[str, Any]) -> None:
    assert sent(user("q"), said("", call("c", "f", arguments)))[1]["content"][0]["input"] == read


def test_ids_are_made_legal_and_stay_unique() -> None:
    history = sent(user("q"), said("", call("a.b"), call("a_b"), call("北")), result("a.b"), result("a_b"), result("北"))
    calls = [block["id"] for block in history[1]["content"]]
    assert calls == [block["tool_use_id"] for block in history[2]["content"]] == ["a_b", "a_b_2", "_"]


def test_results_without_content() -> None:
    history = sent(user("q"), said("", call("a"), call("b"), call("c")), result("a", " "), result("b", "", is_error=True), result("c", []))
    assert history[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "b", "content": "No details were given.", "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
    ]


def test_an_assistants_content_parts_are_its_texts() -> None:
    message = Message(role=Role.ASSISTANT, content=[{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}])
    assert sent(user("q"), message)[1]["content"] == [{"type": "text", "text": "a"}]


texts = st.text(max_size=12)
ids = st.sampled_from(["", "c", "call_0", "a.b"])
calls = st.builds(ToolCall, ids, texts, st.sampled_from(["{}", "{", '{"a":1}']))
replays = st.sampled_from([None, OWN, Replay(origin="elsewhere", items=(THOUGHT,))])
parts = st.sampled_from([{"type": "text", "text": " "}, {"type": "text", "text": "t"}, {"type": "image_url", "image_url": "https://x/y"}])
contents = st.one_of(texts, st.lists(parts, max_size=2))
messages = st.one_of(
    st.builds(user, contents),
    st.builds(lambda made, text, replay: said(text, *made, replay=replay), st.lists(calls, max_size=3), texts, replays),
    st.builds(lambda call_id, content, failed: result(call_id, content, is_error=failed), ids, contents, st.booleans()),
)
histories = st.lists(messages, max_size=8)


def prefix(body: bytes) -> bytes:
    """What a provider caches: everything but the markers and the brackets that close the last message and the body."""
    return body.replace(b',"cache_control":{"type":"ephemeral"}', b"").removesuffix(b"]}").removesuffix(b"]}")


@given(history=histories)
def test_each_request_is_a_prefix_of_the_next(history: list[Message]) -> None:
    bodies = [encode(*history[:size], tools=TOOLS, system="s") for size in range(len(history) + 1)]
    for body, following in pairwise(bodies):
        longer, shorter = prefix(following), prefix(body)
        assert longer.startswith(shorter)
        assert longer[len(shorter) : len(shorter) + 1] in {b"", b",", b"]", b"{"}  # cut between two blocks, or two messages


@given(history=histories, system=texts)
def test_a_repaired_history_is_never_refused(history: list[Message], system: str) -> None:
    body = json.loads(encode(*repair([*history, user("q")]), tools=TOOLS, system=system))
    assert messages_problems(body, picky=False) == []
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
