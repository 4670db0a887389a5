"""The registry: every tool of this process, and the one way to run a call."""

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidRequestError
from app.domain.guardrails import ToolTraits
from app.domain.messages import ToolCall, ToolSpec, clean_json, clean_text
from app.domain.tools import ToolContext, ToolOutcome
from app.tools.failures import Caught, failed, log_failure
from app.tools.results import outcome
from app.tools.schema import ParameterSchema
from app.tools.tool import Handler, RegisteredTool, ToolConfigurationError

CLEANUP_S = 0.5
"""What a tool that ran out of time gets to clean up before it is left behind."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What all providers accept as a tool's name."""
_MAX_ECHO = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    spec: ToolSpec
    schema: ParameterSchema
    handler: Handler
    toolset: str
    origin: str


class ToolRegistry:
    """The tools of this process, as :class:`app.ports.Toolbox`. Fixed once built."""

    def __init__(self, tools: Iterable[RegisteredTool], *, timeout_s: float) -> None:
        """Raises ToolConfigurationError for an illegal or taken name, no description, or a schema that cannot be used."""
        self._timeout_s = timeout_s
        self._entries: dict[str, _Entry] = {}
        self._traits: dict[str, ToolTraits] = {}
        self._running: set[asyncio.Task[ToolOutcome]] = set()
        for tool in tools:
            self._register(tool)

    def toolset_names(self) -> tuple[str, ...]:
        """Every toolset that a session may enable."""
        return tuple(sorted({entry.toolset for entry in self._entries.values()}))

    def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        """The tools of these toolsets, sorted by name. Raises InvalidRequestError for an unknown toolset."""
        wanted = frozenset(toolsets)
        known = self.toolset_names()
        for toolset in sorted(wanted.difference(known)):
            raise InvalidRequestError(f"Unknown toolset {_echo(toolset)}; available: {', '.join(known)}.", pointer="/toolsets")
        return tuple(self._entries[name].spec for name in sorted(self._entries) if self._entries[name].toolset in wanted)

    def traits(self) -> Mapping[str, ToolTraits]:
        """What guardrails have to know of tools, by name."""
        return self._traits

    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Never raises for what the tool or the model did; cancellation passes through once the tool has ended.

        A tool that ignores its cancellation holds the call until it ends: who cancels decides how long to wait.
        """
        entry = self._entries.get(call.name) if call.name in context.enabled else None
        if entry is None:
            return self._unknown(call.name, context)
        arguments = _read_arguments(call.arguments)
        if arguments is None:
            return _error("The arguments are not a JSON object. Send the call again with a JSON object as its arguments.")
        return await self._run(entry, arguments, context)

    def _register(self, tool: RegisteredTool) -> None:
        where = f"Tool {_echo(tool.name)} ({tool.origin})"
        if _NAME.fullmatch(tool.name) is None:
            raise ToolConfigurationError(f"{where}: a tool's name is 1 to 64 letters, digits, underscores and hyphens")
        if tool.name in self._entries:
            raise ToolConfigurationError(f"{where}: the name is taken ({self._entries[tool.name].origin})")
        if not tool.description.strip():
            raise ToolConfigurationError(f"{where}: it has no description")
        try:
            schema = ParameterSchema(tool.parameters)
        except ToolConfigurationError as error:
            raise ToolConfigurationError(f"{where}: {error}") from error
        spec = ToolSpec(name=tool.name, description=clean_text(tool.description.strip()), parameters=schema.document)
        self._traits[tool.name] = tool.traits
        self._entries[tool.name] = _Entry(spec=spec, schema=schema, handler=tool.handler, toolset=tool.toolset, origin=tool.origin)

    def _unknown(self, name: str, context: ToolContext) -> ToolOutcome:
        names = sorted(context.enabled.intersection(self._entries))
        available = f"Available tools: {', '.join(names)}." if names else "No tools are available in this session."
        return _error(f"There is no tool {_echo(name)}. {available}")

    async def _run(self, entry: _Entry, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        # A task of its own: a timeout can leave it behind, and its CancelledError cannot be mistaken for ours.
        task = asyncio.create_task(_guarded(entry, arguments, context), name=f"tool {entry.spec.name}")
        self._running.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait((task,), timeout=self._timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        return _ended(task) if task.done() else await self._time_out(task, context)

    async def _time_out(self, task: asyncio.Task[ToolOutcome], context: ToolContext) -> ToolOutcome:
        task.cancel()
        await asyncio.wait((task,), timeout=CLEANUP_S)
        if not task.done():
            logger.warning("%s goes on after its timeout in turn %s; it is left behind", task.get_name(), context.turn_id)
        return _error(f"The tool did not finish within {self._timeout_s:g} s and was stopped; its effect is unknown.")


async def _guarded(entry: _Entry, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
    """The tool boundary: everything that can be raised in here is the tool's, except the end of this task."""
    result: ToolOutcome | None = None
    with Caught() as caught:
        problems = entry.schema.problems(arguments)
        result = _misfit(problems) if problems else outcome(await entry.handler(arguments, context))
    if result is not None:
        return result
    error = caught.error or RuntimeError("no result")
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        raise error
    log_failure(entry.spec.name, context, error)
    return failed(error)


def _ended(task: asyncio.Task[ToolOutcome]) -> ToolOutcome:
    """The outcome of a task that nobody here cancelled: a cancellation is the tool's own doing, so a failure like any other."""
    if task.cancelled():
        return failed(asyncio.CancelledError())
    error = task.exception()
    return task.result() if error is None else failed(error)


def _misfit(problems: list[str]) -> ToolOutcome:
    listed = "\n".join(f"- {problem}" for problem in problems)
    return _error(clean_text(f"The arguments do not fit the tool's parameters, so it was not run:\n{listed}"))


def _read_arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = clean_json(json.loads(text)) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _echo(name: str) -> str:
    """A name that somebody else chose, short and harmless."""
    return ascii(name if len(name) <= _MAX_ECHO else f"{name[:_MAX_ECHO]}...")


def _error(output: str) -> ToolOutcome:
    return ToolOutcome(output=output, is_error=True)
