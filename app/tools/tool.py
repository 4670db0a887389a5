"""One callable tool as the registry holds it, and the error of a tool that cannot be offered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.domain.guardrails import NO_TRAITS, ToolTraits
from app.domain.tools import ToolContext

Handler: TypeAlias = Callable[[dict[str, Any], ToolContext], Awaitable[object]]
"""Runs one call with arguments that fit the schema. Returns a ``ToolOutcome``, text, or any value that can be shown as JSON; may raise."""

CORE = "core"
OPERATOR = "operator"


class ToolConfigurationError(Exception):
    """A tool cannot be offered as configured. Raised at start, with the tool and where it comes from in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool on its way into the registry. ``origin`` says in start-up errors where it comes from; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    handler: Handler
    toolset: str
    origin: str
    traits: ToolTraits = NO_TRAITS
