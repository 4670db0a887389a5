"""Whatever models say, tools do and processes suffer: a turn ends once, within its budget, and its session takes the next one."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from app.agent.compactor import MAX_OVERFLOWS
from app.domain.compaction import Room
from app.domain.errors import ContextOverflowError, ModelUnavailableError
from app.domain.messages import Role
from app.domain.model import FailureReason, RouteRef
from app.domain.turns import TurnRequest, TurnState
from tests.unit.agent.sayings import SAYING, asking
from tests.unit.agent.scenes import Said, TalkingModel, says, wire_problems
from tests.unit.turns.fates import Chains, Event, Fate, FatedBench, FatedModel, World, exchanges
from tests.unit.turns.stage import types

SUMMARY = says("## Goal\nTo find out.\n## Facts\nEverything so far.")
SUMMARIES: st.SearchStrategy[Said] = st.sampled_from([SUMMARY, ModelUnavailableError(FailureReason.OVERLOADED, "Busy.")])
BEFALLS: st.SearchStrategy[Event] = st.sampled_from(["interrupt", "crash", "leave", "leave", "leave"])
PLANS = st.dictionaries(st.one_of(st.integers(1, 10), st.integers(1, 30)), BEFALLS, min_size=1, max_size=5)
NARROW = Room(window=3_000, output_tokens=200)
WIDE = Room(window=131_072, output_tokens=4_096)
RESULTS = ("short", "long " * 300, "fails", " ")


def working(fate: Fate, outcomes: list[str]) -> FatedBench:
    """Tools whose results are these in turn."""
    given_so_far = Counter[str]()

    def work(call: object) -> str | Exception:
        outcome = outcomes[given_so_far.total() % len(outcomes)]
        given_so_far["calls"] += 1
        return RuntimeError("it failed") if outcome == "fails" else outcome

    return FatedBench(fate, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a turn meets.

    ``outcomes`` are those of its tool calls in turn, ``plan`` what befalls its runners, ``exchanges`` how many came before.
    """

    request: TurnRequest
    said: list[Said]
    summary: Said
    outcomes: list[str]
    plan: dict[int, Event]
    room: Room
    exchanges: int


async def play(scene: Scene) -> None:
    """Play the turn and the one behind it, and check what must hold."""
    world, fate, said, request = World(), Fate(scene.plan), scene.said, scene.request
    session_id = await world.session(exchanges(scene.exchanges))
    model = FatedModel(fate, *said, room=scene.room)
    summariser = FatedModel(fate, scene.summary, room=WIDE, route=RouteRef(provider="summaries", model="m"))
    tools = working(fate, scene.outcomes)
    turn_id = await world.play(session_id, request, Chains(model, summariser), tools)

    row = world.stage.turns.rows[turn_id]
    frames = world.stage.frames(turn_id)
    seen = types(frames)
    event(f"{row.state.value} {row.reason}")
    event(f"handed over {seen.count('turn.resumed')} times")
    event(f"compactions: {[name for name in seen if name.startswith('compaction.')][1:2]}")
    ends = [name for name in seen if name in ("turn.completed", "turn.interrupted", "turn.failed")]
    assert len(ends) == 1
    assert seen[-1] == ends[0]
    numbers = [int(frame.split(b"\n", 1)[0].removeprefix(b"id: ")) for frame in frames]
    assert numbers == sorted(set(numbers))

    overflows = sum(isinstance(one, ContextOverflowError) for one in said[: len(model.requests)])
    overflows += MAX_OVERFLOWS if isinstance(said[-1], ContextOverflowError) else 0
    assert len(model.requests) <= request.max_iterations + 1 + overflows
    assert all(not wire_problems(asked) for asked in (*model.requests, *summariser.requests))

    calls = {name: Counter(_call_ids(frames, name)) for name in ("tool.started", "tool.completed")}
    assert calls["tool.started"] == calls["tool.completed"], "each call that began has one end"
    assert not Counter(tools.begun) - calls["tool.started"], "no call is run twice, or before its intent is stored"

    rows = world.stage.sessions.messages[session_id]
    assert [one.seq for one in rows] == sorted({one.seq for one in rows})
    assert next(one.message.content for one in rows if one.turn_id == turn_id and one.message.role is Role.USER) == "go"

    following = TalkingModel(says("Still here."), room=WIDE)
    next_id = await world.play(session_id, TurnRequest(input="And now?"), Chains(following, following), FatedBench(Fate({})))
    assert world.stage.turns.rows[next_id].state is TurnState.COMPLETED
    (asked,) = following.requests
    assert wire_problems(asked) == []
    assert str(asked.messages[-1].content).endswith("And now?")


def _call_ids(frames: list[bytes], name: str) -> list[str]:
    kind = f"\nevent: {name}\n".encode()
    return [json.loads(frame.partition(b"\ndata: ")[2])["tool_call_id"] for frame in frames if kind in frame]


SCENES = st.builds(
    Scene,
    request=st.builds(
        TurnRequest,
        input=st.just("go"),
        max_iterations=st.integers(1, 6),
        max_tokens=st.one_of(st.none(), st.none(), st.integers(1, 6_000)),
    ),
    said=st.lists(st.one_of(asking(), SAYING), min_size=1, max_size=8),
    summary=SUMMARIES,
    outcomes=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4),
    plan=PLANS,
    room=st.sampled_from([NARROW, NARROW, WIDE]),
    exchanges=st.sampled_from([0, 3, 7, 8, 9, 12]),
)


@given(scene=SCENES)
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_a_turn_outlives_interrupts_crashes_and_replicas_that_leave(scene: Scene) -> None:
    asyncio.run(play(scene))
