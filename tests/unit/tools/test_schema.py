"""Parameter schemas: refused at start, or good for every call."""

from typing import Any

import pytest

from app.tools.schema import ParameterSchema, ToolConfigurationError


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, '"type": "object"'),
        ({"type": "array"}, '"type": "object"'),
        ({"type": ["object", "null"]}, '"type": "object"'),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "not a valid JSON schema: properties.a.type"),
        ({"type": "object", "properties": []}, "not a valid JSON schema: properties"),
        ({"type": "object", "required": "a"}, "not a valid JSON schema: required"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "not a valid JSON schema: properties.a.pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}, "not inside the schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}, "not inside the schema"),
        ({"type": "object", "allOf": [{"$ref": "#/allOf/7"}]}, "not inside the schema"),
        ({"type": "object", "default": object()}, "not JSON"),
    ],
)
def test_a_schema_that_would_fail_later_is_refused_at_once(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolConfigurationError) as refused:
        ParameterSchema(schema)
    assert reason in str(refused.value)


def test_local_references_are_followed() -> None:
    schema = ParameterSchema({"type": "object", "properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "integer"}}})
    assert schema.problems({"a": 1}) == []
    assert schema.problems({"a": "b"}) == ["a: 'b' is not of type 'integer'"]


def test_a_tree_may_refer_to_itself() -> None:
    schema = ParameterSchema({"type": "object", "properties": {"child": {"$ref": "#"}}})
    assert schema.problems({"child": {"child": {}}}) == []
    assert schema.problems({"child": {"child": 1}}) == ["child.child: 1 is not of type 'object'"]


def test_only_the_first_problems_are_named() -> None:
    schema = ParameterSchema({"type": "object", "additionalProperties": {"type": "string"}})
    assert len(schema.problems({str(number): number for number in range(1000)})) == 3


def test_the_document_is_a_copy() -> None:
    given: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ("x", "y")}}}
    schema = ParameterSchema(given)
    given["properties"]["a"]["enum"] = ()
    assert schema.document["properties"] == {"a": {"enum": ["x", "y"]}}
    assert schema.problems({"a": "x"}) == []


ENDLESS = "^(a+)+$"
FOREIGN: dict[str, dict[str, Any]] = {
    "of a value": {"properties": {"x": {"type": "string", "pattern": ENDLESS}}},
    "deep inside": {"properties": {"x": {"anyOf": [{"allOf": [{"pattern": ENDLESS}]}]}}},
    "of names": {"patternProperties": {ENDLESS: {"type": "integer"}}},
    "of names, all others forbidden": {"patternProperties": {ENDLESS: {}}, "additionalProperties": False},
    "of names, in another keyword": {"propertyNames": {"pattern": ENDLESS}},
    "of names, the rest unevaluated": {"allOf": [{"patternProperties": {ENDLESS: {}}}], "unevaluatedProperties": False},
}


@pytest.mark.parametrize("schema", FOREIGN.values(), ids=FOREIGN)
def test_patterns_of_strangers_are_not_run(schema: dict[str, Any]) -> None:
    arguments = {"x": "a" * 40 + "!", "a" * 40 + "!": 1}  # would take longer than the test may
    assert ParameterSchema({"type": "object", **schema}, foreign=True).problems(arguments) == []


def test_everything_else_of_strangers_is_judged() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["y"], "additionalProperties": False}
    assert len(ParameterSchema(schema, foreign=True).problems({"x": "a", "z": 1})) == 3


def test_patterns_of_the_operator_are_run() -> None:
    schema = {"type": "object", "properties": {"x": {"pattern": "^a$"}}, "patternProperties": {"^n": {"type": "integer"}}}
    assert len(ParameterSchema(schema).problems({"x": "b", "n1": "c"})) == 2
