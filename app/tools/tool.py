"""One callable tool, as it is declared and as it is ready to run, and the error of a tool that cannot be offered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from app.domain.guardrails import NO_TRAITS, ToolTraits
from app.domain.messages import ToolSpec, clean_text
from app.domain.secret_arguments import secret_names
from app.domain.tools import CORE_TOOLSET, TOOL_NAME, ToolContext
from app.tools.schema import ParameterSchema, ToolConfigurationError

Handler: TypeAlias = Callable[[dict[str, Any], ToolContext], Awaitable[object]]
"""Runs one call with arguments that fit the schema. Returns a ``ToolOutcome``, text, or any value that can be shown as JSON; may raise."""

CORE = CORE_TOOLSET
OPERATOR = "operator"
WEB = "web"

_MAX_ECHO = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool as declared. ``origin`` says in errors where it comes from; ``parameters`` is a JSON schema.

    ``timeout_s`` is what one call may take; ``None``: what the process allows every call. ``secret_arguments`` are names of arguments
    that no log and no event shows. ``foreign``: a tenant or a server of a tenant declares it, not the operator.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    handler: Handler
    toolset: str
    origin: str
    traits: ToolTraits = NO_TRAITS
    timeout_s: float | None = None
    secret_arguments: frozenset[str] = frozenset()
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTool:
    """A tool that can be offered and run: checked, its schema compiled."""

    spec: ToolSpec
    schema: ParameterSchema
    handler: Handler
    toolset: str
    origin: str
    traits: ToolTraits
    timeout_s: float | None
    secret_arguments: frozenset[str]


def prepare(tool: RegisteredTool) -> PreparedTool:
    """Check a tool. Raises ToolConfigurationError for an illegal name, no description, or a schema that cannot be used."""
    where = f"Tool {echo(tool.name)} ({tool.origin})"
    if TOOL_NAME.fullmatch(tool.name) is None:
        raise ToolConfigurationError(f"{where}: a tool's name is 1 to 64 letters, digits, underscores and hyphens")
    if not tool.description.strip():
        raise ToolConfigurationError(f"{where}: it has no description")
    try:
        schema = ParameterSchema(tool.parameters, foreign=tool.foreign)
    except ToolConfigurationError as error:
        raise ToolConfigurationError(f"{where}: {error}") from error
    secrets = tool.secret_arguments | secret_names(schema.document)
    return PreparedTool(
        spec=ToolSpec(name=tool.name, description=clean_text(tool.description.strip()), parameters=schema.document),
        schema=schema,
        handler=tool.handler,
        toolset=tool.toolset,
        origin=tool.origin,
        traits=msgspec.structs.replace(tool.traits, secrets=secrets) if secrets else tool.traits,
        timeout_s=tool.timeout_s,
        secret_arguments=secrets,
    )


def echo(name: str) -> str:
    """A name that somebody else chose, short and harmless."""
    return ascii(name if len(name) <= _MAX_ECHO else f"{name[:_MAX_ECHO]}...")
