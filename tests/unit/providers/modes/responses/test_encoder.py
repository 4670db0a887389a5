import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import Message, Replay, Role, ToolCall, ToolSpec
from app.domain.model import ApiMode, ModelOptions, ModelRequest
from app.domain.tenants import Route
from app.providers.modes.responses.encoder import encode_request
from tests.unit.providers.modes.conversations import result, route_of, said, user

ROUTE = route_of(ApiMode.RESPONSES)
TOOLS = (
    ToolSpec(name="a.b", description="A", parameters={"type": "object", "properties": {"z": {}, "a": {}}}),
    ToolSpec(name="b", description="B\ud800", parameters={"type": "object"}),
)
NO_OPTIONS = ModelOptions()
SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def encode(
    *messages: Message, tools: tuple[ToolSpec, ...] = (), system: str = "", route: Route = ROUTE, options: ModelOptions = NO_OPTIONS
) -> bytes:
    request = ModelRequest(system=system, messages=messages, tools=tools, first_attempt=1, options=options)
    return encode_request(route, request)


def sent(*messages: Message) -> list[dict[str, Any]]:
    body = json.loads(encode(*messages))
    assert isinstance(body["input"], list)
    return body["input"]


def added_by(options: ModelOptions, tools: tuple[ToolSpec, ...] = TOOLS) -> dict[str, Any]:
    """The members that the options add to a body."""
    plain, body = (json.loads(encode(user("x"), tools=tools, options=made)) for made in (NO_OPTIONS, options))
    return {key: value for key, value in body.items() if key not in plain}


def test_a_whole_body() -> None:
    assert encode(user("hé"), tools=TOOLS, system="Be kind.") == (
        b'{"model":"m","stream":true,"store":false,"max_output_tokens":99,"include":["reasoning.encrypted_content"],'
        b'"instructions":"Be kind.","tools":['
        b'{"description":"A","name":"a_b","parameters":{"properties":{"a":{},"z":{}},"type":"object"},"strict":false,"type":"function"},'
        b'{"description":"B\xef\xbf\xbd","name":"b","parameters":{"type":"object"},"strict":false,"type":"function"}],"input":['
        b'{"type":"message","role":"user","content":[{"type":"input_text","text":"h\xc3\xa9"}]}]}'
    )


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gpt-4.1", False),
        ("openai/gpt-4o-mini", False),
        ("ft:gpt-4o:acme", False),
        ("gpt-5.1-chat-latest", False),
        ("gpt-5.2", True),
        ("o4-mini", True),
    ],
)
def test_reasoning_is_asked_for_where_the_model_may_have_some(model: str, asks: bool) -> None:
    body = json.loads(encode(user("x"), route=Route(provider=ROUTE.provider, model=model)))
    assert ("include" in body) is asks


def test_reasoning_is_not_asked_for_again_where_it_was_refused() -> None:
    request = ModelRequest(system="", messages=(user("x"),), tools=(), first_attempt=1, replays=False)
    assert "include" not in json.loads(encode_request(ROUTE, request))


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.parametrize(
    ("options", "members"),
    [
        pytest.param(ModelOptions(), {}, id="none"),
        pytest.param(ModelOptions(temperature=0.0, top_p=0.5), {"temperature": 0.0, "top_p": 0.5}, id="sampling"),
        pytest.param(ModelOptions(stop=("a",)), {}, id="stop-has-no-word"),
        pytest.param(ModelOptions(tool_choice="required"), {"tool_choice": "required"}, id="tool-choice"),
        pytest.param(ModelOptions(tool_choice="tool:a.b"), {"tool_choice": {"type": "function", "name": "a_b"}}, id="one-tool"),
        pytest.param(ModelOptions(parallel_tool_calls=False), {"parallel_tool_calls": False}, id="one-call-at-a-time"),
        pytest.param(ModelOptions(reasoning_effort="low"), {"reasoning": {"effort": "low"}}, id="effort"),
        pytest.param(ModelOptions(response_format={"type": "json_object"}), {"text": {"format": {"type": "json_object"}}}, id="json"),
        pytest.param(
            ModelOptions(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}),
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            id="schema",
        ),
    ],
)
def test_options(options: ModelOptions, members: dict[str, Any]) -> None:
    assert added_by(options) == members


def test_options_about_tools_are_left_out_without_any() -> None:
    assert added_by(ModelOptions(tool_choice="auto", parallel_tool_calls=True), tools=()) == {}


def test_the_output_limit_is_the_callers_where_there_is_one() -> None:
    asked = (None, 17, 7)
    limits = [json.loads(encode(user("x"), options=ModelOptions(max_output_tokens=limit)))["max_output_tokens"] for limit in asked]
    assert limits == [99, 17, 16], "the API takes none below 16"


def test_a_strict_tool_is_one_here_too() -> None:
    tools = (ToolSpec(name="f", description="", parameters={}, strict=True), ToolSpec(name="g", description="", parameters={}))
    assert [tool["strict"] for tool in json.loads(encode(user("x"), tools=tools))["tools"]] == [True, False]


@pytest.mark.parametrize(
    ("part", "form"),
    [
        ({"type": "image_url", "image_url": "data:,"}, {"type": "input_image", "image_url": "data:,", "detail": "auto"}),
        ({"type": "file", "file": {"file_id": "f"}}, {"type": "input_file", "file_id": "f"}),
        ({"type": "input_audio", "input_audio": {"data": "x"}}, {"type": "input_audio", "input_audio": {"data": "x"}}),
        ({"type": "text", "text": "a\ud800"}, {"type": "input_text", "text": "a\ufffd"}),
    ],
    ids=["url-alone", "file", "audio", "half-a-character"],
)
def test_content_parts(part: dict[str, Any], form: dict[str, Any]) -> None:
    assert sent(user([part]))[0]["content"] == [form]


def test_what_an_assistant_said_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " "}, {"type": "refusal", "refusal": "b"}, {"type": "image_url"}]
    assert sent(Message(role=Role.ASSISTANT, content=parts))[0]["content"] == [
        {"type": "output_text", "text": "a"},
        {"type": "refusal", "refusal": "b"},
    ]


def test_reasoning_stands_before_what_came_of_it() -> None:
    replay = Replay(origin=ROUTE.origin, items=(SEALED, {**SEALED, "encrypted_content": "gBBB\ud800"}))
    kinds = [(item["type"], item.get("encrypted_content")) for item in sent(user("x"), said("y", ToolCall("c", "f", "{}"), replay=replay))]
    assert kinds == [
        ("message", None),
        ("reasoning", "gAAA"),
        ("reasoning", "gBBB\ufffd"),
        ("message", None),
        ("function_call", None),
    ]


def test_reasoning_without_anything_behind_it_is_left_out() -> None:
    assert sent(user("x"), said(" ", replay=Replay(origin=ROUTE.origin, items=(SEALED,)))) == sent(user("x"))


def test_long_ids_are_shortened_and_stay_apart() -> None:
    long = "c" * 100
    history = sent(
        said("", ToolCall(long + "1", "f", "{}"), ToolCall(long + "2", "f", "{}")),
        result(long + "2"),
        result(long + "1"),
        said("", ToolCall(long + "1", "f", "{}")),
        result(long + "1"),
    )
    ids = [item["call_id"] for item in history]
    assert (ids[2], ids[3], ids[5]) == (ids[1], ids[0], ids[4])
    assert len({*ids}) == 3
    assert all(len(call_id) <= 64 for call_id in ids)


texts = st.text(max_size=20)
calls = st.builds(ToolCall, st.sampled_from(["", "c", "call_0", "call"]), texts, st.sampled_from(["{}", "{", '{"a":1}']))
replays = st.sampled_from([None, Replay(origin=ROUTE.origin, items=(SEALED,)), Replay(origin="x", items=(SEALED,))])
messages = st.one_of(
    st.builds(user, texts),
    st.builds(lambda made, text, replay: said(text, *made, replay=replay), st.lists(calls, max_size=3), texts, replays),
    st.builds(result, st.sampled_from(["", "c", "call_0"]), texts),
)


@given(history=st.lists(messages, max_size=8))
def test_each_request_is_a_prefix_of_the_next(history: list[Message]) -> None:
    bodies = [encode(*history[:size], tools=TOOLS, system="s") for size in range(len(history) + 1)]
    for body, following in pairwise(bodies):
        assert following.startswith(body.removesuffix(b"]}"))
        json.loads(following)
