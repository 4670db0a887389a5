"""Tools of the client in OpenAI's format, read and checked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from app.domain.errors import InvalidRequestError
from app.domain.messages import ToolSpec, clean_json, clean_text

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_MAX_PROBLEM = 300
"""Characters of what is wrong with a schema: it may repeat the schema."""


def client_tools(tools: Sequence[Mapping[str, Any]] | None, *, nested: bool) -> tuple[ToolSpec, ...]:
    """The client's functions; ``nested``: below ``function``, as chat completions have them. Raises InvalidRequestError."""
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools or ()):
        place = f"/tools/{index}"
        if tool.get("type") != "function":
            raise InvalidRequestError("Only tools of type function can be called.", pointer=f"{place}/type")
        spec = _tool(tool.get("function") if nested else tool, f"{place}/function" if nested else place)
        if spec.name in specs:
            raise InvalidRequestError("Two tools have this name.", pointer=f"{place}/function/name" if nested else f"{place}/name")
        specs[spec.name] = spec
    return tuple(specs.values())


def checked_tools(tools: Sequence[Mapping[str, Any]] | None, *, nested: bool) -> tuple[ToolSpec, ...]:
    """The same, their parameters checked too: a JSON schema. Raises InvalidRequestError."""
    specs = client_tools(tools, nested=nested)
    for index, spec in enumerate(specs):
        pointer = f"/tools/{index}/function/parameters" if nested else f"/tools/{index}/parameters"
        try:
            Draft202012Validator.check_schema(spec.parameters)
        except SchemaError as error:
            raise InvalidRequestError(f"Not a valid JSON schema: {error.message[:_MAX_PROBLEM]}", pointer=pointer) from error
        except RecursionError as error:
            raise InvalidRequestError("Nested too deeply.", pointer=pointer) from error
    return specs


def _tool(function: object, place: str) -> ToolSpec:
    if not isinstance(function, Mapping):
        raise InvalidRequestError("Must be an object.", pointer=place)
    name, description, parameters = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequestError("Must be 1 to 64 letters, digits, underscores and hyphens.", pointer=f"{place}/name")
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError("Must be a string.", pointer=f"{place}/description")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequestError("Must be a JSON schema.", pointer=f"{place}/parameters")
    schema = clean_json(parameters or _NO_PARAMETERS)
    if schema.setdefault("type", "object") != "object":
        raise InvalidRequestError('The schema of a function\'s parameters has "type": "object".', pointer=f"{place}/parameters/type")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequestError("Must be true or false.", pointer=f"{place}/strict")
    return ToolSpec(name=name, description=clean_text(description or ""), parameters=schema, strict=strict is True)
