"""JSON schemas of parameters: checked once when a tool is registered, applied to the arguments of every call."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError

MAX_PROBLEMS = 3
"""Problems named in one answer: enough to mend a call, not a flood."""
_NAMES_ONLY = frozenset({"additionalProperties", "dependentRequired", "required"})
"""What of a schema is told of by the names of properties alone."""
MAX_PROBLEM = 300
"""Characters of one problem: a validator's message repeats the value it refuses."""


class ToolConfigurationError(Exception):
    """A tool cannot be offered as configured. Raised when it is registered, with the tool and where it comes from in the message."""


def _passed_over(*_: object) -> Iterator[ValidationError]:
    return iter(())


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
    if "patternProperties" not in schema:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, allowed, instance, schema)


_extended: Callable[..., type[Draft202012Validator]] = validators.extend
_WithoutPatterns = _extended(
    Draft202012Validator,
    {
        "pattern": _passed_over,
        "patternProperties": _passed_over,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _passed_over,
    },
)
"""A pattern of a stranger's can keep the interpreter busy for years over thirty characters, and the event loop with it."""


class ParameterSchema:
    """A compiled schema. ``document`` is the caller's own copy of the schema, of plain JSON values."""

    def __init__(self, schema: dict[str, Any], *, foreign: bool = False) -> None:
        """``foreign``: it is a stranger's, whose regular expressions are left to who runs the tool.

        Raises ToolConfigurationError when ``schema`` cannot be used for a tool."""
        self.document: dict[str, Any] = _plain_copy(schema)
        if self.document.get("type") != "object":
            raise ToolConfigurationError('its parameters are not a JSON schema with "type": "object"')
        try:
            Draft202012Validator.check_schema(self.document)
        except SchemaError as error:
            raise ToolConfigurationError(f"its parameters are not a valid JSON schema: {_problem(error)}") from error
        for reference in _references(self.document):
            # Also keeps the validator from fetching schemas over the network.
            if not _resolves(self.document, reference):
                raise ToolConfigurationError(f"its parameters refer to {reference!r}, which is not inside the schema")
        self._validator = (_WithoutPatterns if foreign else Draft202012Validator)(self.document)

    def problems(self, arguments: dict[str, Any], secrets: frozenset[str] = frozenset()) -> list[str]:
        """Where ``arguments`` do not fit, as ``path: reason``; empty when they do. No reason repeats what these names hold."""
        return [_problem(error, secrets) for error in islice(self._validator.iter_errors(arguments), MAX_PROBLEMS)]


def _plain_copy(schema: object) -> dict[str, Any]:
    try:
        copy = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ToolConfigurationError(f"its parameters are not JSON: {error}") from error
    if not isinstance(copy, dict):
        raise ToolConfigurationError("its parameters are not a JSON object")
    return copy


def _problem(error: ValidationError | SchemaError, secrets: frozenset[str] = frozenset()) -> str:
    path = error.json_path.removeprefix("$").lstrip(".")
    if _tells(error, secrets):
        return f"{path[:MAX_PROBLEM]}: its value does not fit ({error.validator})"
    reason = error.message if len(error.message) <= MAX_PROBLEM else f"{error.message[:MAX_PROBLEM]}…"
    return f"{path[:MAX_PROBLEM]}: {reason}" if path else reason


def _tells(error: ValidationError | SchemaError, secrets: frozenset[str]) -> bool:
    """Whether a message repeats a secret: it is about one, or about something that holds one."""
    if not secrets or error.validator in _NAMES_ONLY:
        return False
    return not secrets.isdisjoint(map(str, error.absolute_path)) or _holds(error.instance, secrets)


def _holds(value: object, secrets: frozenset[str]) -> bool:
    match value:
        case dict():
            return not secrets.isdisjoint(value) or any(_holds(item, secrets) for item in value.values())
        case list():
            return any(_holds(item, secrets) for item in value)
        case _:
            return False


def _references(schema: object) -> Iterator[str]:
    match schema:
        case dict():
            for key, value in schema.items():
                if key in {"$ref", "$dynamicRef"} and isinstance(value, str):
                    yield value
                yield from _references(value)
        case list():
            for item in schema:
                yield from _references(item)
        case _:
            return


def _resolves(document: object, reference: str) -> bool:
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    place = document
    for token in reference.removeprefix("#/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        match place:
            case dict() if key in place:
                place = place[key]
            case list() if key.isascii() and key.isdigit() and int(key) < len(place):
                place = place[int(key)]
            case _:
                return False
    return isinstance(place, dict | bool)
