"""Guardrails as a turn meets them: notes in results, calls that are not run, and an end."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest
from typing_extensions import override

from app.agent.batch import INVALID_CALLS
from app.agent.facts import LoopFact
from app.domain.conversation_events import BudgetWarning, GuardrailHalt, GuardrailWarning
from app.domain.events import MessageCompleted, ToolCompleted
from app.domain.guardrails import GuardrailCode, GuardrailThresholds, HardStopAfter, WarnAfter
from app.domain.messages import Role, ToolCall
from app.domain.model import ModelReply
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.turns import Completed, CompletedReason
from tests.unit.agent.scenes import Played, Scene, TalkingModel, Workbench, asks, opening, says

STOPS = GuardrailThresholds(hard_stop=True)
FAILS = RuntimeError("it failed")


def again(*names: str, times: int) -> Iterator[ModelReply]:
    """Replies that each call one tool, round and round, with the same arguments and new ids."""
    for number in range(times * len(names)):
        name = names[number % len(names)]
        yield says("", ToolCall(f"c{number}", name, json.dumps({"q": "a"})))


def codes(played: Played) -> list[tuple[GuardrailCode, int]]:
    return [(event.code, event.count) for event in played.of(GuardrailWarning)]


async def test_a_call_that_fails_again_is_warned_in_its_result_and_goes_on() -> None:
    played = await Scene(bench=Workbench(lambda _: FAILS)).play(*again("save", times=7), says("I give up."))
    assert played.results[0] == "it failed"
    assert played.results[1].startswith("it failed\n\n[Tool loop warning: repeated_exact_failure_warning; count=2; ")
    assert [count for _, count in codes(played)] == [2, 3, 4, 5, 6, 7]
    assert played.of(GuardrailHalt) == []
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="I give up.")
    events = {event.tool_call_id: event for event in played.of(GuardrailWarning)}
    completed = {event.tool_call_id: event for event in played.of(ToolCompleted)}
    assert all(event.message in completed[call_id].output for call_id, event in events.items())


async def test_with_hard_stop_the_sixth_failing_call_is_answered_unrun() -> None:
    bench = Workbench(lambda _: FAILS)
    played = await Scene(bench=bench, guardrails=STOPS).play(*again("save", times=6), says("I give up."))
    assert len(bench.ran) == 5
    blocked = json.loads(played.results[5])
    assert blocked["guardrail"] == {"code": "repeated_exact_failure_block", "count": 5}
    assert codes(played)[-1] == (GuardrailCode.REPEATED_EXACT_FAILURE_BLOCK, 5)
    assert played.rows[-2].message.is_error
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="I give up.")


async def test_a_model_that_insists_is_halted() -> None:
    bench = Workbench(lambda _: FAILS)
    played = await Scene(bench=bench, guardrails=STOPS).play(*again("save", times=20))
    assert (len(bench.ran), len(played.model.requests)) == (5, 8)
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.reason is CompletedReason.GUARDRAIL_HALT
    (halt,) = played.of(GuardrailHalt)
    assert (halt.code, halt.count) == ("same_tool_failure_halt", 8)
    assert halt.message == played.end.outcome.output
    assert played.transcript[-1] == (Role.ASSISTANT, halt.message)
    assert [event.message.content for event in played.of(MessageCompleted)][-1] == halt.message
    assert "[Tool loop stopped: same_tool_failure_halt; count=8; " in played.results[-1]
    assert played.events.index(halt) < played.events.index(played.of(MessageCompleted)[-1])


@pytest.mark.parametrize("arguments", ["ab", "abc", "abcde"])
async def test_a_cycle_is_warned_and_then_stopped(arguments: str) -> None:
    bench = Workbench(lambda call: f"saved {call.arguments}")
    calls = [says("", ToolCall(f"c{n}", "save", json.dumps({"q": arguments[n % len(arguments)]}))) for n in range(60)]
    played = await Scene(bench=bench, guardrails=STOPS).play(*calls)
    assert len(played.model.requests) == 5 * len(arguments)
    (halt,) = played.of(GuardrailHalt)
    assert (halt.code, halt.count) == ("tool_call_cycle_halt", 5)
    cycles = [count for code, count in codes(played) if code is GuardrailCode.TOOL_CALL_CYCLE_WARNING]
    assert cycles[0] == 3


def changing() -> Callable[[ToolCall], str]:
    numbers = iter(range(1_000))
    return lambda call: f"{call.name}: {next(numbers)} %"


@pytest.mark.parametrize("names", [("poll",), ("poll", "lookup"), ("save", "lookup")], ids=["status", "with status", "new results"])
async def test_honest_polling_goes_on(names: tuple[str, ...]) -> None:
    played = await Scene(bench=Workbench(changing()), guardrails=STOPS).play(*again(*names, times=12), says("Ready."))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="Ready.")
    assert {code for code, _ in codes(played)} <= {GuardrailCode.TOOL_CALL_CYCLE_WARNING}


async def test_a_status_that_does_not_change_is_no_fault_of_a_poll() -> None:
    played = await Scene(bench=Workbench(lambda _: "running"), guardrails=STOPS).play(*again("poll", times=12), says("Ready."))
    assert codes(played) == []


@pytest.mark.parametrize(
    ("hard_stop", "background", "stops"),
    [(None, False, False), (None, True, True), (False, True, False), (True, False, True)],
    ids=["watched", "background", "switched off", "switched on"],
)
async def test_turns_are_stopped_in_the_background_or_by_setting(hard_stop: bool | None, *, background: bool, stops: bool) -> None:
    scene = Scene(bench=Workbench(lambda _: FAILS), background=background, guardrails=GuardrailThresholds(hard_stop=hard_stop))
    played = await scene.play(*again("save", times=12), says("I give up."))
    assert isinstance(played.end.outcome, Completed)
    assert (played.end.outcome.reason is CompletedReason.GUARDRAIL_HALT) is stops


async def test_thresholds_are_the_tenants() -> None:
    thresholds = GuardrailThresholds(
        hard_stop=True, warn_after=WarnAfter(exact_failure=4), hard_stop_after=HardStopAfter(same_tool_failure=6)
    )
    played = await Scene(bench=Workbench(lambda _: FAILS), guardrails=thresholds).play(*again("save", times=12))
    exact = [count for code, count in codes(played) if code is GuardrailCode.REPEATED_EXACT_FAILURE_WARNING]
    assert exact[0] == 4
    assert len(played.model.requests) == 6


@pytest.mark.parametrize("kind", ["unknown tool", "bad arguments"])
@pytest.mark.parametrize("hard_stop", [False, True])
async def test_calls_that_are_all_invalid_three_times_running_end_the_turn(kind: str, *, hard_stop: bool) -> None:
    def wrong(number: int) -> ModelReply:
        if kind == "unknown tool":
            return asks("invented", "made_up", q=number)
        return says("", ToolCall(f"c{number}", "save", "{}"), bad={f"c{number}": "cut off"})

    bench = Workbench()
    thresholds = GuardrailThresholds(hard_stop=hard_stop)
    played = await Scene(bench=bench, guardrails=thresholds).play(*(wrong(number) for number in range(9)))
    assert len(played.model.requests) == 3
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.reason is CompletedReason.GUARDRAIL_HALT
    (halt,) = played.of(GuardrailHalt)
    assert (halt.code, halt.count) == (INVALID_CALLS, 3)


async def test_one_valid_call_among_them_begins_the_count_anew() -> None:
    bench = Workbench()
    said = [asks("invented", q=1), asks("invented", q=2), asks("invented", "save", q=3), asks("invented", q=4), asks("invented", q=5)]
    played = await Scene(bench=bench).play(*said, says("So be it."))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="So be it.")


class Staggered(Workbench):
    """Each call waits until it is let go."""

    def __init__(self, *call_ids: str) -> None:
        super().__init__(lambda _: FAILS)
        self.gates = {call_id: asyncio.Event() for call_id in call_ids}

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        await self.gates[call.id].wait()
        return await super().call(call, context)


async def test_what_is_found_in_results_that_are_stored_already_is_told_with_the_last_to_come() -> None:
    ids = ("c-0", "c-1", "c-2")
    bench = Staggered(*ids)
    model = TalkingModel(says("", *(ToolCall(call_id, "save", '{"q":"a"}') for call_id in ids)), says("So."))
    facts: list[LoopFact] = []
    async with aclosing(Scene(max_iterations=1, bench=bench).begin(model)) as begun:
        facts.append(await anext(begun))
        for call_id in reversed(ids):
            bench.gates[call_id].set()
            facts.append(await anext(begun))
        facts += [fact async for fact in begun]
    played = Played(model=model, facts=facts, before=opening())
    played.check()
    first, second, third = played.results
    assert (second, third) == ("it failed", "it failed"), "they were stored before the last one came"
    assert first.count("[Tool loop warning: ") == 2
    assert first.index("count=2") < first.index("count=3") < first.index("[BUDGET EXHAUSTED: ")
    (told,) = played.of(BudgetWarning)
    assert first.endswith(told.message)
    assert [event.tool_call_id for event in played.of(GuardrailWarning)] == ["c-1", "c-2"]


async def test_each_result_has_its_own_note_where_they_come_together() -> None:
    calls = [ToolCall(f"c-{index}", "save", '{"q":"a"}') for index in range(3)]
    played = await Scene(bench=Workbench(lambda _: FAILS)).play(says("", *calls), says("So."))
    assert [result.count("[Tool loop warning: ") for result in played.results] == [0, 1, 1]


async def test_a_new_turn_begins_without_memory_of_the_last() -> None:
    first = await Scene(bench=Workbench(lambda _: FAILS)).play(*again("save", times=3), says("So."))
    assert first.end.state.guardrails.failures
    second = await Scene(bench=Workbench(lambda _: FAILS)).play(*again("save", times=1), says("So."))
    assert codes(second) == []
