"""Secrets among the arguments of tool calls: by which names they are known, and what is shown in their place.

A schema marks them by ``"format": "password"`` or ``"writeOnly": true``; a tool may name more. Names count at any depth: rather too much
is hidden than too little. The model's own history, and what its tool is given, has them whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from typing_extensions import override

from app.domain.guardrails import ToolTraits
from app.domain.messages import ToolCall, ToolSpec

HIDDEN: Final = "***"
_MAX_DEPTH: Final = 32
_PARTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


def secret_names(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names of properties that ``schema`` marks as secret, wherever in it they are."""
    return frozenset(name for name, part in _properties(schema, 0) if _is_secret(part, schema, 0))


def masked(arguments: str, names: frozenset[str]) -> str:
    """The JSON text ``arguments`` without the values of these names; as it is when it has none."""
    if not names:
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return json.dumps(HIDDEN)
    shown = _masked(value, names)
    return arguments if shown == value else json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


class ArgumentMask:
    """What is shown of the calls of one turn. ``whole`` are tools whose arguments are shown to whoever runs them: nothing is hidden."""

    def __init__(self, tools: Sequence[ToolSpec], traits: Mapping[str, ToolTraits], *, whole: frozenset[str] = frozenset()) -> None:
        self._tools = tools
        self._traits = traits
        self._whole = whole
        self._names: dict[str, frozenset[str]] = {}

    def shown(self, call: ToolCall) -> str:
        """The arguments of a call. Those of a tool that is not known are taken for what any other tool would have."""
        return call.arguments if call.name in self._whole else masked(call.arguments, self._of(call.name))

    def calls(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Calls as they are shown."""
        return tuple(ToolCall(call.id, call.name, self.shown(call)) for call in calls)

    def _of(self, name: str) -> frozenset[str]:
        found = self._names.get(name)
        if found is None:
            spec = next((tool for tool in self._tools if tool.name == name), None)
            if spec is None:
                return self._all
            found = self._names[name] = self._marked(spec)
        return found

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset().union(*(self._marked(tool) for tool in self._tools))

    def _marked(self, tool: ToolSpec) -> frozenset[str]:
        traits = self._traits.get(tool.name)
        return secret_names(tool.parameters) | (frozenset() if traits is None else traits.secrets)


class HideAll(ArgumentMask):
    """For where nobody knows the tools: every value is hidden."""

    def __init__(self) -> None:
        super().__init__((), {})

    @override
    def shown(self, call: ToolCall) -> str:
        """The names of the arguments alone."""
        try:
            value = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return json.dumps(HIDDEN)
        return masked(call.arguments, frozenset(value)) if isinstance(value, dict) else json.dumps(HIDDEN)


def _masked(value: Any, names: frozenset[str]) -> Any:
    match value:
        case dict():
            return {key: HIDDEN if key in names else _masked(item, names) for key, item in value.items()}
        case list():
            return [_masked(item, names) for item in value]
        case _:
            return value


def _properties(schema: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Every property that is declared anywhere in a schema, with its own schema."""
    if depth > _MAX_DEPTH:
        return
    match schema:
        case dict():
            declared = schema.get("properties")
            if isinstance(declared, dict):
                yield from declared.items()
            for part in schema.values():
                yield from _properties(part, depth + 1)
        case list():
            for part in schema:
                yield from _properties(part, depth + 1)
        case _:
            return


def _is_secret(part: Any, document: Mapping[str, Any], depth: int) -> bool:
    """Whether a property's value is secret, or one of several is that it may have or hold."""
    if not isinstance(part, dict) or depth > _MAX_DEPTH:
        return False
    if part.get("format") == "password" or part.get("writeOnly") is True:
        return True
    inner = [part.get("items"), _referred(part.get("$ref"), document)]
    for name in _PARTS:
        some = part.get(name)
        inner += some if isinstance(some, list) else []
    return any(_is_secret(one, document, depth + 1) for one in inner)


def _referred(reference: object, document: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    place: Any = document
    for token in reference.removeprefix("#/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, dict) else None
    return place
