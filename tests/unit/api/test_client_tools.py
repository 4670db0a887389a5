"""Schemas of a client's tools."""

from typing import Any

import pytest

from app.api.client_tools import checked_tools
from app.domain.errors import InvalidRequestError


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "locate", "parameters": parameters}}


def nested(levels: int) -> dict[str, Any]:
    """A schema of objects in objects."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("parameters", [{"type": "object"}, {}, nested(50)], ids=["plain", "none", "nested"])
def test_schemas_of_objects_are_taken(parameters: dict[str, Any]) -> None:
    (spec,) = checked_tools([tool(parameters)], nested=True)
    assert spec.parameters["type"] == "object"


@pytest.mark.parametrize(
    ("parameters", "detail"),
    [
        ({"type": "object", "required": "a"}, "Not a valid JSON schema"),
        ({"type": "object", "properties": {"a": {"type": "nix"}}}, "Not a valid JSON schema"),
        (nested(150), "Nested too deeply"),
    ],
    ids=["required", "type", "deep"],
)
@pytest.mark.parametrize("below_function", [True, False])
def test_other_schemas_are_refused_with_their_place(parameters: dict[str, Any], detail: str, *, below_function: bool) -> None:
    given = tool(parameters)
    given = given if below_function else {"type": "function", **given["function"]}
    with pytest.raises(InvalidRequestError, match=detail) as refused:
        checked_tools([given], nested=below_function)
    assert refused.value.pointer == ("/tools/0/function/parameters" if below_function else "/tools/0/parameters")
