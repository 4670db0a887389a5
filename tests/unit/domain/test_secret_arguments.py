"""Secrets among arguments: found in schemas, and not shown."""

from typing import Any

import pytest

from app.domain.guardrails import ToolTraits
from app.domain.messages import ToolCall, ToolSpec
from app.domain.secret_arguments import ArgumentMask, HideAll, masked, secret_names

PASSWORD = {"type": "string", "format": "password"}


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"properties": {"user": {"type": "string"}, "password": PASSWORD}}, {"password"}),
        ({"properties": {"pin": {"type": "integer", "writeOnly": True}, "day": {"writeOnly": False}}}, {"pin"}),
        ({"properties": {"auth": {"type": "object", "properties": {"key": PASSWORD}}}}, {"key"}),
        ({"properties": {"keys": {"type": "array", "items": PASSWORD}}}, {"keys"}),
        ({"properties": {"key": {"anyOf": [PASSWORD, {"type": "null"}]}}}, {"key"}),
        ({"properties": {"key": {"$ref": "#/$defs/Secret"}}, "$defs": {"Secret": PASSWORD}}, {"key"}),
        ({"properties": {"key": {"$ref": "#/properties/key"}}}, set()),
        ({"oneOf": [{"properties": {"key": PASSWORD}}, {"properties": {"word": PASSWORD}}]}, {"key", "word"}),
        ({}, set()),
    ],
)
def test_a_schema_marks_what_is_secret(schema: dict[str, Any], names: set[str]) -> None:
    assert secret_names(schema) == names


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"user": "ann", "key": "s3"}', '{"user":"ann","key":"***"}'),
        ('{"a": [{"key": {"deep": "s3"}}]}', '{"a":[{"key":"***"}]}'),
        ('{"user":  "ann"}', '{"user":  "ann"}'),
        ('{"key": "s3', '"***"'),
    ],
)
def test_its_values_are_not_shown(arguments: str, shown: str) -> None:
    assert masked(arguments, frozenset({"key"})) == shown


def test_each_tool_has_its_own_secrets_and_an_unknown_one_those_of_all() -> None:
    tools = tuple(
        ToolSpec(name=name, description=".", parameters={"properties": {secret: PASSWORD}}) for name, secret in (("a", "x"), ("b", "y"))
    )
    mask = ArgumentMask(tools, {"b": ToolTraits(secrets=frozenset({"z"}))}, whole=frozenset({"mine"}))
    arguments = '{"x":1,"y":2,"z":3}'
    assert [mask.shown(ToolCall("c", name, arguments)) for name in ("a", "b", "nobody", "mine")] == [
        '{"x":"***","y":2,"z":3}',
        '{"x":1,"y":"***","z":"***"}',
        '{"x":"***","y":"***","z":"***"}',
        arguments,
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"), [('{"x":1,"y":[2]}', '{"x":"***","y":"***"}'), ("{}", "{}"), ("[1]", '"***"'), ("{", '"***"')]
)
def test_where_no_tool_is_known_no_value_is_shown(arguments: str, shown: str) -> None:
    assert HideAll().shown(ToolCall("c", "a", arguments)) == shown
