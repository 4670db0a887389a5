"""Whatever a model says and tools do, within any budget: a turn ends, once, and leaves a history that every provider takes."""

import asyncio
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.agent.compactor import MAX_OVERFLOWS
from app.context import history
from app.domain.conversation_events import BudgetWarning
from app.domain.errors import ContextOverflowError, ModelUnavailableError
from app.domain.events import MessageCompleted, ToolCompleted, ToolStarted
from app.domain.guardrails import GuardrailThresholds
from app.domain.messages import ToolCall
from app.domain.model import FailureReason, FinishReason, ModelReply
from app.domain.turns import PressureLevel
from tests.unit.agent.scenes import Played, Said, Scene, TalkingModel, Workbench, cut, cut_call, says

TEXTS = st.sampled_from(["One. ", " two", "three\n", "é 🙂"])
USED = st.tuples(st.integers(0, 400), st.integers(0, 200))
FAILURES = [reason for reason in FailureReason if reason is not FailureReason.CONTEXT_OVERFLOW]


@st.composite
def asking(draw: st.DrawFn) -> ModelReply:
    """A reply with calls of any kind: known and invented tools, the same arguments again, some that cannot be read."""
    names = draw(st.lists(st.sampled_from(["lookup", "poll", "save", "invented", "no such tool"]), min_size=1, max_size=4))
    numbers = [draw(st.integers(0, 3)) for _ in names]
    calls = [ToolCall(f"call_{index}", name, json.dumps({"q": q})) for index, (name, q) in enumerate(zip(names, numbers, strict=True))]
    bad = {call.id: "cut off" for call in calls if draw(st.integers(0, 4)) == 0}
    readable = tuple(ToolCall(call.id, call.name, "{}") if call.id in bad else call for call in calls)
    text = draw(st.sampled_from(["", "Let me see."]))
    return says(text, *readable, used=draw(USED), bad=bad, cost_usd=draw(st.sampled_from([None, 0.0, 0.01])))


SAYING: st.SearchStrategy[Said] = st.one_of(
    asking(),
    asking(),
    st.builds(lambda text, used: cut(text, used=used), TEXTS, USED),
    st.builds(lambda text, used, grow: cut_call(text, used=used, may_grow=grow), st.just("Let me"), USED, st.booleans()),
    st.builds(lambda used: cut("", reasoning="hm", used=used), USED),
    st.builds(lambda text, used: says(text, used=used), TEXTS, USED),
    st.just(says("I will not.", finish=FinishReason.REFUSAL)),
    st.just(says("Bad", finish=FinishReason.CONTENT_FILTER)),
    st.builds(lambda reason: ModelUnavailableError(reason, "It failed."), st.sampled_from(FAILURES)),
    st.just(ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "Too long.")),
)
SCENES = st.builds(
    Scene,
    max_iterations=st.integers(1, 6),
    max_tokens=st.one_of(st.none(), st.integers(1, 3_000)),
    max_cost_usd=st.one_of(st.none(), st.sampled_from([0.005, 0.05])),
    max_output_tokens=st.sampled_from([None, None, 100]),
    background=st.booleans(),
    guardrails=st.builds(GuardrailThresholds, hard_stop=st.sampled_from([None, True, False])),
)


def working(outcomes: list[str]) -> Workbench:
    """Tools that go well, fail or are empty, in turn."""
    numbers = iter(range(10_000))

    def work(call: ToolCall) -> str | Exception:
        outcome = outcomes[next(numbers) % len(outcomes)]
        return RuntimeError("it failed") if outcome == "fails" else outcome.format(call=call.id)

    return Workbench(work)


async def play(scene: Scene, said: list[Said]) -> Played:
    scene.summariser = TalkingModel(ModelUnavailableError(FailureReason.OVERLOADED, "Busy."))
    return await scene.play(*said)


@given(
    scene=SCENES,
    said=st.lists(SAYING, min_size=1, max_size=12),
    outcomes=st.lists(st.sampled_from(["{call} done", "the same", "fails", " "]), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_every_turn_ends_once_and_leaves_a_valid_history(scene: Scene, said: list[Said], outcomes: list[str]) -> None:
    scene.bench = working(outcomes)
    played = asyncio.run(play(scene, said))
    overflows = sum(isinstance(one, ContextOverflowError) for one in said[: len(played.model.requests)])
    overflows += MAX_OVERFLOWS if isinstance(said[-1], ContextOverflowError) else 0
    assert len(played.model.requests) <= scene.max_iterations + 1 + overflows
    closing = [number for number, request in enumerate(played.model.requests) if request.options.tool_choice == "none"]
    assert closing == list(range(len(played.model.requests)))[len(played.model.requests) - len(closing) :], "nothing follows it"
    assert len(closing) <= 1 + overflows
    assert sum(event.level is PressureLevel.EXHAUSTED for event in played.of(BudgetWarning)) <= 1
    assert history.repair(played.following.messages) == played.following.messages
    started = [event.tool_call_id for event in played.of(ToolStarted)]
    assert sorted(started) == sorted(event.tool_call_id for event in played.of(ToolCompleted))
    seqs = [row.seq for row in played.rows]
    assert seqs == sorted(set(seqs)), "every place is given once"
    assert all(event.message.content or event.message.tool_calls for event in played.of(MessageCompleted))
