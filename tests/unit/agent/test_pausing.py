"""Turns that pause for somebody and go on: which calls wait, what is kept, and that it comes to the same as if nobody had waited."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from app.agent.batch import MAX_CALLS
from app.agent.facts import End, LoopFact, Pause, Record
from app.domain.conversation_events import GuardrailWarning
from app.domain.events import Fact, IterationStarted, ToolCompleted, ToolStarted
from app.domain.guardrails import GuardrailThresholds, ToolTraits, digest_of
from app.domain.messages import Role, StoredMessage, ToolCall, ToolSpec
from app.domain.model import ModelReply
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.turns import CompletedReason, MachineState
from app.domain.waiting import CallAnswer, PausedBatch, WaitingKind
from tests.unit.agent.scenes import SPECS, TRAITS, Said, Scene, TalkingModel, Workbench, asks, opening, says, wire_problems

LOCATE = ToolSpec(name="locate", description="The client's.", parameters={"type": "object"})
OWN = tuple(ToolSpec(name=name, description="Works.", parameters={"type": "object"}) for name in ("clarify", "wipe"))
QUESTION = {"question": "Which one?", "choices": ["red", "blue"]}
RUN = CallAnswer(approved=True)
NEEDS_APPROVAL = ToolOutcome(output="Not run.", is_error=True, needs_approval=True)


class Guarded(Workbench):
    """``wipe`` needs an approval, ``clarify`` asks. Remembers with what the calls were run."""

    def __init__(self, outcomes: Mapping[str, ToolOutcome] | None = None) -> None:
        super().__init__()
        self._outcomes = outcomes or {}
        self.approved: list[tuple[str, bool]] = []

    @override
    def traits(self) -> Mapping[str, ToolTraits]:
        return {**TRAITS, "wipe": ToolTraits(approval=True), "clarify": ToolTraits(interactive=True)}

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        if call.name == "wipe" and not context.approved:
            return NEEDS_APPROVAL
        self.approved.append((call.name, context.approved))
        known = self._outcomes.get(call.name)
        return known if known is not None else await super().call(call, context)


def scene(**changes: Any) -> Scene:
    return Scene(**{"may_wait": True, "tools": (*OWN, *SPECS), "client_tools": (LOCATE,), "bench": Guarded(), **changes})


def calls(*wanted: tuple[str, dict[str, Any]]) -> ModelReply:
    return says("", *(ToolCall(f"c{index}", name, json.dumps(arguments)) for index, (name, arguments) in enumerate(wanted)))


async def facts_of(played: Scene, *said: Said) -> tuple[list[LoopFact], TalkingModel]:
    model = TalkingModel(*said)
    facts = [fact async for fact in played.begin(model)]
    assert [problem for request in model.requests for problem in wire_problems(request)] == []
    return facts, model


def events_of(facts: Iterable[LoopFact], kind: type[Any]) -> list[Any]:
    events: list[Fact] = [event for fact in facts if isinstance(fact, Record | End) for event in fact.events]
    return [event for event in events if isinstance(event, kind)]


def stored(before: list[StoredMessage], facts: Iterable[LoopFact]) -> list[StoredMessage]:
    rows = [*before, *(message for fact in facts if isinstance(fact, Record | End) for message in fact.messages)]
    return sorted(rows, key=lambda row: row.seq)


def paused_of(facts: list[LoopFact]) -> tuple[MachineState, PausedBatch]:
    last = facts[-1]
    assert isinstance(last, Pause)
    assert last.state.paused is not None
    return last.state, last.state.paused


def answered(state: MachineState, **answers: CallAnswer) -> MachineState:
    """The stored state with these answers by call id, as it is read again."""
    assert state.paused is not None
    waiting = tuple(msgspec.structs.replace(one, answer=answers.get(one.call.id)) for one in state.paused.waiting)
    state = msgspec.structs.replace(state, paused=msgspec.structs.replace(state.paused, waiting=waiting))
    return msgspec.json.decode(msgspec.json.encode(state), type=MachineState)


async def resumed(
    first: Scene, facts: list[LoopFact], *said: Said, answers: dict[str, CallAnswer]
) -> tuple[list[LoopFact], TalkingModel, list[StoredMessage]]:
    state, _ = paused_of(facts)
    rows = stored(first.rows, facts)
    more, model = await facts_of(replace(first, state=answered(state, **answers), rows=rows), *said)
    return more, model, stored(rows, more)


def results(rows: Iterable[StoredMessage]) -> list[str]:
    return [str(row.message.content) for row in rows if row.message.role is Role.TOOL]


async def test_the_turn_pauses_when_all_other_calls_are_stored() -> None:
    first = scene()
    facts, _ = await facts_of(first, calls(("locate", {}), ("lookup", {}), ("clarify", QUESTION), ("wipe", {})), says("never"))
    state, paused = paused_of(facts)
    assert [(one.index, one.call.name, one.kind) for one in paused.waiting] == [
        (0, "locate", WaitingKind.CLIENT_TOOL),
        (2, "clarify", WaitingKind.CLARIFY),
        (3, "wipe", WaitingKind.APPROVAL),
    ]
    assert (paused.waiting[1].question, paused.waiting[1].choices) == ("Which one?", ("red", "blue"))
    assert state.iteration == 1
    rows = stored(first.rows, facts)
    assert results(rows) == ["c1 done"]
    assert rows[-1].seq == paused.place + 2
    assert [event.name for event in events_of(facts, ToolStarted)] == ["lookup"]
    assert len(events_of(facts, ToolCompleted)) == 1


async def test_it_goes_on_as_if_all_calls_had_finished_together() -> None:
    first = scene()
    facts, _ = await facts_of(first, calls(("locate", {}), ("lookup", {}), ("clarify", QUESTION), ("wipe", {})))
    answers = {"c0": CallAnswer(output="in Rome"), "c2": CallAnswer(output="green"), "c3": RUN}
    more, model, rows = await resumed(first, facts, says("Done."), answers=answers)
    assert results(rows) == ["in Rome", "c1 done", "green", "c3 done"]
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    bench = first.bench
    assert isinstance(bench, Guarded)
    assert bench.approved == [("lookup", False), ("wipe", True)]
    assert [event.name for event in events_of(more, ToolStarted)] == ["wipe"]
    assert [event.iteration for event in events_of(more, IterationStarted)] == [2]
    end = more[-1]
    assert isinstance(end, End)
    assert (end.outcome.output, end.state.paused, end.state.iteration) == ("Done.", None, 2)
    shown = [message.content for message in model.requests[0].messages if message.role is Role.TOOL]
    assert shown == ["in Rome", "c1 done", "green", "c3 done"]


async def test_what_was_answered_without_a_run_is_no_run() -> None:
    first = scene()
    facts, _ = await facts_of(first, calls(("wipe", {}), ("locate", {})))
    denied = CallAnswer(output="Not run: denied by the user.", is_error=True)
    more, _, rows = await resumed(first, facts, says("Well."), answers={"c0": denied, "c1": CallAnswer(output="no signal", is_error=True)})
    assert results(rows) == [denied.output, "no signal"]
    assert first.bench.ran == []
    assert [event.is_error for event in events_of(more, ToolCompleted)] == [True, True]
    assert events_of(more, ToolStarted) == []


async def test_guardrails_count_a_paused_batch_like_any_other() -> None:
    """The same call is denied twice: the second denial is warned of, in its result."""
    denied = CallAnswer(output="Not run: denied by the user.", is_error=True)
    first = scene()
    facts, _ = await facts_of(first, calls(("lookup", {}), ("wipe", {"q": 1})))
    second_reply = says("", ToolCall("d0", "wipe", '{"q": 1}'))
    more, _, rows = await resumed(first, facts, second_reply, answers={"c1": denied})
    state, _ = paused_of(more)
    assert [failures.count for failures in state.guardrails.failures] == [1]
    second = replace(first, rows=rows, state=state)
    last, _, rows = await resumed(second, [Pause(state=state)], says("Well."), answers={"d0": denied})
    assert [event.count for event in events_of(last, GuardrailWarning)] == [2]
    assert results(rows)[-1].startswith(f"{denied.output}\n\n[Tool loop warning: repeated_exact_failure_warning; count=2;")


async def test_a_block_stands_beside_a_call_that_waits_and_is_told_once() -> None:
    """The blocked call is answered before the pause; its warning comes with the batch's end."""
    thresholds = GuardrailThresholds(hard_stop=True)
    failing = scene(guardrails=thresholds, bench=Guarded({"save": ToolOutcome(output="broken", is_error=True)}))
    replies = [says("", ToolCall(f"s{number}", "save", "{}")) for number in range(5)]
    facts, _ = await facts_of(failing, *replies, says("", ToolCall("c0", "save", "{}"), ToolCall("c1", "locate", "{}")))
    _, paused = paused_of(facts)
    assert [one.call.id for one in paused.waiting] == ["c1"]
    bench = failing.bench
    assert isinstance(bench, Guarded)
    assert [name for name, _ in bench.approved] == ["save"] * 5
    more, _, rows = await resumed(failing, facts, says("Well."), answers={"c1": CallAnswer(output="in Rome")})
    blocked = [event for event in events_of(more, GuardrailWarning) if event.tool_call_id == "c0"]
    assert [event.count for event in blocked] == [5]
    assert results(rows)[-1].startswith("in Rome")


async def test_long_results_are_compared_as_wholes_across_a_pause() -> None:
    whole = "x" * 10
    cut = ToolOutcome(output="cut", digest=digest_of(whole))
    first = scene(bench=Guarded({"lookup": cut}))
    facts, _ = await facts_of(first, calls(("lookup", {}), ("locate", {})))
    more, _, _ = await resumed(first, facts, says("Done."), answers={"c1": CallAnswer(output="in Rome")})
    end = more[-1]
    assert isinstance(end, End)
    assert end.state.guardrails.history[0].result == digest_of(whole)


@pytest.mark.parametrize("client_tools", [(), (LOCATE,)], ids=["own tools", "with the client's"])
async def test_where_nobody_can_be_waited_for_nothing_waits_and_nothing_that_would_is_offered(client_tools: tuple[ToolSpec, ...]) -> None:
    first = scene(may_wait=False, client_tools=client_tools)
    facts, model = await facts_of(first, calls(("clarify", QUESTION), ("wipe", {}), ("lookup", {})), says("Done."))
    assert isinstance(facts[-1], End)
    assert {tool.name for tool in model.requests[0].tools} == {*(tool.name for tool in client_tools), "lookup", "poll", "save"}


async def test_without_waiting_client_tools_still_end_the_turn() -> None:
    facts, _ = await facts_of(scene(may_wait=False), calls(("locate", {})))
    end = facts[-1]
    assert isinstance(end, End)
    assert end.outcome.reason is CompletedReason.TOOL_CALLS


@pytest.mark.parametrize(
    "arguments",
    [{}, {"question": ""}, {"question": " "}, {"question": 1}, {"question": "x" * 4_001}, {"question": "Which?", "choices": ["a"] * 5}],
    ids=["none", "empty", "blank", "number", "long", "many choices"],
)
async def test_a_question_that_cannot_be_shown_goes_to_its_tool(arguments: dict[str, Any]) -> None:
    first = scene()
    facts, _ = await facts_of(first, calls(("clarify", arguments)), says("Done."))
    assert isinstance(facts[-1], End)
    assert first.bench.ran == ["clarify"]


async def test_calls_that_are_not_run_for_another_reason_do_not_wait() -> None:
    many = [("locate", {"n": number}) for number in range(MAX_CALLS + 2)]
    reply = msgspec.structs.replace(calls(*many), bad_arguments={"c0": "no JSON"})
    first = scene()
    facts, _ = await facts_of(first, reply)
    _, paused = paused_of(facts)
    assert [one.index for one in paused.waiting] == list(range(1, MAX_CALLS))
    assert len(results(stored(first.rows, facts))) == 3
    given = {f"c{number}": CallAnswer(output="in Rome") for number in range(MAX_CALLS)}
    _, _, rows = await resumed(first, facts, says("Done."), answers=given)
    texts = results(rows)
    assert "not valid JSON (no JSON)" in texts[0]
    assert "too many calls" in texts[-1]
    assert texts.count("in Rome") == MAX_CALLS - 1


async def test_an_approval_is_asked_for_when_the_tool_says_so_whatever_is_known_of_it_before() -> None:
    """The traits are not known yet; one of the calls cannot be run at all."""

    class Late(Guarded):
        @override
        def traits(self) -> Mapping[str, ToolTraits]:
            return {}

        @override
        async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
            misfit = ToolOutcome(output="misfit", is_error=True)
            return misfit if call.id == "c1" else await super().call(call, context)

    first = scene(bench=Late())
    facts, _ = await facts_of(first, calls(("wipe", {}), ("wipe", {"x": 1}), ("lookup", {})))
    _, paused = paused_of(facts)
    assert [(one.call.id, one.kind) for one in paused.waiting] == [("c0", WaitingKind.APPROVAL)]
    assert results(stored(first.rows, facts)) == ["misfit", "c2 done"]
    _, _, rows = await resumed(first, facts, says("Done."), answers={"c0": RUN})
    assert results(rows) == ["c0 done", "misfit", "c2 done"]


async def test_a_turn_whose_stored_calls_are_gone_does_not_run_anything() -> None:
    first = scene()
    facts, _ = await facts_of(first, calls(("wipe", {})))
    state, _ = paused_of(facts)
    lost = replace(first, state=answered(state, c0=RUN), rows=opening())
    with pytest.raises(RuntimeError):
        await facts_of(lost, says("never"))
    assert first.bench.ran == []


async def test_a_plain_turn_may_wait_and_does_not() -> None:
    played = await Scene(may_wait=True).play(asks("lookup", "save"), says("Done."))
    assert played.results == ["lookup-0-a done", "save-1-a done"]
