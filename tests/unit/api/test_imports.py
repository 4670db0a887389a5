import json
from typing import Any

import pytest

from app.api.imports import read_history
from app.domain.errors import InvalidRequestError
from app.domain.messages import Role


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}} | fields


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        ({}, "/role"),
        ({"role": "function", "content": "x"}, "/role"),
        ({"role": ["user"], "content": "x"}, "/role"),
        ({"role": "user"}, "/content"),
        ({"role": "user", "content": " "}, "/content"),
        ({"role": "user", "content": []}, "/content"),
        ({"role": "user", "content": ["x"]}, "/content/0"),
        ({"role": "user", "content": [{"type": "video", "video": {}}]}, "/content/0/type"),
        ({"role": "user", "content": [{"type": "text"}]}, "/content/0"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}, "/content/0"),
        ({"role": "assistant", "content": ""}, ""),
        ({"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}, "/content/0"),
        ({"role": "assistant", "tool_calls": {}}, "/tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "/tool_calls/0"),
        ({"role": "assistant", "tool_calls": [call("{}", id="")]}, "/tool_calls/0/id"),
        ({"role": "assistant", "tool_calls": [call("{")]}, "/tool_calls/0/function/arguments"),
        ({"role": "assistant", "tool_calls": [call("[1]")]}, "/tool_calls/0/function/arguments"),
        ({"role": "assistant", "tool_calls": [call(7)]}, "/tool_calls/0/function/arguments"),
        ({"role": "assistant", "tool_calls": [call('{"a":' + "[" * 5_000 + "]" * 5_000 + "}")]}, "/tool_calls/0/function/arguments"),
        ({"role": "assistant", "tool_calls": [call(json.dumps({"a": nested(80)}))]}, "/tool_calls/0/function/arguments"),
        ({"role": "assistant", "content": "x", "reasoning": 5}, "/reasoning"),
        ({"role": "tool", "content": "x"}, "/tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "c"}, "/content"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "extra": nested(80)}]}, ""),
    ],
    ids=lambda value: value or "whole" if isinstance(value, str) else None,
)
def test_a_bad_message_is_refused_with_its_place(message: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_history([{"role": "user", "content": "first"}, message])

    assert refused.value.pointer == f"/messages/1{pointer}"


def test_a_system_message_later_on_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_history([{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}])

    assert refused.value.pointer == "/messages/1/role"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ('{"b": 1,  "a": 2}', '{"b": 1,  "a": 2}'),
        ("", "{}"),
        (None, "{}"),
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ('{"a": "x\\u0000"}', '{"a":"x\ufffd"}'),
        ('{"a": NaN}', '{"a":null}'),
    ],
    ids=["clean-text-stays", "empty", "missing", "object", "nul", "nan"],
)
def test_arguments_are_the_json_text_of_an_object(given: Any, stored: str) -> None:
    history = read_history([{"role": "assistant", "tool_calls": [call(given)]}])

    assert history.messages[0].tool_calls[0].arguments == stored


def test_text_parts_of_an_answer_are_joined_and_reasoning_is_kept() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "refusal", "refusal": "two"}]
    history = read_history([{"role": "assistant", "content": parts, "reasoning_content": "why"}])

    message = history.messages[0]
    assert (message.role, message.content, message.reasoning) == (Role.ASSISTANT, "one\ntwo", "why")
    assert history.system_prompt is None
