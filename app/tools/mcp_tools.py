"""MCP tools as tools of the gateway: what a server lists made fit for models, and what it answers made text."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from app.domain.guardrails import ToolTraits
from app.domain.messages import canonical_json
from app.domain.tools import ToolContext, ToolOutcome
from app.tools.mcp_names import exposed_names
from app.tools.mcp_session import ListedTool, McpResult, Target, toolset_of
from app.tools.schema import ToolConfigurationError
from app.tools.tool import Handler, PreparedTool, RegisteredTool, echo, prepare

MAX_TOOLS: Final = 128
"""Of one server: what some providers take at most, with all other tools."""
MAX_DESCRIPTION: Final = 4_096
MAX_SCHEMA_BYTES: Final = 32_768

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[object]]
"""Calls a tool by the server's name for it."""

logger = logging.getLogger(__name__)


def prepared_tools(target: Target, listed: Sequence[ListedTool], call: Call) -> dict[str, PreparedTool]:
    """The tools of a server that can be offered, by the names that models see. One that cannot is left out, and the log says so."""
    if len(listed) > MAX_TOOLS:
        logger.warning("the MCP server %s lists %d tools; those behind the first %d are left out", target.name, len(listed), MAX_TOOLS)
    offered = {tool.name: tool for tool in listed[:MAX_TOOLS]}
    tools = {}
    for name, exposed in exposed_names(target.name, offered).items():
        try:
            tools[exposed] = _prepared(target, offered[name], exposed, call)
        except ToolConfigurationError as error:
            logger.warning("a tool of the MCP server %s is left out: %s", target.name, error)
    return tools


def unlisted_tool(target: Target, exposed: str, reason: str) -> PreparedTool:
    """Stands for a tool of a server whose tools cannot be listed now: every call of it says why."""

    async def run(_arguments: dict[str, Any], _context: ToolContext) -> object:
        return unavailable(target, reason)

    return prepare(
        RegisteredTool(
            name=exposed,
            description="Not available now.",
            parameters={"type": "object"},
            handler=run,
            toolset=toolset_of(target),
            origin=_origin(target),
            traits=traits_of(target, read_only=False),
            timeout_s=target.timeout_s,
        )
    )


def traits_of(target: Target, *, read_only: bool) -> ToolTraits:
    """What guardrails have to know of a server's tool."""
    return ToolTraits(read_only=read_only, approval=target.needs_approval)


def unavailable(target: Target, reason: str) -> ToolOutcome:
    """The result of a call that could not be made."""
    return ToolOutcome(output=f"Not run: the MCP server {target.name} is not available. {reason}", is_error=True)


def outcome_of(result: McpResult) -> ToolOutcome:
    """What the model reads: text as it is, placeholders for everything else, structured content as JSON where there is no text."""
    parts = [part for block in result.blocks if (part := _part(block))]
    has_text = any(block.get("type") == "text" and block.get("text") for block in result.blocks)
    if result.structured is not None and not has_text:
        parts.insert(0, canonical_json(result.structured))
    return ToolOutcome(output="\n".join(parts), is_error=result.is_error)


def _prepared(target: Target, tool: ListedTool, exposed: str, call: Call) -> PreparedTool:
    if len(msgspec.json.encode(tool.parameters)) > MAX_SCHEMA_BYTES:
        raise ToolConfigurationError(f"Tool {echo(tool.name)}: its parameters take more than {MAX_SCHEMA_BYTES} bytes")
    return prepare(
        RegisteredTool(
            name=exposed,
            description=_description(target, tool),
            parameters=tool.parameters,
            handler=_handler(tool.name, call),
            toolset=toolset_of(target),
            origin=_origin(target),
            traits=traits_of(target, read_only=tool.read_only or tool.name in target.read_only_tools),
            timeout_s=target.timeout_s,
            foreign=True,
        )
    )


def _handler(name: str, call: Call) -> Handler:
    async def run(arguments: dict[str, Any], _context: ToolContext) -> object:
        return await call(name, arguments)

    return run


def _origin(target: Target) -> str:
    return f"MCP server {target.name}"


def _description(target: Target, tool: ListedTool) -> str:
    said = "".join(_printable(tool.description)).strip() or "".join(_printable(tool.title)).strip()
    text = said or f"{tool.name} of the MCP server {target.name}."
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 1]}…"


def _printable(text: str) -> Iterator[str]:
    """Without characters that nobody sees, in which instructions could hide from who looks the tools over."""
    return (character for character in text if character.isprintable() or character in "\n\t")


def _part(block: Mapping[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _placeholder(kind, len(data) * 3 // 4, block.get("mimeType"))
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"blob": str(blob), **resource}}:
            return _placeholder("resource", len(blob) * 3 // 4, resource.get("mimeType"))
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[link to a resource: {uri[:2_048]}]"
        case _:
            return f"[content of type {echo(str(block.get('type')))}, not shown]"


def _placeholder(kind: str, size: int, media_type: object) -> str:
    return f"[{kind} of {size:,} bytes ({str(media_type or 'unknown type')[:100]}), not shown]"
