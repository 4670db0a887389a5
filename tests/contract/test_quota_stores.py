"""What a tenant's quotas rest on: openings within a number of turns, and the use of a day."""

import asyncio

import msgspec
import pytest

from app.domain.ids import SessionId, TenantId
from app.domain.model import Usage
from app.domain.openings import NewTurn, OpenTurn, Queued, Replayed, TooManyOpen
from app.domain.quotas import Spent
from app.domain.turns import Closing, Commit, MachineState, OnBusy, TurnState
from app.ports import TurnStore
from tests.contract.steps import DONE, STOPPED, opened, step
from tests.contract.worlds import World, new_session, taken_over
from tests.integration.store.builders import A, B, a_turn


def within(turn: NewTurn, max_open: int) -> NewTurn:
    return NewTurn(**{name: getattr(turn, name) for name in turn.__struct_fields__} | {"max_open": max_open})


async def test_running_and_queued_turns_count_until_they_end(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    running = await turns.open(within(a_turn(tenant_id, session_id), 2))
    assert isinstance(running, OpenTurn)
    waiting = within(a_turn(tenant_id, session_id, owner=None, on_busy=OnBusy.ENQUEUE), 2)
    assert await turns.open(waiting) == Queued(turn_id=waiting.id)
    other = await new_session(world, tenant_id)
    assert await turns.open(within(a_turn(tenant_id, other), 2)) == TooManyOpen()
    assert await turns.open(within(a_turn(tenant_id, other, owner=None), 2)) == TooManyOpen()
    await turns.commit(step(running, closing=DONE))
    assert isinstance(await turns.open(within(a_turn(tenant_id, other), 2)), OpenTurn)


async def test_turns_of_another_tenant_do_not_count(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    other = await world.tenant()
    await opened(turns, other, await new_session(world, other))
    assert isinstance(await turns.open(within(a_turn(tenant_id, await new_session(world, tenant_id)), 1)), OpenTurn)


async def test_a_refused_opening_leaves_nothing_behind(turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId) -> None:
    running = await turns.open(within(a_turn(tenant_id, session_id), 1))
    assert isinstance(running, OpenTurn)
    other = await new_session(world, tenant_id)
    refused = within(a_turn(tenant_id, other), 1)
    assert await turns.open(refused) == TooManyOpen()
    assert await turns.get(tenant_id, refused.id) is None
    assert await world.messages.working_set(other) == []


async def test_a_repeated_key_finds_its_turn_although_no_other_may_be_opened(
    turns: TurnStore, tenant_id: TenantId, session_id: SessionId
) -> None:
    first = await turns.open(within(a_turn(tenant_id, session_id, key="k"), 1))
    assert isinstance(first, OpenTurn)
    found = Replayed(turn_id=first.fence.turn_id, same_body=True)
    assert await turns.open(within(a_turn(tenant_id, session_id, key="k"), 1)) == found
    assert await turns.replayed(a_turn(tenant_id, session_id, key="k")) == found
    assert await turns.replayed(a_turn(tenant_id, session_id, key="other")) is None
    assert await turns.replayed(a_turn(tenant_id, session_id)) is None


@pytest.mark.parametrize("queued", [False, True], ids=["started", "queued"])
async def test_of_many_openings_at_once_no_more_than_allowed_succeed(
    turns: TurnStore, world: World, tenant_id: TenantId, queued: bool
) -> None:
    asked = []
    for _ in range(12):
        turn = a_turn(tenant_id, await new_session(world, tenant_id))
        asked.append(within(a_turn(tenant_id, turn.session_id or SessionId(""), owner=None) if queued else turn, 4))
    openings = await asyncio.gather(*(turns.open(turn) for turn in asked))
    assert sum(opening == TooManyOpen() for opening in openings) == 8
    views = [await turns.get(tenant_id, turn.id) for turn in asked]
    states = [view.state for view in views if view is not None]
    assert states == [TurnState.QUEUED if queued else TurnState.RUNNING] * 4


async def test_the_first_look_at_a_day_finds_what_its_turns_have_used_and_every_end_adds_to_it(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    used = MachineState(usage=Usage(input_tokens=70, output_tokens=30, cached_input_tokens=50), cost_usd=0.25)
    for closing in (DONE, STOPPED):
        await turns.commit(step(await opened(turns, tenant_id, session_id), state=used, closing=closing))
    for ended in range(2, 5):
        use = await world.usage.today(tenant_id)
        assert (use.tokens, use.cost_usd) == (100 * ended, 0.25 * ended)
        assert 0 < use.ends_in_s <= 86_400
        turn = await opened(turns, tenant_id, session_id)
        await turns.commit(step(turn, state=used))
        assert (await world.usage.today(tenant_id)).tokens == 100 * ended, "a step is not counted unless that is asked for"
        end = step(
            OpenTurn(**{name: getattr(turn, name) for name in turn.__struct_fields__} | {"last_seq": turn.last_seq + 1}),
            state=used,
            closing=DONE,
        )
        await turns.commit(end)
        await turns.commit(end)  # the answer was lost: nothing is counted twice


async def test_the_use_of_other_tenants_and_other_days_is_not_todays(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    used = MachineState(usage=Usage(input_tokens=70), cost_usd=0.25)
    await turns.commit(step(await opened(turns, tenant_id, session_id), state=used, closing=DONE))
    await world.pass_time(2 * 86_400.0)
    other = await world.tenant()
    await turns.commit(step(await opened(turns, other, await new_session(world, other)), state=used, closing=DONE))
    for tenant, tokens in ((tenant_id, 0), (other, 70)):
        assert (await world.usage.today(tenant)).tokens == tokens


async def test_ends_at_the_same_time_are_all_counted(turns: TurnStore, world: World, tenant_id: TenantId) -> None:
    await world.usage.today(tenant_id)
    running = [await opened(turns, tenant_id, await new_session(world, tenant_id)) for _ in range(8)]
    used = MachineState(usage=Usage(output_tokens=5))
    await asyncio.gather(*(turns.commit(step(turn, state=used, closing=DONE)) for turn in running))
    assert (await world.usage.today(tenant_id)).tokens == 40


def counting(turn: OpenTurn, used: Usage, cost_usd: float, *, counted: Spent, seq: int, closing: Closing | None = None) -> Commit:
    """A step that adds to the day what was used since ``counted``."""
    at = msgspec.structs.replace(turn, last_seq=seq - 1)
    state = MachineState(usage=used, cost_usd=cost_usd, counted=counted)
    return msgspec.structs.replace(step(at, state=state, closing=closing), counts=True)


async def test_a_step_adds_to_the_day_what_was_used_since_the_one_before_and_tells_the_sums(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    await world.usage.today(tenant_id)
    turn, other = await opened(turns, tenant_id, session_id), await opened(turns, tenant_id, await new_session(world, tenant_id))
    some, more = Usage(input_tokens=70, output_tokens=30), Usage(input_tokens=150, output_tokens=50)
    seq = turn.last_seq
    first = counting(turn, some, 0.25, counted=Spent(), seq=seq + 1)
    told = (await turns.commit(first)).day
    assert told is not None
    assert (told.tokens, told.cost_usd) == (100, 0.25)
    await turns.commit(first)  # the answer was lost: nothing is counted twice
    told = (await turns.commit(counting(other, more, 0.5, counted=Spent(), seq=other.last_seq + 1))).day
    assert told is not None
    assert (told.tokens, told.cost_usd) == (300, 0.75), "what other turns have told is in it"
    await turns.commit(counting(turn, more, 0.5, counted=Spent(100, 0.25), seq=seq + 2))
    end = msgspec.structs.replace(counting(turn, more, 0.5, counted=Spent(200, 0.5), seq=seq + 3, closing=DONE), counts=False)
    await turns.commit(end)
    use = await world.usage.today(tenant_id)
    assert (use.tokens, use.cost_usd, use.day) == (400, 1.0, told.day)


async def test_who_takes_a_turn_over_knows_what_of_it_is_counted(
    turns: TurnStore, world: World, tenant_id: TenantId, session_id: SessionId
) -> None:
    await world.usage.today(tenant_id)
    turn = await opened(turns, tenant_id, session_id)
    await turns.commit(counting(turn, Usage(output_tokens=100), 0.25, counted=Spent(), seq=turn.last_seq + 1))
    await world.alive(A, -1.0)
    await world.alive(B)
    (taken,) = await taken_over(world, B)
    assert taken.state.counted == Spent(100, 0.25)
    ended = msgspec.structs.replace(taken.state, usage=Usage(output_tokens=130), cost_usd=0.5)
    await turns.commit(step(taken, state=ended, closing=STOPPED))
    use = await world.usage.today(tenant_id)
    assert (use.tokens, use.cost_usd) == (130, 0.5)
