"""Replies cut at the output limit: text goes on, calls are asked for again, and neither without end."""

import asyncio
from contextlib import aclosing

import pytest

from app.agent.facts import Record
from app.agent.truncation import CONTINUE_TEXT
from app.domain.conversation_events import BudgetWarning
from app.domain.errors import ModelUnavailableError
from app.domain.events import AttemptReset, IterationStarted, MessageCompleted
from app.domain.messages import Message, MessageKind, Role, ToolSpec
from app.domain.model import FailureReason, FinishReason, ModelReply
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, MachineState, PressureLevel
from tests.unit.agent.scenes import Scene, TalkingModel, Workbench, asks, cut, cut_call, says

PARTS = ("One, ", "two, ", "three, ", "four.")
ZOOM = ToolSpec(name="zoom", description="The client's.", parameters={"type": "object"})


@pytest.mark.parametrize("cuts", [1, 2, 3])
async def test_cut_text_is_continued_and_joined_in_order(cuts: int) -> None:
    played = await Scene().play(*(cut(part) for part in PARTS[:cuts]), says(PARTS[cuts]))
    whole = "".join(PARTS[: cuts + 1])
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output=whole)
    assert len(played.model.requests) == cuts + 1
    assert played.end.state.iteration == cuts + 1, "each part costs an iteration"
    assert [event.iteration for event in played.of(IterationStarted)] == list(range(2, cuts + 2))
    assert [event.message.content for event in played.of(MessageCompleted)] == [whole]
    assert played.of(AttemptReset) == [], "what was shown stays"


async def test_the_transcript_has_one_answer_and_the_model_its_parts() -> None:
    played = await Scene().play(cut("One, "), cut("two, "), says("three."))
    assert played.transcript[-2:] == [(Role.USER, "go"), (Role.ASSISTANT, "One, two, three.")]
    assert [(message.role, message.content, message.kind) for message in played.context[-5:]] == [
        (Role.ASSISTANT, "One, ", MessageKind.NOTE),
        (Role.USER, CONTINUE_TEXT, MessageKind.NOTE),
        (Role.ASSISTANT, "two, ", MessageKind.NOTE),
        (Role.USER, CONTINUE_TEXT, MessageKind.NOTE),
        (Role.ASSISTANT, "three.", MessageKind.NOTE),
    ]
    assert [row.archived for row in played.rows][-1], "the whole answer is for the transcript alone"


async def test_the_fourth_cut_fails_with_all_of_the_text() -> None:
    played = await Scene().play(*map(cut, PARTS))
    assert played.end.outcome == Failed(
        reason=FailedReason.OUTPUT_TRUNCATED,
        detail="The model's output was cut at its length limit.",
        retryable=False,
        output="One, two, three, four.",
    )
    assert len(played.model.requests) == 4


async def test_a_refusal_and_a_filter_keep_the_parts() -> None:
    refused = await Scene().play(cut("One, "), says("no more.", finish=FinishReason.REFUSAL))
    assert isinstance(refused.end.outcome, Failed)
    assert (refused.end.outcome.reason, refused.end.outcome.output) == (FailedReason.CONTENT_FILTERED, "One, no more.")
    filtered = await Scene().play(cut("One, "), says("tw", finish=FinishReason.CONTENT_FILTER))
    assert isinstance(filtered.end.outcome, Failed)
    assert (filtered.end.outcome.reason, filtered.end.outcome.output) == (FailedReason.CONTENT_FILTERED, "One, tw")


@pytest.mark.parametrize("lost", [cut_call("Let me save it."), cut_call(), cut("", reasoning="hm")], ids=["text", "call", "reasoning"])
async def test_a_cut_call_is_asked_for_again_with_twice_the_room(lost: ModelReply) -> None:
    bench = Workbench()
    played = await Scene(bench=bench).play(lost, lost, asks("save"), says("Saved."))
    first, second, third, fourth = played.model.requests
    assert first.messages == second.messages == third.messages, "the same request"
    assert [request.options.doublings for request in (first, second, third, fourth)] == [0, 1, 2, 0]
    assert bench.ran == ["save"]
    assert played.of(AttemptReset) == [AttemptReset(attempt=1), AttemptReset(attempt=2)], "what was shown of them is void"
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="Saved.")
    assert played.end.state.iteration == 4, "each costs an iteration"


async def test_a_call_that_is_cut_again_and_again_never_runs() -> None:
    bench = Workbench()
    played = await Scene(bench=bench).play(cut_call("Let me save it."))
    assert [request.options.doublings for request in played.model.requests] == [0, 1, 2, 3]
    assert isinstance(played.end.outcome, Failed)
    assert (played.end.outcome.reason, played.end.outcome.output) == (FailedReason.OUTPUT_TRUNCATED, "Let me save it.")
    assert bench.ran == []


async def test_no_larger_limit_no_retry() -> None:
    played = await Scene().play(cut_call(may_grow=True), cut_call(may_grow=False))
    assert len(played.model.requests) == 2
    assert isinstance(played.end.outcome, Failed)


@pytest.mark.parametrize("lost", [cut("Half"), cut_call("Half"), cut("")], ids=["text", "call", "reasoning"])
async def test_the_callers_own_limit_is_final(lost: ModelReply) -> None:
    played = await Scene(max_output_tokens=100).play(lost)
    assert len(played.model.requests) == 1
    assert isinstance(played.end.outcome, Failed)
    assert (played.end.outcome.reason, played.end.outcome.output) == (FailedReason.OUTPUT_TRUNCATED, lost.text)


async def test_a_forced_call_that_was_cut_is_forced_again() -> None:
    played = await Scene(tool_choice="tool:save").play(cut_call(), asks("save"), says("Saved."))
    assert [request.options.tool_choice for request in played.model.requests] == ["tool:save", "tool:save", None]


async def test_text_that_goes_on_with_calls_is_one_text_to_people() -> None:
    played = await Scene().play(cut("Let me "), asks("save", text="save it."), says("Saved."))
    assert played.transcript[-4:] == [
        (Role.ASSISTANT, "Let me "),
        (Role.ASSISTANT, "save it."),
        (Role.TOOL, "save-0-a done"),
        (Role.ASSISTANT, "Saved."),
    ]
    assert [event.message.content for event in played.of(MessageCompleted)] == ["Let me save it.", "Saved."]
    contents = [message.content for message in played.context[-5:]]
    assert contents == ["Let me ", CONTINUE_TEXT, "save it.", "save-0-a done", "Saved."]


async def test_counters_begin_anew_behind_a_call_that_came_whole() -> None:
    played = await Scene().play(cut("a"), cut("b"), cut("c"), asks("save", text="d"), cut("e"), cut("f"), cut("g"), says("h"))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="efgh")


async def test_text_that_goes_on_with_the_clients_calls_is_whole_at_the_end() -> None:
    played = await Scene(client_tools=(ZOOM,)).play(cut("Let me "), asks("zoom", text="zoom."))
    assert played.end.outcome == Completed(reason=CompletedReason.TOOL_CALLS, output="Let me zoom.")
    assert played.transcript[-2:] == [(Role.ASSISTANT, "Let me "), (Role.ASSISTANT, "zoom.")]
    assert [event.message.content for event in played.of(MessageCompleted)] == ["Let me zoom."]
    assert played.context[-1].tool_calls


async def test_the_last_iteration_continues_in_the_closing_call() -> None:
    played = await Scene(max_iterations=2).play(cut("One, "), cut("two, "), says("three."))
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="One, two, three.")
    assert "last part of your answer" in str(played.model.requests[2].messages[-1].content)
    assert played.model.requests[2].options.tool_choice == "none"
    assert [event.level for event in played.of(BudgetWarning)] == [PressureLevel.EXHAUSTED]


@pytest.mark.parametrize("closing", [cut("two"), ModelUnavailableError(FailureReason.STALE, "Stale.")], ids=["cut", "failed"])
async def test_a_continued_answer_without_an_end_says_so(closing: ModelReply | ModelUnavailableError) -> None:
    played = await Scene(max_iterations=1).play(cut("One, "), closing)
    assert isinstance(played.end.outcome, Completed)
    said = "One, two" if isinstance(closing, ModelReply) else "One, "
    note = "[The budget of this turn (1 of 1 iterations) was used up before the work was finished.]"
    assert played.end.outcome.output == f"{said}\n\n{note}"
    assert played.transcript[-1] == (Role.ASSISTANT, f"{said}\n\n{note}")
    assert played.context[-1].content == (f"two\n\n{note}" if isinstance(closing, ModelReply) else note)


async def test_a_call_that_is_cut_at_the_last_iteration_has_the_closing_call() -> None:
    played = await Scene(max_iterations=1).play(cut_call("Let me save it."), says("I could not save it."))
    assert [request.options.tool_choice for request in played.model.requests] == [None, "none"]
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="I could not save it.")


async def test_parts_and_retries_share_the_iterations() -> None:
    played = await Scene(max_iterations=3).play(cut("a"), cut_call(), cut("b"), says("c"))
    assert len(played.model.requests) == 4
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="abc")


@pytest.mark.parametrize(
    ("reason", "forget"), [(FailureReason.STALE, False), (FailureReason.INVALID_RESPONSE, False), (FailureReason.CONTENT_FILTERED, True)]
)
async def test_a_failure_in_the_middle_keeps_what_was_said(reason: FailureReason, *, forget: bool) -> None:
    played = await Scene().play(cut("One, "), ModelUnavailableError(reason, "It failed."))
    assert isinstance(played.end.outcome, Failed)
    assert played.end.outcome.output == "One, "
    assert played.end.forget is forget


async def test_an_interrupt_in_the_middle_finds_the_parts_in_the_state() -> None:
    model = TalkingModel(cut("One, "), cut("two, "), asyncio.Event())
    states: list[MachineState] = []

    async def pull() -> None:
        async with aclosing(Scene().begin(model)) as facts:
            async for fact in facts:
                assert isinstance(fact, Record)
                assert fact.boundary, "another replica can go on with the answer"
                states.append(fact.state)

    task = asyncio.create_task(pull())
    await model.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states[-1].parts == ("One, ", "two, ")


async def test_another_replica_goes_on_with_a_continued_answer() -> None:
    first = TalkingModel(cut("One, "), says("two."))
    begun = Scene().begin(first)
    record = await anext(begun)
    await begun.aclose()
    assert isinstance(record, Record)
    played = await Scene(state=record.state).play(says("two."))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="One, two.")
    assert played.end.messages[-1].message == Message(role=Role.ASSISTANT, content="One, two.")
