"""The registry: what it offers, what it refuses, and that nothing a tool does gets out of it."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.domain.errors import InvalidRequestError
from app.domain.guardrails import ToolTraits
from app.domain.tools import CallStatus, ToolContext, ToolOutcome
from app.tools.execution import ToolExecutor
from app.tools.pool import ToolPool
from app.tools.registry import ToolRegistry
from app.tools.schema import ToolConfigurationError
from app.tools.tool import OPERATOR, Handler
from tests.fakes.tooling.builders import call_of, context_of, tool_of

PROBE = context_of("probe")


def registry_of(handler: Handler, *, timeout_s: float = 5.0, parameters: dict[str, Any] | None = None) -> ToolRegistry:
    return ToolRegistry([tool_of(handler, parameters=parameters or {"type": "object"})], ToolExecutor(timeout_s))


async def ok(arguments: dict[str, Any], context: ToolContext) -> object:
    return arguments


def raising(error: BaseException) -> Handler:
    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        raise error

    return run


def test_toolsets_are_those_of_registered_tools() -> None:
    assert ToolRegistry([tool_of(ok)], ToolExecutor(1)).toolset_names() == ("core",)
    assert ToolRegistry([tool_of(ok, "b"), tool_of(ok, "a", toolset=OPERATOR)], ToolExecutor(1)).toolset_names() == ("core", "operator")


async def test_specs_are_sorted_by_name_and_limited_to_the_toolsets() -> None:
    registry = ToolRegistry([tool_of(ok, "b"), tool_of(ok, "c", toolset=OPERATOR), tool_of(ok, "a")], ToolExecutor(1))
    assert [spec.name for spec in await registry.specs(["core"])] == ["a", "b"]
    assert [spec.name for spec in await registry.specs(["operator", "core"])] == ["a", "b", "c"]
    assert await registry.specs([]) == ()


async def test_an_unknown_toolset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="available: core") as refused:
        await ToolRegistry([tool_of(ok)], ToolExecutor(1)).specs(["core", "x" * 500])
    assert len(refused.value.detail) < 200


@pytest.mark.parametrize("name", ["", "browser.tabs.open", "a b", "é", "x" * 65, "a\n", 'view" path='])
def test_an_illegal_name_is_refused_at_start(name: str) -> None:
    with pytest.raises(ToolConfigurationError, match=r"a test.*1 to 64 letters"):
        ToolRegistry([tool_of(ok, name)], ToolExecutor(1))


def test_a_name_is_given_once() -> None:
    with pytest.raises(ToolConfigurationError, match="the name is taken"):
        ToolRegistry([tool_of(ok), tool_of(ok)], ToolExecutor(1))


def test_a_schema_that_cannot_be_used_is_refused_at_start_with_the_tools_name() -> None:
    with pytest.raises(ToolConfigurationError, match=r"'probe' \(a test\): its parameters"):
        ToolRegistry([tool_of(ok, parameters={"type": "array"})], ToolExecutor(1))


@pytest.mark.parametrize("name", ["nope", "", "x" * 457, 'view_file" path=', "\ud800", "hidden"])
async def test_a_call_of_what_is_not_enabled_names_the_available_tools(name: str) -> None:
    registry = ToolRegistry([tool_of(ok), tool_of(ok, "hidden"), tool_of(ok, "other")], ToolExecutor(1))
    outcome = await registry.call(call_of(name), context_of("probe", "other", "gone"))
    assert outcome.is_error
    assert "Available tools: other, probe." in outcome.output
    assert len(outcome.output) < 200
    outcome.output.encode()


async def test_a_session_without_tools_is_told_so() -> None:
    outcome = await registry_of(ok).call(call_of(), context_of())
    assert outcome.output == "There is no tool 'probe'. No tools are available in this session."


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "null", "{", "nope", "[" * 100_000, '{"a":1}x'])
async def test_arguments_that_are_no_object_are_answered(arguments: str) -> None:
    outcome = await registry_of(ok).call(call_of(arguments=arguments), PROBE)
    assert outcome.is_error
    assert "JSON object" in outcome.output


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [("", "{}"), (" ", "{}"), ('{"a": NaN}', '{"a":null}'), ('{"a": "x\\u0000\\ud800"}', '{"a":"x\ufffd\ufffd"}')],
    ids=["empty", "blank", "nan", "nul and surrogate"],
)
async def test_arguments_reach_the_tool_clean(arguments: str, seen: str) -> None:
    assert await registry_of(ok).call(call_of(arguments=arguments), PROBE) == ToolOutcome(output=seen, toolset="core")


async def test_misfitting_arguments_are_answered_with_path_and_reason_and_not_run() -> None:
    ran = []

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        ran.append(arguments)
        return "ran"

    parameters = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
        "required": ["items"],
    }
    registry = registry_of(run, parameters=parameters)
    wrong = await registry.call(call_of(arguments=json.dumps({"items": [{"n": "x" * 10_000}]})), PROBE)
    assert wrong.is_error
    assert "items[0].n: 'xxx" in wrong.output
    assert len(wrong.output) < 600
    missing = await registry.call(call_of(), PROBE)
    assert "'items' is a required property" in missing.output
    assert ran == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(), "RuntimeError (no message)"),
        (TimeoutError(), "TimeoutError (no message)"),
        (ValueError("bad zone"), "ValueError: bad zone"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt (no message)"),
        (GeneratorExit(), "GeneratorExit (no message)"),
        (StopAsyncIteration(), "StopAsyncIteration (no message)"),
        (asyncio.CancelledError(), "CancelledError (no message)"),
        (
            ExceptionGroup("two", [KeyError("k"), ExceptionGroup("in", [OSError("o")])]),
            "ExceptionGroup: two (2 sub-exceptions): KeyError: 'k'; OSError: o",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_whatever_a_tool_raises_is_a_failed_result(error: BaseException, expected: str) -> None:
    outcome = await registry_of(raising(error)).call(call_of(), PROBE)
    assert outcome == ToolOutcome(output=f"The tool failed: {expected}", is_error=True, toolset="core")


async def test_a_tool_that_cancels_its_own_task_has_failed() -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    outcome = await registry_of(run).call(call_of(), PROBE)
    assert outcome.is_error
    assert "CancelledError" in outcome.output


async def test_the_models_text_has_no_credential_path_or_traceback_but_the_log_has_the_place(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("GET https://u:pw@x.example/?key=abc with Bearer sk-test-AAAA1111BBBB2222CCCC3333 in /srv/app/tool.py")
    outcome = await registry_of(raising(error)).call(call_of(), PROBE)
    assert outcome.output == "The tool failed: RuntimeError: GET https://[redacted]@x.example/?[redacted] with Bearer [redacted] in [path]"
    assert "turn_1" in caplog.text
    assert "test_registry.py" in caplog.text


async def test_a_result_that_cannot_be_shown_is_a_failure() -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        return (number for number in [1])

    outcome = await registry_of(run).call(call_of(), PROBE)
    assert outcome.is_error
    assert "TypeError: the tool returned a generator" in outcome.output


async def test_a_tool_may_give_its_outcome_itself() -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        return ToolOutcome(output="", is_error=True)

    assert await registry_of(run).call(call_of(), PROBE) == ToolOutcome(output="(no output)", is_error=True, toolset="core")


async def test_a_tool_that_takes_too_long_is_cancelled_and_answered() -> None:
    cancelled = asyncio.Event()

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    outcome = await registry_of(run, timeout_s=0.02).call(call_of(), PROBE)
    said = "The tool did not finish within 0.02 s and was stopped; its effect is unknown."
    assert outcome == ToolOutcome(output=said, is_error=True, status=CallStatus.TIMEOUT, toolset="core")
    assert cancelled.is_set()


async def test_a_tool_that_ignores_its_timeout_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise SystemExit("after all")

    outcome = await asyncio.wait_for(registry_of(run, timeout_s=0.02).call(call_of(), PROBE), 5)
    assert "did not finish" in outcome.output
    assert "left behind" in caplog.text
    release.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_result_given_after_the_timeout_is_not_taken_for_success() -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "fine"
        return "never"

    assert (await registry_of(run, timeout_s=0.02).call(call_of(), PROBE)).is_error


async def test_our_own_cancellation_passes_through_whatever_the_tool_returns() -> None:
    started = asyncio.Event()

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    task = asyncio.create_task(registry_of(run).call(call_of(), PROBE))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_blocked_thread_does_not_hold_a_cancellation() -> None:
    pool = ToolPool(1)
    started, release = threading.Event(), threading.Event()

    def block() -> object:
        started.set()
        return release.wait(30)

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        return await pool.run(block)

    task = asyncio.create_task(registry_of(run).call(call_of(), PROBE))
    await asyncio.to_thread(started.wait, 5)
    before = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - before < 1
    release.set()
    pool.close()


async def test_an_async_generator_as_result_is_a_failure() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        return numbers()

    assert "async_generator" in (await registry_of(run).call(call_of(), PROBE)).output


async def test_a_tool_that_needs_an_approval_is_not_run_without_one() -> None:
    ran: list[str] = []

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        ran.append(context.call_id)
        return "done"

    sized = {"type": "object", "properties": {"size": {"type": "integer"}}}
    tool = replace(tool_of(run, parameters=sized), traits=ToolTraits(approval=True))
    registry = ToolRegistry([tool], ToolExecutor(5))
    outcome = await registry.call(call_of("probe", "{}"), PROBE)
    assert (outcome.is_error, outcome.needs_approval, ran) == (True, True, [])
    assert "needs an approval" in outcome.output
    misfit = await registry.call(call_of("probe", '{"size": "big"}'), PROBE)
    assert (misfit.is_error, misfit.needs_approval, ran) == (True, False, [])
    assert "size" in misfit.output
    allowed = await registry.call(call_of("probe", "{}"), msgspec.structs.replace(PROBE, approved=True))
    assert (allowed, len(ran)) == (ToolOutcome(output="done", toolset="core"), 1)
