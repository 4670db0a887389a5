import asyncio

import pytest

from app.domain.errors import UnavailableError
from app.domain.ids import ReplicaId
from app.turns.lease import Lease
from tests.fakes.clock import HandClock, settle

TTL_S = 20.0
BEAT_S = 5.0


class Replicas:
    """Heartbeats in memory; can be away, and can be slow."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.beats: list[float] = []
        self.away = False
        self.answer_after_s = 0.0

    async def beat(self, replica: ReplicaId, ttl_s: float) -> int:
        if self.answer_after_s:
            await self.clock.sleep(self.answer_after_s)
        if self.away:
            raise UnavailableError("storage_unavailable", "away")
        self.beats.append(self.clock.monotonic())
        return len(self.beats)

    async def leave(self, replica: ReplicaId) -> None:
        self.beats.clear()

    async def others_alive(self, replica: ReplicaId) -> bool:
        return False


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@pytest.fixture
def replicas(hand: HandClock) -> Replicas:
    return Replicas(hand)


@pytest.fixture
def lease(hand: HandClock, replicas: Replicas) -> Lease:
    return Lease(ReplicaId("rep_a"), replicas, hand, ttl_s=TTL_S, beat_s=BEAT_S)


async def nothing() -> None:
    return None


async def test_is_not_valid_before_the_first_beat(lease: Lease) -> None:
    assert not lease.valid


async def test_lasts_a_ttl_from_the_moment_the_beat_was_sent(lease: Lease, hand: HandClock, replicas: Replicas) -> None:
    replicas.answer_after_s = 8.0
    beating = asyncio.ensure_future(lease.beat(nothing))
    await settle()
    await hand.advance(8.0)
    await beating
    await hand.advance(TTL_S - 8.0 - 0.1)
    assert lease.valid
    await hand.advance(0.1)
    assert not lease.valid


async def test_beats_go_on_at_their_pace_and_sooner_while_the_database_is_away(lease: Lease, hand: HandClock, replicas: Replicas) -> None:
    running = asyncio.ensure_future(lease.run(nothing))
    await settle()
    await hand.advance(BEAT_S)
    replicas.away = True
    await hand.advance(BEAT_S)
    await hand.advance(1.0)
    replicas.away = False
    await hand.advance(1.0)
    assert replicas.beats == [0.0, 5.0, 12.0]
    assert lease.valid
    running.cancel()


async def test_after_a_lapse_it_counts_again_only_when_the_turns_were_checked(lease: Lease, hand: HandClock) -> None:
    await lease.beat(nothing)
    await hand.advance(TTL_S + 1.0)
    assert not lease.valid
    seen: list[bool] = []

    async def check() -> None:
        seen.append(lease.valid)

    await lease.beat(check)
    assert seen == [False]
    assert lease.valid


async def test_waiting_for_it_ends_with_the_renewal(lease: Lease, hand: HandClock) -> None:
    await lease.beat(nothing)
    await hand.advance(TTL_S)
    waiting = asyncio.ensure_future(lease.wait_valid())
    await settle()
    assert not waiting.done()
    await lease.beat(nothing)
    await waiting


async def test_others_are_judged_only_after_a_full_ttl_of_own_contact(lease: Lease, hand: HandClock, replicas: Replicas) -> None:
    running = asyncio.ensure_future(lease.run(nothing))
    await settle()
    settled = []
    for _ in range(5):
        settled.append(lease.settled)
        await hand.advance(BEAT_S)
    assert settled == [False, False, False, False, True]
    replicas.away = True
    await hand.advance(BEAT_S)
    assert not lease.settled
    running.cancel()


async def test_contact_does_not_count_time_in_which_the_process_stood_still(lease: Lease, hand: HandClock) -> None:
    running = asyncio.ensure_future(lease.run(nothing))
    await settle()
    await hand.advance(60.0)
    assert lease.valid
    assert not lease.settled
    running.cancel()
