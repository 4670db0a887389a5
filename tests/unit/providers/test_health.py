import asyncio

import pytest
from typing_extensions import override

from app.domain.delivery import Cooldown
from app.domain.model import FailureReason as Reason
from app.domain.targets import TargetKeys
from app.providers import health
from app.providers.classify import Failure
from app.providers.health import HEALTHY, Cooling, HealthBoard, Probation, Standing
from tests.fakes.clock import HandClock, settle
from tests.fakes.cooldowns import InMemoryCooldowns

P1M1 = TargetKeys("k:1", "m:1", "r:1")
P1M3 = TargetKeys("k:1", "m:3", "r:3")
B_P1M1 = TargetKeys("k:b", "m:b", "r:b")


def failure(reason: Reason, retry_after_s: float | None = None, *, status: int | None = None) -> Failure:
    return Failure(
        reason=reason, retryable=True, message="", status=status, retry_after_s=retry_after_s, promised=retry_after_s is not None
    )


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@pytest.fixture
def store(hand: HandClock) -> InMemoryCooldowns:
    return InMemoryCooldowns(hand)


@pytest.fixture
def board(store: InMemoryCooldowns, hand: HandClock) -> HealthBoard:
    return HealthBoard(store, hand)


@pytest.fixture
def other_replica(store: InMemoryCooldowns, hand: HandClock) -> HealthBoard:
    return HealthBoard(store, hand)


def remaining(standing: Standing) -> float:
    assert isinstance(standing, Cooling)
    return standing.remaining_s


async def test_what_never_failed_is_healthy_without_a_look_at_the_store(board: HealthBoard, store: InMemoryCooldowns) -> None:
    assert board.standing(P1M1) == HEALTHY
    await board.succeeded(P1M1)
    assert await board.try_probe(P1M1)
    assert store.calls == []


async def test_a_failure_cools_down_at_once_and_is_written_once(board: HealthBoard, store: InMemoryCooldowns, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.RATE_LIMIT, 3.0, status=429))

    assert board.standing(P1M1) == Cooling(remaining_s=3.0, promised_s=3.0, reason=Reason.RATE_LIMIT)
    assert store.calls == ["report"]
    await hand.advance(2.0)
    assert remaining(board.standing(P1M1)) == pytest.approx(1.0)
    await hand.advance(1.5)
    assert board.standing(P1M1) == Probation(Reason.RATE_LIMIT)


@pytest.mark.parametrize(
    ("reason", "other_model_cools"),
    [
        pytest.param(Reason.RATE_LIMIT, False, id="rate limit: this model only"),
        pytest.param(Reason.OVERLOADED, False, id="overloaded: this route only"),
        pytest.param(Reason.BILLING, True, id="empty account: the credential"),
        pytest.param(Reason.AUTH, True, id="refused credential: the credential"),
    ],
)
async def test_a_cool_down_reaches_as_far_as_its_reason_and_never_another_tenant(
    board: HealthBoard, reason: Reason, other_model_cools: bool
) -> None:
    await board.failed(P1M1, failure(reason))
    assert isinstance(board.standing(P1M1), Cooling)
    assert isinstance(board.standing(P1M3), Cooling) == other_model_cools
    assert board.standing(B_P1M1) == HEALTHY


async def test_what_is_the_requests_own_fault_is_no_news(board: HealthBoard, store: InMemoryCooldowns) -> None:
    await board.failed(P1M1, failure(Reason.CONTEXT_OVERFLOW))
    assert board.standing(P1M1) == HEALTHY
    assert store.calls == []


async def test_other_replicas_know_with_their_next_refresh(board: HealthBoard, other_replica: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.OVERLOADED))
    assert other_replica.standing(P1M1) == HEALTHY
    await other_replica.refresh()
    assert remaining(other_replica.standing(P1M1)) == pytest.approx(5.0)

    await hand.advance(6.0)
    assert await board.try_probe(P1M1)
    await board.succeeded(P1M1)
    assert isinstance(other_replica.standing(P1M1), Probation)
    await other_replica.refresh()
    assert other_replica.standing(P1M1) == HEALTHY


async def test_after_the_cool_down_one_caller_of_all_replicas_probes(
    board: HealthBoard, other_replica: HealthBoard, hand: HandClock
) -> None:
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await other_replica.refresh()
    await hand.advance(6.0)

    claims = await asyncio.gather(*(one.try_probe(P1M1, 20.0) for one in (board, board, other_replica, other_replica)))
    assert claims == [True, False, False, False]
    await hand.advance(21.0)
    assert await other_replica.try_probe(P1M1, 20.0)


async def test_a_refused_probe_is_not_asked_for_again_within_the_second(
    board: HealthBoard, other_replica: HealthBoard, store: InMemoryCooldowns, hand: HandClock
) -> None:
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await other_replica.refresh()
    await hand.advance(6.0)
    assert await board.try_probe(P1M1)
    for _ in range(10):
        assert not await other_replica.try_probe(P1M1)
    assert store.calls.count("claim_probe") == 2


async def test_failures_in_a_row_make_it_longer_and_a_success_starts_anew(board: HealthBoard, hand: HandClock) -> None:
    waits = []
    for _ in range(4):
        await board.failed(P1M1, failure(Reason.SERVER_ERROR))
        waits.append(remaining(board.standing(P1M1)))
        await hand.advance(waits[-1] + 0.1)
        assert await board.try_probe(P1M1)
    assert waits == pytest.approx([5.0, 10.0, 20.0, 30.0])

    await board.succeeded(P1M1)
    assert board.standing(P1M1) == HEALTHY
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    assert remaining(board.standing(P1M1)) == pytest.approx(5.0)


async def test_many_calls_that_fail_together_are_one_failure(board: HealthBoard, hand: HandClock) -> None:
    await asyncio.gather(*(board.failed(P1M1, failure(Reason.CONNECTION_BROKEN)) for _ in range(50)))
    assert remaining(board.standing(P1M1)) == pytest.approx(5.0)
    await hand.advance(6.0)
    await board.failed(P1M1, failure(Reason.CONNECTION_BROKEN))
    assert remaining(board.standing(P1M1)) == pytest.approx(10.0)


async def test_the_circuit_opens_with_the_second_stall(board: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.FIRST_TOKEN_TIMEOUT))
    assert remaining(board.standing(P1M1)) == pytest.approx(10.0)
    await hand.advance(11.0)
    await board.failed(P1M1, failure(Reason.STALE))
    assert remaining(board.standing(P1M1)) == pytest.approx(60.0)


async def test_failures_are_counted_over_all_replicas(board: HealthBoard, other_replica: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await hand.advance(6.0)
    await other_replica.refresh()
    await other_replica.failed(P1M1, failure(Reason.SERVER_ERROR))
    assert remaining(other_replica.standing(P1M1)) == pytest.approx(10.0)


async def test_a_promise_is_not_cut_short_by_another_failure_or_a_success(board: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.RATE_LIMIT, 30.0))
    await board.failed(P1M1, failure(Reason.RATE_LIMIT))
    await board.succeeded(P1M1)
    promise = Cooling(remaining_s=30.0, promised_s=30.0, reason=Reason.RATE_LIMIT)
    assert board.standing(P1M1) == promise
    await board.refresh()
    assert board.standing(P1M1) == promise

    await hand.advance(31.0)
    await board.succeeded(P1M1)
    assert board.standing(P1M1) == HEALTHY


async def test_a_success_of_a_call_that_began_before_the_failure_proves_nothing(board: HealthBoard, hand: HandClock) -> None:
    began_at = hand.monotonic()
    await hand.advance(1.0)
    await board.failed(P1M1, failure(Reason.CONNECT_FAILED))
    await board.succeeded(P1M1, began_at)
    assert isinstance(board.standing(P1M1), Cooling)

    await board.refresh()
    await board.succeeded(P1M1, began_at)
    assert isinstance(board.standing(P1M1), Cooling)
    await board.succeeded(P1M1, hand.monotonic())
    assert board.standing(P1M1) == HEALTHY


async def test_a_limit_used_up_pauses_the_model_without_probation(
    board: HealthBoard, other_replica: HealthBoard, store: InMemoryCooldowns, hand: HandClock
) -> None:
    await board.used_up(P1M1, 20.0)
    await board.used_up(P1M1, 20.0)
    assert board.standing(P1M1) == Cooling(remaining_s=20.0, promised_s=0.0, reason=Reason.RATE_LIMIT)
    assert board.standing(P1M3) == HEALTHY
    assert store.calls == ["report"]

    await other_replica.refresh()
    await hand.advance(21.0)
    for one in (board, other_replica):
        assert one.standing(P1M1) == HEALTHY
        assert await one.try_probe(P1M1)


async def test_a_limit_used_up_for_moments_is_believed_without_asking(board: HealthBoard) -> None:
    await board.used_up(P1M1, 10.0)
    assert board.standing(P1M1) == Cooling(remaining_s=10.0, promised_s=10.0, reason=Reason.RATE_LIMIT)


async def test_a_guess_does_not_stretch_a_promise(board: HealthBoard, other_replica: HealthBoard) -> None:
    await board.failed(P1M1, failure(Reason.RATE_LIMIT, 3.0, status=429))
    await board.failed(P1M1, failure(Reason.RATE_LIMIT, status=429))
    await board.failed(P1M1, failure(Reason.SERVER_ERROR, status=500))
    await other_replica.refresh()
    for one in (board, other_replica):
        assert one.standing(P1M1) == Cooling(remaining_s=5.0, promised_s=3.0, reason=Reason.SERVER_ERROR)


async def test_a_probe_that_nobody_makes_is_free_for_the_next(board: HealthBoard, other_replica: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.SERVER_ERROR, status=500))
    await hand.advance(6.0)
    await other_replica.refresh()
    assert await board.try_probe(P1M1)
    assert not await other_replica.try_probe(P1M1)
    await board.leave_probe(P1M1)
    await hand.advance(1.5)
    assert await other_replica.try_probe(P1M1)


async def test_a_probe_that_is_not_won_for_every_key_holds_none_of_them(
    board: HealthBoard, other_replica: HealthBoard, hand: HandClock
) -> None:
    await board.failed(P1M1, failure(Reason.AUTH))
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await hand.advance(700.0)
    for one in (board, other_replica):
        await one.refresh()
    assert await other_replica.try_probe(TargetKeys("k:x", "m:x", "r:1"))
    assert not await board.try_probe(P1M1)
    assert await other_replica.try_probe(TargetKeys("k:1", "m:x", "r:x"))


async def test_a_probe_of_somebody_else_is_not_left(board: HealthBoard, other_replica: HealthBoard, hand: HandClock) -> None:
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await hand.advance(6.0)
    await other_replica.refresh()
    assert await other_replica.try_probe(P1M1)
    assert not await board.try_probe(P1M1)
    await board.leave_probe(P1M1)
    await hand.advance(1.5)
    assert not await board.try_probe(P1M1)


async def test_without_the_store_the_own_view_goes_on(
    board: HealthBoard, store: InMemoryCooldowns, hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await board.refresh()
    await board.refresh()
    assert remaining(board.standing(P1M1)) == pytest.approx(5.0)

    await hand.advance(6.0)
    assert await board.try_probe(P1M1)
    assert not await board.try_probe(P1M1)
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    assert remaining(board.standing(P1M1)) == pytest.approx(10.0)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1

    store.away = False
    await board.refresh()
    assert remaining(board.standing(P1M1)) == pytest.approx(10.0)
    store.away = True
    await board.succeeded(P1M1)
    assert board.standing(P1M1) == HEALTHY


async def test_what_could_not_be_written_is_forgotten_after_an_hour(board: HealthBoard, store: InMemoryCooldowns, hand: HandClock) -> None:
    store.away = True
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    store.away = False
    await hand.advance(3_500.0)
    await board.refresh()
    assert isinstance(board.standing(P1M1), Probation)
    await hand.advance(200.0)
    await board.refresh()
    assert board.standing(P1M1) == HEALTHY


class SlowReads(InMemoryCooldowns):
    """Answers a reading only when told to, with what it found when it was asked."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.answer = asyncio.Event()

    @override
    async def read(self, *, recent: bool = True) -> list[Cooldown]:
        found = await super().read(recent=recent)
        await self.answer.wait()
        return found


async def test_a_refresh_does_not_undo_what_happened_here_meanwhile(hand: HandClock) -> None:
    store = SlowReads(hand)
    board = HealthBoard(store, hand)
    await board.failed(P1M3, failure(Reason.SERVER_ERROR))
    refreshing = asyncio.create_task(board.refresh())
    await settle()
    await board.failed(P1M1, failure(Reason.SERVER_ERROR))
    await board.succeeded(P1M3, hand.monotonic())
    store.answer.set()
    await refreshing
    assert isinstance(board.standing(P1M1), Cooling)
    assert board.standing(P1M3) == HEALTHY


async def test_memory_is_bounded(board: HealthBoard, store: InMemoryCooldowns) -> None:
    store.away = True
    for number in range(health._MAX_ENTRIES + 50):
        await board.failed(TargetKeys(f"k:{number}", f"m:{number}", f"r:{number}"), failure(Reason.SERVER_ERROR))
    assert len(board._entries) == health._MAX_ENTRIES
    assert len(board._writing) == 0


async def test_what_failed_longest_ago_is_forgotten_first(
    board: HealthBoard, store: InMemoryCooldowns, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_MAX_ENTRIES", 2)
    first, second, third = (TargetKeys(f"k:{number}", f"m:{number}", f"r:{number}") for number in range(3))
    for keys in (first, second):
        await board.failed(keys, failure(Reason.SERVER_ERROR))
        await hand.advance(1.0)
    await board.refresh()
    await board.failed(third, failure(Reason.SERVER_ERROR))
    assert [isinstance(board.standing(keys), Cooling) for keys in (first, second, third)] == [False, True, True]
