"""The budget of a turn: told in time, kept, and closed by exactly one call without tools."""

import pytest
from typing_extensions import override

from app.agent.budget import MIN_OUTPUT, Budget, DayAllowance, affords, is_used_up, output_limit, pressure
from app.domain.compaction import Room
from app.domain.conversation_events import BudgetWarning
from app.domain.errors import ContextOverflowError, ModelError, ModelUnavailableError
from app.domain.events import IterationStarted, MessageCompleted
from app.domain.messages import Message, Role, ToolSpec
from app.domain.model import FailureReason, FinishReason, Usage
from app.domain.quotas import DayShare
from app.domain.turns import Completed, CompletedReason, Failed, MachineState, PressureLevel
from tests.unit.agent.scenes import Played, Said, Scene, Workbench, asks, cut, cut_call, says

NOTE = "[The budget of this turn ({used}) was used up before the work was finished.]"
FIXED = "I stopped here: the budget of this turn ({used}) was used up before the work was finished."


def used(tokens: int, *, iteration: int = 1, cost_usd: float | None = None) -> MachineState:
    return MachineState(iteration=iteration, usage=Usage(input_tokens=tokens), cost_usd=cost_usd)


async def test_pressure_is_told_once_a_tier_in_the_last_result_alone() -> None:
    played = await Scene(max_iterations=90).play(*(asks("save", "lookup", q=number) for number in range(1, 91)), says("Done."))
    told = {number: result for number, result in enumerate(played.results) if "[BUDGET" in result}
    assert sorted(told) == [125, 161, 179], "the second result of the iterations 63, 81 and 90"
    caution, warning, exhausted = told.values()
    assert "\n\n[BUDGET: Iteration 63/90. 27 left. " in caution
    assert "\n\n[BUDGET WARNING: Iteration 81/90. Only 9 left. " in warning
    assert "\n\n[BUDGET EXHAUSTED: 90 of 90 iterations. " in exhausted
    events = played.of(BudgetWarning)
    assert [(event.level, event.iteration, event.max_iterations) for event in events] == [
        (PressureLevel.CAUTION, 63, 90),
        (PressureLevel.WARNING, 81, 90),
        (PressureLevel.EXHAUSTED, 90, 90),
    ]
    assert all(event.message in result for event, result in zip(events, told.values(), strict=True))
    assert len(played.model.requests) == 91
    assert not any("[BUDGET" in str(message.content) for message in played.context if message.role is not Role.TOOL)
    assert not any("[BUDGET" in request.whole_system for request in played.model.requests)


TIERS = [(62, None), (63, PressureLevel.CAUTION), (80, PressureLevel.CAUTION), (81, PressureLevel.WARNING), (89, PressureLevel.WARNING)]


@pytest.mark.parametrize(("iteration", "level"), TIERS)
def test_a_tier_begins_at_its_part_of_the_iterations(iteration: int, level: PressureLevel | None) -> None:
    told = pressure(MachineState(iteration=iteration), Budget(iterations=90))
    assert (told and told.level) == level


@pytest.mark.parametrize(
    ("state", "budget", "words"),
    [
        (used(700), Budget(iterations=90, tokens=1_000), "[BUDGET: Iteration 1/90. 89 left. 700 of 1000 tokens used. "),
        (used(900), Budget(iterations=90, tokens=1_000), "[BUDGET WARNING: Iteration 1/90. Only 89 left. 900 of 1000 tokens used. "),
        (
            used(9, cost_usd=0.95),
            Budget(iterations=90, cost_usd=1.0),
            "[BUDGET WARNING: Iteration 1/90. Only 89 left. 0.9500 of 1.0000 US dollars used. ",
        ),
    ],
    ids=["tokens caution", "tokens warning", "money"],
)
def test_tokens_and_money_press_as_well(state: MachineState, budget: Budget, words: str) -> None:
    told = pressure(state, budget)
    assert told is not None
    assert told.text.startswith(words)


@pytest.mark.parametrize("level", [PressureLevel.CAUTION, PressureLevel.WARNING])
def test_what_was_told_is_not_told_again(level: PressureLevel) -> None:
    assert pressure(MachineState(iteration=70, pressure=level), Budget(iterations=90)) is None


async def test_without_pressure_results_are_as_the_tool_gave_them() -> None:
    played = await Scene().play(asks("save"), says("Done."))
    assert played.results == ["save-0-a done"]
    assert played.of(BudgetWarning) == []


async def test_the_closing_call_keeps_the_tools_and_forbids_them() -> None:
    played = await Scene(max_iterations=2).play(asks("save", q=1), asks("save", q=2), says("Summed up."))
    first, second, closing = played.model.requests
    assert [request.options.tool_choice for request in played.model.requests] == [None, None, "none"]
    assert first.tools == second.tools == closing.tools
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="Summed up.")
    assert [event.iteration for event in played.of(IterationStarted)] == [2], "the closing call is no iteration"
    assert played.end.state.iteration == 2
    assert played.context[-1] == Message(role=Role.ASSISTANT, content="Summed up.")


async def test_a_turn_without_tools_has_no_choice_to_forbid() -> None:
    played = await Scene(max_iterations=1, tools=()).play(cut("Half "), says("whole."))
    assert [request.options.tool_choice for request in played.model.requests] == [None, None]
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="Half whole.")


EMPTY = ModelUnavailableError(FailureReason.INVALID_RESPONSE, "It said nothing.")
CLOSINGS: dict[str, tuple[Said, str]] = {
    "text": (says("Summed up."), "Summed up."),
    "text and calls": (asks("save", q=9, text="One last look."), f"One last look.\n\n{NOTE}"),
    "calls alone": (asks("save", q=9), f"Let me see.\n\n{NOTE}"),
    "empty": (EMPTY, f"Let me see.\n\n{NOTE}"),
    "blank": (says(" \n"), f"Let me see.\n\n{NOTE}"),
    "unavailable": (ModelUnavailableError(FailureReason.OVERLOADED, "Busy."), f"Let me see.\n\n{NOTE}"),
    "cut by length": (cut("Half of"), f"Half of\n\n{NOTE}"),
    "cut in a call": (cut_call("I will"), f"I will\n\n{NOTE}"),
    "cut in its reasoning": (cut("", reasoning="hm"), f"Let me see.\n\n{NOTE}"),
    "content filter": (says("Bad words", finish=FinishReason.CONTENT_FILTER), f"Let me see.\n\n{NOTE}"),
    "refusal": (says("I will not.", finish=FinishReason.REFUSAL), f"I will not.\n\n{NOTE}"),
    "refused request": (ModelUnavailableError(FailureReason.INVALID_REQUEST, "No."), f"Let me see.\n\n{NOTE}"),
}


@pytest.mark.parametrize(("closing", "answer"), CLOSINGS.values(), ids=CLOSINGS)
async def test_whatever_the_closing_call_brings_is_one_answer(closing: Said, answer: str) -> None:
    played = await Scene(max_iterations=1).play(asks("save", text="Let me see."), closing)
    assert len(played.model.requests) == 2, "exactly one closing call"
    answer = answer.format(used="1 of 1 iterations")
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=answer)
    assert played.transcript[-1] == (Role.ASSISTANT, answer)
    assert [event.message.content for event in played.of(MessageCompleted)] == ["Let me see.", answer]
    calls = [call for row in played.rows for call in row.message.tool_calls]
    assert len(calls) == 1, "what was asked for in the closing call is not stored"


async def test_without_any_text_the_answer_is_a_fixed_one() -> None:
    played = await Scene(max_iterations=1).play(asks("save"), EMPTY)
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=FIXED.format(used="1 of 1 iterations"))


async def test_a_closing_call_that_does_not_fit_is_shortened_or_left() -> None:
    overflow = ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "Too long.")
    played = await Scene(max_iterations=1, summariser=None).play(asks("save", text="Let me see."), overflow)
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED
    assert played.end.outcome.output.startswith("Let me see.")
    assert played.end.forget, "sent again it would be refused again"
    assert played.context[-1].content == "Hello."
    assert played.transcript[-1] == (Role.ASSISTANT, played.end.outcome.output), "people can read it"


async def test_an_answer_in_time_is_no_matter_of_the_budget() -> None:
    played = await Scene(max_iterations=1, max_tokens=1_000, max_cost_usd=1.0).play(says("Four.", cost_usd=0.1))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="Four.")


def tokens_of(played: Played) -> int:
    usage = played.end.state.usage
    return usage.input_tokens + usage.output_tokens


@pytest.mark.parametrize("limit", [400, 500, 1_000, 3_000])
async def test_tokens_are_kept_and_leave_room_for_the_closing_call(limit: int) -> None:
    """The provider counts 60 tokens more for each iteration; a reply has 20."""
    said = [says("", *asks("save", q=number).tool_calls, used=(60 + 60 * number, 20)) for number in range(90)]
    played = await Scene(max_tokens=limit, bench=Workbench(lambda _: "x" * 150)).play(*said)
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED
    assert tokens_of(played) <= limit
    closing = [request.options.tool_choice for request in played.model.requests]
    assert closing == [None] * (len(closing) - 1) + ["none"]


@pytest.mark.parametrize("limit", [0.05, 0.2, 1.0])
async def test_money_is_kept(limit: float) -> None:
    said = [says("", *asks("save", q=number).tool_calls, used=(50, 10), cost_usd=0.01) for number in range(90)]
    played = await Scene(max_cost_usd=limit).play(*said)
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED
    assert played.end.state.cost_usd is not None
    assert played.end.state.cost_usd <= limit


async def test_a_giant_result_is_not_paid_for_twice() -> None:
    """What the next call has to read is known before it: it is made only where it can be paid."""
    scene = Scene(max_tokens=2_000, bench=Workbench(lambda _: "x" * 40_000))
    played = await scene.play(says("So far.", *asks("save").tool_calls, used=(60, 20)), says("Never said.", used=(10_000, 5)))
    assert len(played.model.requests) == 1
    assert tokens_of(played) == 80
    assert isinstance(played.end.outcome, Completed)
    assert played.end.outcome.output.startswith("So far.\n\n[The budget of this turn (1 of 90 iterations, 80 of 2000 tokens) ")


async def test_a_giant_result_costs_what_the_model_is_shown_of_it() -> None:
    scene = Scene(max_tokens=20_000, room=Room(window=8_000, output_tokens=400), bench=Workbench(lambda _: "x" * 90_000))
    played = await scene.play(asks("save"), says("Done.", used=(1_400, 5)))
    assert played.end.outcome == Completed(reason=CompletedReason.ANSWER, output="Done.")
    assert [request.options.tool_choice for request in played.model.requests] == [None, None], "the second was not the closing call"


async def test_a_budget_that_cannot_pay_the_first_call_ends_without_one() -> None:
    played = await Scene(max_tokens=20).play(says("Never said."))
    assert played.model.requests == []
    assert played.end.outcome == Completed(
        reason=CompletedReason.BUDGET_EXHAUSTED, output=FIXED.format(used="1 of 90 iterations, 0 of 20 tokens")
    )


async def test_a_budget_for_one_call_makes_it_the_closing_one() -> None:
    played = await Scene(max_tokens=110).play(says("Four.", used=(60, 5)))
    (request,) = played.model.requests
    assert request.options.tool_choice == "none"
    assert [event.level for event in played.of(BudgetWarning)] == [PressureLevel.EXHAUSTED]
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output="Four.")


async def test_the_output_of_every_call_is_limited_to_what_is_left() -> None:
    played = await Scene(max_tokens=1_000).play(
        says("", *asks("save", q=1).tool_calls, used=(60, 140)), says("", *asks("save", q=2).tool_calls, used=(210, 40)), says("So.")
    )
    first, second, closing = (request.options.output_cap for request in played.model.requests)
    assert first is not None
    assert second is not None
    assert closing is not None
    assert 60 + first + 60 + first <= 1_000, "its input and output, and both once more for the closing call"
    assert 200 + 200 + second + 200 + second <= 1_000
    assert 450 + 250 + closing <= 1_000


@pytest.mark.parametrize("tools", [(), (ToolSpec(name="lookup", description="", parameters={"type": "object"}),)], ids=["none", "some"])
async def test_nothing_is_kept_back_where_no_tool_can_be_called(tools: tuple[ToolSpec, ...]) -> None:
    played = await Scene(max_tokens=4_000, tools=tools).play(says("Four."))
    cap = played.model.requests[0].options.output_cap
    assert cap is not None
    assert (cap > 3_000) is (tools == ())


EDGE = (1_000 - 3 * MIN_OUTPUT - 64) // 2
"""What two calls may read of 1,000 tokens: both may answer, and the second is told that it is the last."""


def test_limits_at_their_edges() -> None:
    budget = Budget(iterations=9, tokens=1_000)
    assert not is_used_up(used(0), budget, EDGE)
    assert is_used_up(used(0), budget, EDGE + 1)
    assert affords(used(0), budget, 1_000 - MIN_OUTPUT)
    assert not affords(used(1), budget, 1_000 - MIN_OUTPUT)
    assert output_limit(used(0), budget, 999, reserve=False) == MIN_OUTPUT
    assert output_limit(used(400), budget, 100, reserve=False) == 500
    assert output_limit(used(0), Budget(iterations=9), 10, reserve=True) is None
    assert output_limit(used(0), Budget(iterations=9, cost_usd=1.0), 10, reserve=True) is None, "no price is known yet"
    assert output_limit(used(100, cost_usd=0.5), Budget(iterations=9, cost_usd=1.0), 40, reserve=False) == 60
    assert output_limit(used(100, cost_usd=0.5), Budget(iterations=9, cost_usd=1.0, tokens=150), 30, reserve=False) == 20


FAILURES: list[ModelError] = [
    ModelUnavailableError(FailureReason.AUTH, "No."),
    ModelUnavailableError(FailureReason.STALE, "Stale."),
]


@pytest.mark.parametrize("error", FAILURES, ids=["for good", "for now"])
async def test_an_ordinary_call_that_fails_is_no_closing_one(error: ModelError) -> None:
    played = await Scene(max_iterations=2).play(asks("save"), error)
    assert isinstance(played.end.outcome, Failed)
    assert len(played.model.requests) == 2


class Shared(DayAllowance):
    """A day that others use too: each call for its share brings the next of ``shares``, the last one for ever."""

    def __init__(self, *shares: DayShare) -> None:
        self._shares = shares
        self.held: list[int] = []

    @override
    def share(self) -> DayShare:
        return self._shares[min(len(self.held), len(self._shares) - 1)]

    @override
    def hold(self, tokens: int) -> None:
        self.held.append(tokens)


@pytest.mark.parametrize(
    ("share", "used"),
    [
        pytest.param(DayShare(tokens=300), "2 of 90 iterations, 260 of 300 tokens", id="tokens"),
        pytest.param(DayShare(cost_usd=0.3), "2 of 90 iterations, 0.2600 of 0.3000 US dollars", id="money"),
    ],
)
async def test_a_day_that_others_have_used_up_meanwhile_is_a_budget_that_is_used_up(share: DayShare, used: str) -> None:
    allowance = Shared(DayShare(tokens=100_000), DayShare(tokens=100_000), share)
    said = [says("So far.", *asks("save", q=number).tool_calls, used=(100, 30), cost_usd=0.13) for number in range(90)]
    played = await Scene(allowance=allowance).play(*said)
    assert len(played.model.requests) == 2
    note = f"[The budget of this turn ({used}) was used up before the work was finished.]"
    assert played.end.outcome == Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=f"So far.\n\n{note}")


async def test_a_share_of_the_day_limits_each_call_and_is_held_for_it() -> None:
    allowance = Shared(DayShare(tokens=2_000), DayShare(tokens=900))
    played = await Scene(allowance=allowance, tools=()).play(cut("One,", used=(60, 40)), says("two.", used=(110, 5)))
    caps = [request.options.output_cap for request in played.model.requests]
    sizes = [request.input_tokens for request in played.model.requests]
    assert caps == [2_000 - sizes[0], 900 - 100 - sizes[1]]
    assert allowance.held == [sizes[0] + (caps[0] or 0), sizes[1] + (caps[1] or 0)]


async def test_a_day_without_anything_left_makes_no_call() -> None:
    played = await Scene(allowance=Shared(DayShare(tokens=-5, cost_usd=-0.1))).play(says("Never said."))
    assert played.model.requests == []
    assert played.end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED


async def test_the_turns_own_limits_hold_where_the_day_has_more() -> None:
    played = await Scene(max_tokens=20, allowance=Shared(DayShare(tokens=5_000))).play(says("Never said."))
    assert played.model.requests == []
    assert played.end.outcome.reason is CompletedReason.BUDGET_EXHAUSTED


async def test_a_call_holds_no_more_than_its_route_may_say() -> None:
    allowance = Shared(DayShare(tokens=1_000_000))
    played = await Scene(allowance=allowance).play(says("Four."))
    assert allowance.held == [played.model.requests[0].input_tokens + played.model.room.output_tokens]
