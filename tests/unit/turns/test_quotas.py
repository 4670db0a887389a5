"""A tenant's quotas where a turn is started."""

import asyncio
import math

import msgspec
import pytest

from app.domain.errors import ConflictError, NotFoundError, QuotaExceededError, UnavailableError
from app.domain.ids import SessionId
from app.domain.model import Usage
from app.domain.openings import OpenTurn
from app.domain.quotas import QuotaPolicy
from app.domain.tenants import TenantSettings
from app.domain.turns import Commit, EventRow, MachineState, OnBusy, RowKind, TurnRequest
from app.turns.quotas import SOON_S
from app.turns.service import Started, Turns
from tests.contract.steps import DONE
from tests.fakes.clock import settle
from tests.unit.turns.stage import Stage, Talker


class Door:
    """A replica's door for a tenant with quotas."""

    def __init__(self, settings: TenantSettings, *, limit: int = 100) -> None:
        self.stage = Stage()
        self.tenant = msgspec.structs.replace(self.stage.tenant, settings=settings)
        self.model = Talker()
        self.server = self.stage.server(self.model, limit=limit)
        self.turns: Turns = self.stage.service(self.server, self.model)

    async def start(self, session_id: SessionId | None = None, *, key: str | None = None, on_busy: OnBusy = OnBusy.REJECT) -> Started:
        return await self.turns.start(
            self.tenant,
            session_id or await self.stage.session(),
            TurnRequest(input="hello", on_busy=on_busy),
            idempotency_key=key,
            fingerprint=b"same",
        )

    async def refused(self, session_id: SessionId | None = None, *, key: str | None = None) -> QuotaExceededError:
        with pytest.raises(QuotaExceededError) as caught:
            await self.start(session_id, key=key)
        return caught.value

    async def used(self, usage: Usage, cost_usd: float | None = None) -> None:
        """A turn that ended just now."""
        turn = await self.stage.opened()
        assert isinstance(turn, OpenTurn)
        await self.stage.turns.commit(
            Commit(
                fence=turn.fence,
                previous_seq=turn.last_seq,
                last_seq=turn.last_seq + 1,
                rows=(EventRow(turn.last_seq + 1, turn.last_seq + 1, RowKind.TERMINAL, b"id: 2\n\n"),),
                state=MachineState(usage=usage, cost_usd=cost_usd),
                closing=DONE,
            )
        )


async def test_a_tenant_without_quotas_asks_no_store_about_them() -> None:
    door = Door(TenantSettings())
    started = await door.start()
    assert started.quotas == ()
    assert not door.stage.windows.bookings
    assert not door.stage.usage.calls
    assert set(door.stage.turns.calls) <= {"open", "get"}


async def test_more_turns_in_a_minute_than_allowed_are_refused_until_the_first_is_a_minute_old() -> None:
    door = Door(TenantSettings(requests_per_minute=2))
    first, second = await door.start(), await door.start()
    assert [state.remaining for started in (first, second) for state in started.quotas] == [1, 0]
    error = await door.refused()
    (violated,) = error.violated
    assert (violated.policy, violated.limit, violated.window_s, violated.remaining) == (QuotaPolicy.REQUESTS, 2, 60, 0)
    assert violated.reset_s is not None
    assert 0 < violated.reset_s <= 60
    assert door.turns.counters.quota_refusals["requests"] == 1
    await door.stage.clock.advance(62.0)
    await door.start()


async def test_who_comes_back_when_told_to_waits_at_most_for_the_rest_of_the_count_and_is_not_refused_again() -> None:
    door = Door(TenantSettings(requests_per_minute=1))
    await door.start()
    (violated,) = (await door.refused()).violated
    assert violated.reset_s is not None
    assert violated.window_s is not None
    assert math.ceil(violated.reset_s) <= violated.window_s
    began = door.stage.clock.monotonic()
    await door.stage.clock.advance(math.ceil(violated.reset_s))
    coming = asyncio.ensure_future(door.start())
    await door.stage.until(coming.done)
    assert isinstance(coming.result(), Started)
    assert 62.0 <= door.stage.clock.monotonic() - began + 0.1 <= 60.0 + SOON_S + 0.5


async def test_a_client_that_leaves_while_its_place_is_near_gives_it_back() -> None:
    door = Door(TenantSettings(requests_per_minute=1))
    await door.start()
    await door.stage.clock.advance(60.5)
    coming = asyncio.ensure_future(door.start())
    await settle()
    coming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await coming
    assert door.stage.windows.given_back == door.stage.windows.bookings[-1:]
    assert len(door.stage.windows.bookings) == 2


async def test_a_turn_that_was_not_opened_gives_its_place_back() -> None:
    door = Door(TenantSettings(requests_per_minute=2))
    session_id = await door.stage.session()
    await door.start(session_id)
    for _ in range(3):
        with pytest.raises(ConflictError, match="running turn"):
            await door.start(session_id)
    with pytest.raises(NotFoundError):
        await door.start(SessionId("sess_" + "0" * 26))
    await door.start()
    await door.refused()


async def test_a_full_replica_takes_no_place_in_the_minute() -> None:
    door = Door(TenantSettings(requests_per_minute=1), limit=0)
    with pytest.raises(UnavailableError, match="as many turns"):
        await door.start()
    assert door.stage.windows.bookings == door.stage.windows.given_back


async def test_a_repeated_key_finds_its_turn_also_when_the_quota_is_used_up_and_counts_nothing() -> None:
    door = Door(TenantSettings(requests_per_minute=2, max_concurrent_turns=2))
    session_id = await door.stage.session()
    first = await door.start(session_id, key="k")
    again = await door.start(session_id, key="k")
    assert (again.turn_id, again.replayed, again.quotas) == (first.turn_id, True, ())
    await door.start()
    assert (await door.start(session_id, key="k")).turn_id == first.turn_id
    assert (await door.refused(session_id, key="other")).violated[0].policy is QuotaPolicy.REQUESTS
    assert door.turns.counters.quota_refusals == {"requests": 1}


async def test_running_and_waiting_turns_count_as_concurrent_and_the_refused_one_gives_its_minute_back() -> None:
    door = Door(TenantSettings(requests_per_minute=10, max_concurrent_turns=2))
    session_id = await door.stage.session()
    await door.start(session_id)
    await door.start(session_id, on_busy=OnBusy.ENQUEUE)
    (violated,) = (await door.refused()).violated
    assert (violated.policy, violated.limit, violated.window_s, violated.remaining) == (QuotaPolicy.CONCURRENT_TURNS, 2, None, 0)
    assert door.stage.windows.given_back == door.stage.windows.bookings[-1:]


async def test_of_many_starts_at_once_no_more_than_allowed_are_opened() -> None:
    door = Door(TenantSettings(max_concurrent_turns=3))
    sessions = [await door.stage.session() for _ in range(10)]
    results = await asyncio.gather(*(door.start(session_id) for session_id in sessions), return_exceptions=True)
    assert sum(isinstance(result, Started) for result in results) == 3
    assert sum(isinstance(result, QuotaExceededError) for result in results) == 7


@pytest.mark.parametrize(
    ("settings", "policy", "limit"),
    [
        pytest.param(TenantSettings(tokens_per_day=100), QuotaPolicy.TOKENS, 100, id="tokens"),
        pytest.param(TenantSettings(cost_usd_per_day=0.5), QuotaPolicy.COST, 500_000, id="money"),
    ],
)
async def test_a_day_that_is_used_up_starts_no_turn_until_the_next_one(settings: TenantSettings, policy: QuotaPolicy, limit: int) -> None:
    door = Door(settings)
    await door.used(Usage(input_tokens=60, output_tokens=39), 0.499)
    started = await door.start()
    assert [state.remaining for state in started.quotas] == [1 if policy is QuotaPolicy.TOKENS else 1_000]
    await door.used(Usage(input_tokens=1), 0.001)
    (violated,) = (await door.refused()).violated
    assert (violated.policy, violated.limit, violated.window_s, violated.remaining) == (policy, limit, 86_400, 0)
    assert violated.reset_s is not None
    await door.stage.clock.advance(violated.reset_s + 1.0)
    await door.start()


async def test_all_quotas_of_the_day_that_are_used_up_are_named() -> None:
    door = Door(TenantSettings(tokens_per_day=10, cost_usd_per_day=0.1, requests_per_minute=1))
    await door.used(Usage(output_tokens=10), 0.2)
    assert [state.policy for state in (await door.refused()).violated] == [QuotaPolicy.TOKENS, QuotaPolicy.COST]
    assert not door.stage.windows.bookings
