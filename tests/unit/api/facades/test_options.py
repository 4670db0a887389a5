"""Parameters of OpenAI's protocols: what each becomes, what is ignored, and what is refused."""

from typing import Any

import pytest

from app.api.client_tools import client_tools
from app.api.facades.options import chat_options, response_options
from app.api.facades.schemas import ChatCompletionCreate, ResponseCreate
from app.domain.errors import InvalidRequestError
from app.domain.messages import ToolSpec
from app.domain.model import NO_OPTIONS, ModelOptions

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**members: Any) -> ModelOptions:
    return chat_options(ChatCompletionCreate.model_validate({"messages": [{"role": "user", "content": "x"}], **members}))


def response(**members: Any) -> ModelOptions:
    return response_options(ResponseCreate.model_validate({"input": "x", **members}))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param({}, NO_OPTIONS, id="nothing"),
        pytest.param({"temperature": 1, "top_p": 0.5}, ModelOptions(temperature=1, top_p=0.5), id="sampling"),
        pytest.param({"stop": "END"}, ModelOptions(stop=("END",)), id="one stop"),
        pytest.param({"stop": ["a", "b"]}, ModelOptions(stop=("a", "b")), id="stops"),
        pytest.param({"max_tokens": 5}, ModelOptions(max_output_tokens=5), id="max_tokens"),
        pytest.param({"max_tokens": 5, "max_completion_tokens": 7}, ModelOptions(max_output_tokens=7), id="max_completion_tokens"),
        pytest.param({"tool_choice": "required"}, ModelOptions(tool_choice="required"), id="required"),
        pytest.param(
            {"tool_choice": {"type": "function", "function": {"name": "f"}}}, ModelOptions(tool_choice="tool:f"), id="one function"
        ),
        pytest.param({"parallel_tool_calls": False}, ModelOptions(parallel_tool_calls=False), id="one call at a time"),
        pytest.param({"response_format": {"type": "text"}}, NO_OPTIONS, id="text"),
        pytest.param({"response_format": {"type": "json_object"}}, ModelOptions(response_format={"type": "json_object"}), id="json_object"),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
            ModelOptions(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}),
            id="json_schema",
        ),
        pytest.param({"reasoning_effort": "low"}, ModelOptions(reasoning_effort="low"), id="effort"),
        pytest.param(
            {"n": 1, "logprobs": False, "modalities": ["text"], "seed": 4, "user": "u", "store": True, "logit_bias": {"1": 2}},
            NO_OPTIONS,
            id="harmless ones",
        ),
    ],
)
def test_parameters_of_a_chat_completion(members: dict[str, Any], expected: ModelOptions) -> None:
    assert chat(**members) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param({"max_output_tokens": 16}, ModelOptions(max_output_tokens=16), id="limit"),
        pytest.param({"reasoning": {"effort": "high", "summary": "auto"}}, ModelOptions(reasoning_effort="high"), id="effort"),
        pytest.param({"tool_choice": {"type": "function", "name": "f"}}, ModelOptions(tool_choice="tool:f"), id="one function"),
        pytest.param(
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            ModelOptions(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}),
            id="json_schema",
        ),
        pytest.param({"text": {"format": {"type": "text"}, "verbosity": "low"}}, NO_OPTIONS, id="text"),
        pytest.param({"background": False, "truncation": "auto", "include": []}, NO_OPTIONS, id="harmless ones"),
    ],
)
def test_parameters_of_a_response(members: dict[str, Any], expected: ModelOptions) -> None:
    assert response(**members) == expected


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"n": 2}, "/n"),
        ({"logprobs": True}, "/logprobs"),
        ({"top_logprobs": 3}, "/top_logprobs"),
        ({"audio": {"voice": "alloy"}}, "/audio"),
        ({"modalities": ["text", "audio"]}, "/modalities"),
        ({"functions": []}, "/functions"),
        ({"function_call": "auto"}, "/function_call"),
        ({"web_search_options": {}}, "/web_search_options"),
        ({"tool_choice": "some"}, "/tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "/tool_choice"),
        ({"stop": ["ok", ""]}, "/stop"),
        ({"reasoning_effort": "heroic"}, "/reasoning_effort"),
        ({"response_format": {"type": "xml"}}, "/response_format/type"),
        ({"response_format": {"type": "json_schema"}}, "/response_format/json_schema"),
    ],
    ids=str,
)
def test_what_a_chat_completion_cannot_ask(members: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(**members)
    assert raised.value.pointer == pointer


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"background": True}, "/background"),
        ({"prompt": {"id": "pmpt_1"}}, "/prompt"),
        ({"reasoning": {"effort": 3}}, "/reasoning/effort"),
        ({"text": {"format": "json"}}, "/text/format"),
    ],
    ids=str,
)
def test_what_a_response_cannot_ask(members: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        response(**members)
    assert raised.value.pointer == pointer


def test_the_clients_functions_become_tools() -> None:
    nested = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}]
    flat = [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}]
    plain = ToolSpec(name="f", description="d", parameters=SCHEMA)
    assert client_tools(nested, nested=True) == (ToolSpec(name="f", description="d", parameters=SCHEMA, strict=True),)
    assert client_tools(flat, nested=False) == client_tools([{**flat[0], "strict": None}], nested=False) == (plain,)
    (bare,) = client_tools([{"type": "function", "function": {"name": "g"}}], nested=True)
    assert bare == ToolSpec(name="g", description="", parameters={"type": "object", "properties": {}})
    assert client_tools(None, nested=True) == ()


@pytest.mark.parametrize(
    ("tools", "pointer"),
    [
        ([{"type": "web_search"}], "/tools/0/type"),
        ([{"type": "function"}], "/tools/0/function"),
        ([{"type": "function", "function": {"name": "no spaces"}}], "/tools/0/function/name"),
        ([{"type": "function", "function": {"name": "f", "description": 3}}], "/tools/0/function/description"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "/tools/0/function/parameters"),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}], "/tools/0/function/strict"),
        ([{"type": "function", "function": {"name": "f"}}] * 2, "/tools/1/function/name"),
    ],
    ids=str,
)
def test_bad_functions_are_named(tools: list[dict[str, Any]], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        client_tools(tools, nested=True)
    assert raised.value.pointer == pointer
