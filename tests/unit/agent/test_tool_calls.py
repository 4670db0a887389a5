"""The calls of one answer: all at once, each on its own, interruptible."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from typing_extensions import override

from app.agent.batch import MAX_CALLS
from app.agent.tool_calls import Progress, run_tool_calls
from app.clock import SystemClock
from app.domain.messages import ToolCall, ToolSpec
from app.domain.tools import FinishedCall, ToolContext, ToolOutcome
from app.ports import Toolbox
from app.tools.execution import ToolExecutor
from app.tools.pool import ToolPool
from app.tools.registry import ToolRegistry
from tests.fakes.tooling.builders import call_of, context_of, tool_of

CONTEXT = context_of("ok", "boom", "slow", "stubborn", "blocked")


class ScriptedToolbox(Toolbox):
    """Runs a function by the call's name."""

    def __init__(self, **tools: Callable[[ToolCall], Awaitable[str]]) -> None:
        self._tools = tools
        self.ran: list[str] = []

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return ()

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        raise NotImplementedError(toolsets)

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        assert context == CONTEXT
        self.ran.append(call.id)
        return ToolOutcome(output=await self._tools[call.name](call))


async def at_once(call: ToolCall) -> str:
    return f"{call.id} done"


def run(toolbox: Toolbox, *names: str, refused: dict[int, str] | None = None) -> AsyncGenerator[list[FinishedCall], None]:
    calls = [call_of(name, call_id=f"c{index}") for index, name in enumerate(names)]
    refusals = {index: ToolOutcome(output=text, is_error=True) for index, text in (refused or {}).items()}
    return finished_of(run_tool_calls(calls, refusals, toolbox, CONTEXT, clock=SystemClock()))


async def finished_of(steps: AsyncGenerator[Progress, None]) -> AsyncGenerator[list[FinishedCall], None]:
    """The calls as they finish; none of these tells anything on its way."""
    async with aclosing(steps):
        async for told, finished in steps:
            assert told == []
            yield finished


async def collect(batches: AsyncGenerator[list[FinishedCall], None]) -> list[list[FinishedCall]]:
    async with aclosing(batches):
        return [batch async for batch in batches]


def outputs(batches: Sequence[Sequence[FinishedCall]]) -> dict[int, str]:
    return {finished.index: finished.outcome.output for batch in batches for finished in batch}


async def test_no_calls_no_batches() -> None:
    assert await collect(run(ScriptedToolbox())) == []


async def test_all_calls_run_at_once() -> None:
    waiting = asyncio.Barrier(20)

    async def meet(call: ToolCall) -> str:
        await waiting.wait()
        return call.id

    batches = await asyncio.wait_for(collect(run(ScriptedToolbox(meet=meet), *["meet"] * 20)), 5)
    assert outputs(batches) == {index: f"c{index}" for index in range(20)}


async def test_calls_that_finish_together_come_together_in_call_order() -> None:
    release = asyncio.Event()

    async def wait(call: ToolCall) -> str:
        await release.wait()
        return "late"

    toolbox = ScriptedToolbox(wait=wait, now=at_once)
    async with aclosing(run(toolbox, "wait", "now", "now", "wait", "now")) as batches:
        first = await anext(batches)
        assert [finished.index for finished in first] == [1, 2, 4]
        assert [finished.call.id for finished in first] == ["c1", "c2", "c4"]
        release.set()
        assert [finished.index for finished in await anext(batches)] == [0, 3]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


async def test_the_duration_is_that_of_the_call() -> None:
    async def wait(call: ToolCall) -> str:
        await asyncio.sleep(0.05)
        return "x"

    [[finished]] = await collect(run(ScriptedToolbox(wait=wait), "wait"))
    assert 40 <= finished.duration_ms < 5_000


async def test_refused_calls_are_answered_and_not_run() -> None:
    toolbox = ScriptedToolbox(now=at_once)
    batches = await collect(run(toolbox, "now", "now", refused={0: "Not run: no."}))
    assert toolbox.ran == ["c1"]
    assert outputs(batches)[0] == "Not run: no."
    assert outputs(batches)[1] == "c1 done"


async def test_surplus_calls_are_answered_and_not_run() -> None:
    toolbox = ScriptedToolbox(now=at_once)
    batches = await collect(run(toolbox, *["now"] * (MAX_CALLS + 2)))
    assert len(toolbox.ran) == MAX_CALLS
    assert len(outputs(batches)) == MAX_CALLS + 2
    assert "too many calls in one answer" in outputs(batches)[MAX_CALLS + 1]


async def test_identical_calls_each_run() -> None:
    toolbox = ScriptedToolbox(now=at_once)
    await collect(run(toolbox, "now", "now"))
    assert toolbox.ran == ["c0", "c1"]


@pytest.mark.parametrize("error", [RuntimeError("secret detail"), asyncio.CancelledError(), ExceptionGroup("g", [ValueError()])])
async def test_a_failing_call_leaves_its_siblings_alone(error: BaseException) -> None:
    failed = asyncio.Event()

    async def boom(call: ToolCall) -> str:
        failed.set()
        raise error

    async def slow(call: ToolCall) -> str:
        await failed.wait()
        await asyncio.sleep(0)
        return "the real result"

    seen = outputs(await collect(run(ScriptedToolbox(slow=slow, boom=boom), "slow", "boom", "slow")))
    assert seen[0] == seen[2] == "the real result"
    assert "failed" in seen[1]
    assert "secret" not in seen[1]


async def test_closing_cancels_what_runs_and_waits_for_its_clean_up() -> None:
    steps: list[str] = []

    async def tidy(call: ToolCall) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("tidied")
        return "never"

    batches = run(ScriptedToolbox(tidy=tidy, now=at_once), "tidy", "now")
    assert [finished.index for finished in await anext(batches)] == [1]
    await batches.aclose()
    assert steps == ["tidied"]
    assert len(asyncio.all_tasks()) == 1


async def test_cancelling_the_reader_cancels_what_runs_and_passes_on() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(call: ToolCall) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    reader = asyncio.create_task(collect(run(ScriptedToolbox(wait=wait), "wait")))
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert cancelled.is_set()


@pytest.mark.parametrize("ending", [None, RuntimeError("late")], ids=["returns", "raises"])
async def test_a_call_that_swallows_its_cancellation_is_left_behind(ending: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    started, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(call: ToolCall) -> str:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        if ending is not None:
            raise ending
        return "at last"

    reader = asyncio.create_task(collect(run(ScriptedToolbox(stubborn=stubborn), "stubborn")))
    await started.wait()
    before = SystemClock().monotonic()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert SystemClock().monotonic() - before < 1
    assert not ended.is_set()
    assert "tool call c0 ignores its cancellation in turn turn_1" in caplog.text
    release.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert ended.is_set()


async def test_a_call_that_returns_when_cancelled_does_not_turn_an_interrupt_into_a_result() -> None:
    started = asyncio.Event()

    async def polite(call: ToolCall) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "failed"
        return "never"

    reader = asyncio.create_task(collect(run(ScriptedToolbox(polite=polite), "polite")))
    await started.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


@pytest.mark.parametrize(
    "error",
    [RuntimeError(), TimeoutError(), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), ExceptionGroup("g", [ValueError()])],
)
async def test_with_the_real_registry_one_of_three_fails_and_all_are_answered(error: BaseException) -> None:
    failed = asyncio.Event()

    async def ok(arguments: dict[str, Any], context: ToolContext) -> object:
        return "found"

    async def boom(arguments: dict[str, Any], context: ToolContext) -> object:
        failed.set()
        raise error

    async def slow(arguments: dict[str, Any], context: ToolContext) -> object:
        await failed.wait()
        return "the real result"

    registry = ToolRegistry([tool_of(ok, "ok"), tool_of(boom, "boom"), tool_of(slow, "slow")], ToolExecutor(5))
    batches = await collect(run(registry, "ok", "boom", "slow"))
    finished = sorted((finished for batch in batches for finished in batch), key=lambda call: call.index)
    assert [call.call.id for call in finished] == ["c0", "c1", "c2"]
    assert [call.outcome.is_error for call in finished] == [False, True, False]
    assert finished[1].outcome.output.startswith(f"The tool failed: {type(error).__name__}")
    assert finished[2].outcome.output == "the real result"


async def test_with_the_real_registry_neither_a_stubborn_tool_nor_a_blocked_thread_holds_an_interrupt() -> None:
    pool = ToolPool(1)
    release, in_thread, started = threading.Event(), threading.Event(), asyncio.Event()

    def block() -> object:
        in_thread.set()
        return release.wait(30)

    async def blocked(arguments: dict[str, Any], context: ToolContext) -> object:
        return await pool.run(block)

    async def stubborn(arguments: dict[str, Any], context: ToolContext) -> object:
        started.set()
        while not release.is_set():
            try:
                await asyncio.to_thread(release.wait, 30)
            except asyncio.CancelledError:
                continue
        return "at last"

    registry = ToolRegistry([tool_of(blocked, "blocked"), tool_of(stubborn, "stubborn")], ToolExecutor(60))
    reader = asyncio.create_task(collect(run(registry, "blocked", "stubborn")))
    await started.wait()
    await asyncio.to_thread(in_thread.wait, 5)
    before = SystemClock().monotonic()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert SystemClock().monotonic() - before < 1
    release.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    pool.close()
