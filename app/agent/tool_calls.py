"""Runs the tool calls of one answer: all at once, each on its own, and handed on as they finish."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.agent.batch import MAX_CALLS
from app.domain.events import Fact
from app.domain.messages import ToolCall
from app.domain.tools import FinishedCall, ToolContext, ToolOutcome, refused
from app.ports import Clock, Toolbox

CLEANUP_S = 0.5
"""What interrupted calls get to clean up, all together, before they are left behind."""
_TOO_MANY = refused(f"Not run: too many calls in one answer; at most {MAX_CALLS} are run. Ask again for those still needed.")

_FAULT = ToolOutcome(output="The gateway failed to run this call; its effect is unknown.", is_error=True)

logger = logging.getLogger(__name__)
_left_behind: set[asyncio.Task["_Step"]] = set()
"""Calls that ignore their cancellation. The event loop holds tasks only weakly; without this they could vanish half-way."""


Telling: TypeAlias = Callable[[ToolCall], AsyncGenerator[Fact | ToolOutcome, None]]
"""Answers a call in steps: what happens on the way, and the result as the last."""
Progress: TypeAlias = tuple[list[Fact], list[FinishedCall]]


async def run_tool_calls(
    calls: Sequence[ToolCall],
    refusals: Mapping[int, ToolOutcome],
    toolbox: Toolbox,
    context: ToolContext,
    *,
    clock: Clock,
    elsewhere: Collection[int] = (),
    at_once: int = MAX_CALLS,
    tellings: Mapping[str, Telling] | None = None,
) -> AsyncGenerator[Progress, None]:
    """Start the calls and yield those that finished together, in call order; each call exactly once.

    ``tellings`` answer the calls of tools by name in place of the toolbox; what they tell comes in between, as facts.

    ``refusals`` are the results of calls that are not to be run, by position; ``elsewhere`` the positions of calls that are left out;
    ``at_once`` how many run together: with 1 a call begins when the one before it has ended. Close the iterator
    (``contextlib.aclosing``) or cancel its reader to interrupt: running calls are cancelled and left behind if they have not ended after
    ``CLEANUP_S``; results that nobody has pulled by then are lost.
    """
    unrun: list[FinishedCall] = []
    pending: set[asyncio.Task[_Step]] = set()
    places = asyncio.Semaphore(at_once)  # handed on in the order in which it was asked for
    for index, call in enumerate(calls):
        if index in elsewhere:
            continue
        refusal = refusals.get(index) if index < MAX_CALLS else _TOO_MANY
        if refusal is None:
            telling = (tellings or {}).get(call.name)
            work = (
                _run(index, call, toolbox, context, clock=clock, places=places) if telling is None else _begin(index, call, telling, clock)
            )
            pending.add(asyncio.create_task(work, name=f"tool call {call.id}"))
        else:
            unrun.append(FinishedCall(index=index, call=call, outcome=refusal, duration_ms=0))
    try:
        if unrun:
            yield [], unrun
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            steps = [task.result() for task in done]
            told = [step for step in steps if isinstance(step, _Told)]
            pending |= {asyncio.create_task(_advance(step.told), name=f"tool call {step.told.call.id}") for step in told}
            finished = [step for step in steps if isinstance(step, FinishedCall)]
            yield [step.fact for step in told], sorted(finished, key=lambda one: one.index)
    finally:
        await _interrupt(pending, context)


@dataclass(slots=True)
class _Told:
    """A step of a call that is told on its way. ``told`` goes on with it."""

    told: "_Telling"
    fact: Fact


@dataclass(slots=True)
class _Telling:
    index: int
    call: ToolCall
    steps: AsyncGenerator[Fact | ToolOutcome, None]
    clock: Clock
    started: float


_Step: TypeAlias = FinishedCall | _Told


async def _begin(index: int, call: ToolCall, telling: Telling, clock: Clock) -> _Step:
    return await _advance(_Telling(index, call, telling(call), clock, clock.monotonic()))


async def _advance(told: _Telling) -> _Step:
    """The next step. Whoever cancels it ends the call: its steps then come to their end before the cancellation passes on."""
    step: Fact | ToolOutcome | None = None
    try:
        step = await anext(told.steps, None)
    except Exception:
        logger.exception("call %s failed in the gateway", told.call.id)
        step = _FAULT
    finally:
        if step is None or isinstance(step, ToolOutcome):
            await told.steps.aclose()
    if step is not None and not isinstance(step, ToolOutcome):
        return _Told(told, step)
    outcome = _FAULT if step is None else step
    return FinishedCall(
        index=told.index, call=told.call, outcome=outcome, duration_ms=round((told.clock.monotonic() - told.started) * 1000)
    )


async def _run(index: int, call: ToolCall, toolbox: Toolbox, context: ToolContext, *, clock: Clock, places: asyncio.Semaphore) -> _Step:
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
        return _FAULT


async def _interrupt(tasks: set[asyncio.Task[_Step]], context: ToolContext) -> None:
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
