import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.ids import ProviderId
from app.domain.messages import CALLERS, Message, Replay, Role, ToolCall, ToolSpec
from app.domain.model import ApiMode, ModelOptions, ModelRequest
from app.domain.tenants import Provider, Route
from app.providers.modes.chat_completions.encoder import encode_request

PROVIDER = Provider(id=ProviderId("prov_1"), name="p", api_mode=ApiMode.CHAT_COMPLETIONS, base_url="http://x/v1", api_key="k", headers={})
ROUTE = Route(provider=PROVIDER, model="m", output_tokens=99)
TOOLS = (
    ToolSpec(name="b", description="B", parameters={"type": "object", "properties": {"z": {}, "a": {}}}),
    ToolSpec(name="a", description="A", parameters={"type": "object"}),
)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def asked(*calls: ToolCall, content: str = "") -> Message:
    return Message(role=Role.ASSISTANT, content=content, tool_calls=calls)


def result(call_id: str, text: str = "r") -> Message:
    return Message(role=Role.TOOL, tool_call_id=call_id, content=text)


NO_OPTIONS = ModelOptions()


def encode(
    *messages: Message, tools: tuple[ToolSpec, ...] = (), system: str = "", route: Route = ROUTE, options: ModelOptions = NO_OPTIONS
) -> bytes:
    request = ModelRequest(system=system, messages=messages, tools=tools, first_attempt=1, options=options)
    return encode_request(route, request)


def sent(*messages: Message) -> list[dict[str, Any]]:
    body = json.loads(encode(*messages))
    assert isinstance(body["messages"], list)
    return body["messages"]


def recalling(model: str, base_url: str = "http://x/v1", *, origin: str | None = None) -> dict[str, Any]:
    """What a route is sent of a reply with plain reasoning."""
    provider = msgspec.structs.replace(PROVIDER, base_url=base_url)
    route = Route(provider=provider, model=model)
    replay = Replay(origin=origin or route.origin, items=({"reasoning_content": "hm"},))
    reply = Message(role=Role.ASSISTANT, content="x", tool_calls=(ToolCall("c", "f", "{}"),), replay=replay)
    messages = json.loads(encode(user("q"), reply, result("c"), route=route))["messages"]
    assert isinstance(messages[1], dict)
    return messages[1]


@pytest.mark.parametrize("model", ["deepseek-reasoner", "moonshotai/Kimi-K2-Thinking", "glm-4.7"])
def test_models_that_want_their_reasoning_back_get_it(model: str) -> None:
    assert recalling(model)["reasoning_content"] == "hm"
    assert recalling(model, origin=CALLERS)["reasoning_content"] == "hm"
    assert "reasoning_content" not in recalling(model, origin="another-route")


def test_whoever_does_not_know_the_member_is_not_sent_it() -> None:
    assert "reasoning_content" not in recalling("llama")
    assert recalling("chat", "https://api.deepseek.com/v1")["reasoning_content"] == "hm"


def test_a_strict_tool_is_one_here_too() -> None:
    tools = (ToolSpec(name="f", description="", parameters={}, strict=True), ToolSpec(name="g", description="", parameters={}))
    assert [tool["function"].get("strict") for tool in json.loads(encode(user("x"), tools=tools))["tools"]] == [True, None]


def test_a_whole_body() -> None:
    assert encode(user("hé"), tools=TOOLS, system="Be kind.") == (
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":99,"tools":['
        b'{"function":{"description":"B","name":"b","parameters":{"properties":{"a":{},"z":{}},"type":"object"}},"type":"function"},'
        b'{"function":{"description":"A","name":"a","parameters":{"type":"object"}},"type":"function"}],"messages":['
        b'{"role":"system","content":"Be kind."},{"role":"user","content":"h\xc3\xa9"}]}'
    )


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("gpt-4o", "max_tokens"),
        ("o4-mini", "max_completion_tokens"),
        ("openai/gpt-5.1", "max_completion_tokens"),
        ("qwen-o1", "max_tokens"),
    ],
)
def test_the_output_limit_has_the_name_that_the_model_takes(model: str, limit: str) -> None:
    body = json.loads(encode(user("x"), route=Route(provider=PROVIDER, model=model, output_tokens=7)))
    assert body[limit] == 7
    assert "tools" not in body


def added_by(options: ModelOptions, tools: tuple[ToolSpec, ...] = TOOLS) -> dict[str, Any]:
    """The members that the options add to a body."""
    plain, body = (json.loads(encode(user("x"), tools=tools, options=made)) for made in (NO_OPTIONS, options))
    return {key: value for key, value in body.items() if key not in plain}


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"b": {}, "a": {}}}}}


@pytest.mark.parametrize(
    ("options", "members"),
    [
        pytest.param(ModelOptions(), {}, id="none"),
        pytest.param(
            ModelOptions(temperature=0.0, top_p=0.5, stop=("a", "b")), {"temperature": 0.0, "top_p": 0.5, "stop": ["a", "b"]}, id="sampling"
        ),
        pytest.param(ModelOptions(tool_choice="none"), {"tool_choice": "none"}, id="tool-choice"),
        pytest.param(
            ModelOptions(tool_choice="tool:a.b"), {"tool_choice": {"type": "function", "function": {"name": "a_b"}}}, id="one-tool"
        ),
        pytest.param(ModelOptions(parallel_tool_calls=False), {"parallel_tool_calls": False}, id="one-call-at-a-time"),
        pytest.param(ModelOptions(response_format=FORMAT), {"response_format": FORMAT}, id="format"),
        pytest.param(ModelOptions(reasoning_effort="low"), {"reasoning_effort": "low"}, id="effort"),
    ],
)
def test_options(options: ModelOptions, members: dict[str, Any]) -> None:
    assert added_by(options) == members


def test_options_about_tools_are_left_out_without_any() -> None:
    assert added_by(ModelOptions(tool_choice="auto", parallel_tool_calls=True), tools=()) == {}


def test_the_output_limit_is_the_callers_where_there_is_one() -> None:
    limits = [json.loads(encode(user("x"), options=ModelOptions(max_output_tokens=limit)))["max_tokens"] for limit in (None, 7)]
    assert limits == [99, 7]


def test_the_order_of_a_response_schema_is_kept() -> None:
    assert b'{"b":{},"a":{}}' in encode(user("x"), options=ModelOptions(response_format=FORMAT))


def test_calls_and_results() -> None:
    assert sent(user("q"), asked(ToolCall("c1", "f", '{"a": 1}')), result("c1", "ok")) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


@pytest.mark.parametrize(("content", "expected"), [("", None), (" \n", None), ("Looking.", "Looking.")], ids=["empty", "blank", "text"])
def test_blank_content_beside_calls_is_null(content: str, expected: str | None) -> None:
    assert sent(asked(ToolCall("c", "f", "{}"), content=content))[0]["content"] == expected


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("look_up-2", "look_up-2"),
        ("browser.tabs.open", "browser_tabs_open"),
        ('view" path="a', "view__path__a"),
        ("x" * 457, "x" * 64),
        ("", "unnamed"),
    ],
    ids=["legal", "dots", "quotes", "long", "empty"],
)
def test_tool_names_are_made_legal(name: str, legal: str) -> None:
    assert sent(asked(ToolCall("c", name, "{}")))[0]["tool_calls"][0]["function"]["name"] == legal


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"'])
def test_arguments_are_always_an_object(arguments: str) -> None:
    assert sent(asked(ToolCall("c", "f", arguments)))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_ids_are_unique_and_results_follow_their_call() -> None:
    history = sent(
        asked(ToolCall("call_0", "f", "{}"), ToolCall("", "g", "{}"), ToolCall("", "h", "{}")),
        result("call_0"),
        result(""),
        result(""),
        asked(ToolCall("call_0", "f", "{}")),
        result("call_0"),
    )
    calls = [call["id"] for message in history for call in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in history if message["role"] == "tool"]
    assert calls == results == ["call_0", "call", "call_2", "call_0_2"]


def test_content_parts_pass_through_and_text_is_cleaned() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "a\ud800"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    history = sent(Message(role=Role.USER, content=parts), user("b\x00\ud83e\udd8a"))
    assert history[0]["content"] == [{"type": "text", "text": "a\ufffd"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert history[1]["content"] == "b\ufffd🦊"


texts = st.text(max_size=20)
calls = st.builds(ToolCall, st.sampled_from(["", "c", "call_0", "call"]), texts, st.sampled_from(["{}", "{", '{"a":1}']))
messages = st.one_of(
    st.builds(user, texts),
    st.builds(lambda made, text: asked(*made, content=text), st.lists(calls, max_size=3), texts),
    st.builds(result, st.sampled_from(["", "c", "call_0"]), texts),
)


@given(history=st.lists(messages, max_size=8))
def test_each_request_is_a_prefix_of_the_next(history: list[Message]) -> None:
    bodies = [encode(*history[:size], tools=TOOLS, system="s") for size in range(len(history) + 1)]
    for body, following in pairwise(bodies):
        assert following.startswith(body.removesuffix(b"]}"))
        json.loads(following)
