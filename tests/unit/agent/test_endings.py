"""Whatever a model says and tools do, within any budget: a turn ends, once, and leaves a history that every provider takes."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.agent.compactor import MAX_OVERFLOWS
from app.context import history
from app.domain.conversation_events import BudgetWarning
from app.domain.errors import ContextOverflowError, ModelUnavailableError
from app.domain.events import MessageCompleted, ToolCompleted, ToolStarted
from app.domain.guardrails import GuardrailThresholds
from app.domain.messages import ToolCall
from app.domain.model import FailureReason
from app.domain.turns import PressureLevel
from tests.unit.agent.sayings import SAYING
from tests.unit.agent.scenes import Played, Said, Scene, TalkingModel, Workbench

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
