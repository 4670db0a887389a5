"""The one way to run a call of a tool: arguments read and checked, in a task of its own, within its time, failures as results."""

import asyncio
import json
import logging
from typing import Any

from app.domain.messages import ToolCall, clean_json, clean_text
from app.domain.tools import CallStatus, ToolContext, ToolOutcome, refused
from app.tools.failures import Caught, failed, log_failure
from app.tools.places import CallPlaces
from app.tools.results import outcome
from app.tools.tool import PreparedTool

CLEANUP_S = 0.5
"""What a tool that ran out of time gets to clean up before it is left behind."""

_NEEDS_APPROVAL = ToolOutcome(
    output="Not run: this tool needs an approval, and nobody can be asked here.", is_error=True, needs_approval=True
)

DEFAULT_PLACES = 128
"""Calls at once, where nothing else is said."""

logger = logging.getLogger(__name__)


class ToolExecutor:
    """Runs calls. ``timeout_s`` is what a call may take whose tool says nothing else; ``places`` are shared with all others."""

    def __init__(self, timeout_s: float, places: CallPlaces | None = None) -> None:
        self._timeout_s = timeout_s
        self._places = places or CallPlaces(DEFAULT_PLACES)
        self._running: set[asyncio.Task[ToolOutcome]] = set()

    async def run(self, tool: PreparedTool, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Never raises for what the tool or the model did; cancellation passes through once the tool has ended.

        A tool that ignores its cancellation holds the call until it ends: who cancels decides how long to wait.
        """
        arguments = _read_arguments(call.arguments)
        if arguments is None:
            return refused("The arguments are not a JSON object. Send the call again with a JSON object as its arguments.")
        if tool.traits.approval and not context.approved:
            problems = tool.schema.problems(arguments, tool.secret_arguments)  # nobody is asked to allow what cannot be run
            return _misfit(problems) if problems else _NEEDS_APPROVAL
        async with self._places.taken(context.turn_id):
            return await self._timed(tool, arguments, context)

    async def _timed(self, tool: PreparedTool, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        # A task of its own: a timeout can leave it behind, and its CancelledError cannot be mistaken for ours.
        task = asyncio.create_task(_guarded(tool, arguments, context), name=f"tool {tool.spec.name}")
        self._running.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._running.discard)
        timeout_s = self._timeout_s if tool.timeout_s is None else tool.timeout_s
        try:
            await asyncio.wait((task,), timeout=timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        return _ended(task) if task.done() else await _time_out(task, context, timeout_s)


async def _time_out(task: asyncio.Task[ToolOutcome], context: ToolContext, timeout_s: float) -> ToolOutcome:
    task.cancel()
    await asyncio.wait((task,), timeout=CLEANUP_S)
    if not task.done():
        logger.warning("%s goes on after its timeout in turn %s; it is left behind", task.get_name(), context.turn_id)
    text = f"The tool did not finish within {timeout_s:g} s and was stopped; its effect is unknown."
    return ToolOutcome(output=text, is_error=True, status=CallStatus.TIMEOUT)


async def _guarded(tool: PreparedTool, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
    """The tool boundary: everything that can be raised in here is the tool's, except the end of this task."""
    result: ToolOutcome | None = None
    with Caught() as caught:
        problems = tool.schema.problems(arguments, tool.secret_arguments)
        result = _misfit(problems) if problems else outcome(await tool.handler(arguments, context))
    if result is not None:
        return result
    error = caught.error or RuntimeError("no result")
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        raise error
    log_failure(tool.spec.name, context, error)
    return failed(error)


def _ended(task: asyncio.Task[ToolOutcome]) -> ToolOutcome:
    """The outcome of a task that nobody here cancelled: a cancellation is the tool's own doing, so a failure like any other."""
    if task.cancelled():
        return failed(asyncio.CancelledError())
    error = task.exception()
    return task.result() if error is None else failed(error)


def _misfit(problems: list[str]) -> ToolOutcome:
    listed = "\n".join(f"- {problem}" for problem in problems)
    return refused(clean_text(f"The arguments do not fit the tool's parameters, so it was not run:\n{listed}"))


def _read_arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = clean_json(json.loads(text)) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
