"""Runs the tool calls of one answer: all at once, each on its own, and handed on as they finish."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

from app.agent.batch import MAX_CALLS
from app.domain.messages import ToolCall
from app.domain.tools import FinishedCall, ToolContext, ToolOutcome
from app.ports import Clock, Toolbox

CLEANUP_S = 0.5
"""What interrupted calls get to clean up, all together, before they are left behind."""
_TOO_MANY = ToolOutcome(
    output=f"Not run: too many calls in one answer; at most {MAX_CALLS} are run. Ask again for those still needed.", is_error=True
)

logger = logging.getLogger(__name__)
_left_behind: set[asyncio.Task["FinishedCall"]] = set()
"""Calls that ignore their cancellation. The event loop holds tasks only weakly; without this they could vanish half-way."""


async def run_tool_calls(
    calls: Sequence[ToolCall],
    refusals: Mapping[int, ToolOutcome],
    toolbox: Toolbox,
    context: ToolContext,
    *,
    clock: Clock,
    elsewhere: Collection[int] = (),
    in_order: bool = False,
) -> AsyncGenerator[list[FinishedCall], None]:
    """Start every call at once and yield those that finished together, in call order; each call exactly once.

    ``refusals`` are the results of calls that are not to be run, by position; ``elsewhere`` the positions of calls that are left out;
    ``in_order``: a call begins when the one before it has ended. Close the iterator (``contextlib.aclosing``) or cancel its
    reader to interrupt: running calls are cancelled and left behind if they have not ended after ``CLEANUP_S``; results that nobody has
    pulled by then are lost.
    """
    unrun: list[FinishedCall] = []
    pending: set[asyncio.Task[FinishedCall]] = set()
    places = asyncio.Semaphore(1 if in_order else MAX_CALLS)  # handed on in the order in which it was asked for
    for index, call in enumerate(calls):
        if index in elsewhere:
            continue
        refusal = refusals.get(index) if index < MAX_CALLS else _TOO_MANY
        if refusal is None:
            pending.add(asyncio.create_task(_run(index, call, toolbox, context, clock=clock, places=places), name=f"tool call {call.id}"))
        else:
            unrun.append(FinishedCall(index=index, call=call, outcome=refusal, duration_ms=0))
    try:
        if unrun:
            yield unrun
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            yield sorted((task.result() for task in done), key=lambda finished: finished.index)
    finally:
        await _interrupt(pending, context)


async def _run(
    index: int, call: ToolCall, toolbox: Toolbox, context: ToolContext, *, clock: Clock, places: asyncio.Semaphore
) -> FinishedCall:
    async with places:
        started = clock.monotonic()
        outcome = await _outcome(call, toolbox, context)
    return FinishedCall(index=index, call=call, outcome=outcome, duration_ms=round((clock.monotonic() - started) * 1000))


async def _outcome(call: ToolCall, toolbox: Toolbox, context: ToolContext) -> ToolOutcome:
    try:
        return await toolbox.call(call, context)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: it came out of the call itself and must not be taken for an interrupt of the turn.
        return ToolOutcome(output="The tool failed: CancelledError (no message)", is_error=True)
    except Exception:
        # The boundary of one call: a fault in it must not cost its siblings their results.
        logger.exception("call %s failed in the gateway in turn %s", call.id, context.turn_id)
        return ToolOutcome(output="The gateway failed to run this call; its effect is unknown.", is_error=True)


async def _interrupt(tasks: set[asyncio.Task[FinishedCall]], context: ToolContext) -> None:
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    _left_behind.update(tasks)
    for task in tasks:
        task.add_done_callback(_left_behind.discard)
    _, stuck = await asyncio.wait(tasks, timeout=CLEANUP_S)
    for task in stuck:
        logger.warning("%s ignores its cancellation in turn %s; it is left behind", task.get_name(), context.turn_id)
