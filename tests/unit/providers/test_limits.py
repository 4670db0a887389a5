import msgspec
import pytest

from app.domain.delivery import Booked, Limit, Refused, WindowUse
from app.domain.ids import ProviderId, TenantId
from app.domain.model import ApiMode, FailureReason
from app.domain.targets import credential_window, model_window, target_keys
from app.domain.tenants import Provider, Route
from app.providers import limits, local_windows
from app.providers.health import HEALTHY, Cooling, HealthBoard
from app.providers.limits import Limiter
from app.providers.local_windows import LocalWindows
from app.providers.rate_headers import Allowance, RateHeaders
from tests.fakes.clock import HandClock
from tests.fakes.cooldowns import InMemoryCooldowns
from tests.fakes.rate_windows import InMemoryRateWindows

TENANT = TenantId("ten_a")
PROVIDER = Provider(
    id=ProviderId("prov_1"), name="p", api_mode=ApiMode.CHAT_COMPLETIONS, base_url="http://p/v1", api_key="sk-1", headers={}, rpm=60
)
ROUTE = Route(provider=PROVIDER, model="m1", tpm=10_000)
KEYS = target_keys(TENANT, ROUTE)
CREDENTIAL = Limit(key=credential_window(TENANT, PROVIDER), rpm=60, tpm=None)
ONE = [Limit(key="w", rpm=1, tpm=None)]


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@pytest.fixture
def store(hand: HandClock) -> InMemoryRateWindows:
    return InMemoryRateWindows(hand)


@pytest.fixture
def board(hand: HandClock) -> HealthBoard:
    return HealthBoard(InMemoryCooldowns(hand), hand)


@pytest.fixture
def limiter(store: InMemoryRateWindows, board: HealthBoard, hand: HandClock) -> Limiter:
    return Limiter(store, board, hand)


def of_a_minute(limit: int, remaining: int = 1) -> Allowance:
    return Allowance(limit=limit, remaining=remaining, reset_s=10.0, window_s=60.0)


def model_limit(rpm: int | None, tpm: int | None) -> Limit:
    return Limit(key=model_window(TENANT, ROUTE), rpm=rpm, tpm=tpm)


async def test_a_call_is_booked_in_the_shared_windows(limiter: Limiter, store: InMemoryRateWindows) -> None:
    assert isinstance(await limiter.book(ONE, 10, 0.0), Booked)
    assert isinstance(await limiter.book(ONE, 10, 5.0), Refused)
    assert await store.use(["w"]) == {"w": WindowUse(calls=1, tokens=0)}


async def test_a_place_given_back_is_free_again(limiter: Limiter) -> None:
    booking = await limiter.book(ONE, 10, 0.0)
    assert isinstance(booking, Booked)
    await limiter.give_back(booking)
    assert isinstance(await limiter.book(ONE, 10, 0.0), Booked)


async def test_tokens_are_settled_where_they_are_limited_and_only_then(limiter: Limiter, store: InMemoryRateWindows) -> None:
    of_tokens = [Limit(key="t", rpm=None, tpm=1_000)]
    for chosen, used in ((ONE, 70), (of_tokens, 100), (of_tokens, 70)):
        booking = await limiter.book(chosen, 100, 5.0)
        assert isinstance(booking, Booked)
        await limiter.settle(booking, used)
    assert await store.use(["t"]) == {"t": WindowUse(calls=2, tokens=170)}
    assert [tokens for _, tokens in store.settled] == [70]


async def test_without_the_store_this_process_keeps_the_limit_and_counts_what_it_booked_before(
    limiter: Limiter, store: InMemoryRateWindows, hand: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    three = [Limit(key="w", rpm=3, tpm=1_000)]
    first = await limiter.book(three, 100, 0.0)
    assert isinstance(first, Booked)
    store.away = True
    await limiter.give_back(first)
    await limiter.settle(first, 50)

    bookings = [await limiter.book(three, 100, 0.0) for _ in range(4)]
    made = [booking for booking in bookings if isinstance(booking, Booked)]
    assert len(made) == 2
    await limiter.settle(made[0], 10)
    await limiter.give_back(made[1])
    assert isinstance(await limiter.book(three, 100, 0.0), Booked)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1

    store.away = False
    await limiter.give_back(made[0])
    assert store.given_back == []
    await hand.advance(62.0)
    assert isinstance(await limiter.book(three, 100, 0.0), Booked)


def test_nothing_is_to_be_booked_without_limits(limiter: Limiter) -> None:
    route = Route(provider=msgspec.structs.replace(PROVIDER, rpm=None), model="m1")
    assert limiter.limits_for(TENANT, route, KEYS) == ()


def test_configured_limits_hold_for_the_credential_and_for_the_model(limiter: Limiter) -> None:
    assert limiter.limits_for(TENANT, ROUTE, KEYS) == (CREDENTIAL, model_limit(None, 10_000))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(RateHeaders(requests=of_a_minute(20), tokens=of_a_minute(8_000)), (20, 8_000), id="lower"),
        pytest.param(RateHeaders(requests=None, tokens=of_a_minute(90_000)), (None, 10_000), id="higher than configured"),
        pytest.param(RateHeaders(requests=of_a_minute(20), tokens=None), (20, 10_000), id="requests only"),
    ],
)
async def test_limits_of_a_minute_are_learnt(limiter: Limiter, headers: RateHeaders, expected: tuple[int | None, int | None]) -> None:
    await limiter.learn(KEYS, headers)
    assert limiter.limits_for(TENANT, ROUTE, KEYS) == (CREDENTIAL, model_limit(*expected))


async def test_limits_of_unknown_windows_and_of_nothing_are_not_learnt(limiter: Limiter) -> None:
    unknown = Allowance(limit=5, remaining=3, reset_s=3_000.0, window_s=None)
    await limiter.learn(KEYS, RateHeaders(requests=unknown, tokens=of_a_minute(0)))
    assert limiter.limits_for(TENANT, ROUTE, KEYS) == (CREDENTIAL, model_limit(None, 10_000))


async def test_what_was_learnt_is_forgotten_after_ten_minutes_without_news(limiter: Limiter, hand: HandClock) -> None:
    await limiter.learn(KEYS, RateHeaders(requests=of_a_minute(20), tokens=None))
    await hand.advance(500.0)
    await limiter.learn(KEYS, RateHeaders(requests=of_a_minute(30), tokens=None))
    await hand.advance(500.0)
    assert limiter.limits_for(TENANT, ROUTE, KEYS)[1].rpm == 30
    await hand.advance(101.0)
    assert limiter.limits_for(TENANT, ROUTE, KEYS)[1].rpm is None


async def test_what_was_learnt_can_be_read_while_it_is_believed(limiter: Limiter, hand: HandClock) -> None:
    assert limiter.learnt(TENANT, ROUTE) is None
    await limiter.learn(KEYS, RateHeaders(requests=of_a_minute(20), tokens=of_a_minute(50_000)))
    assert limiter.learnt(TENANT, ROUTE) == model_limit(20, 50_000)
    assert limiter.learnt(TenantId("ten_b"), ROUTE) is None
    await hand.advance(601.0)
    assert limiter.learnt(TENANT, ROUTE) is None


async def test_a_limit_used_up_pauses_the_model_as_long_as_the_provider_says(limiter: Limiter, board: HealthBoard) -> None:
    await limiter.learn(KEYS, RateHeaders(requests=of_a_minute(20, remaining=3), tokens=None))
    assert board.standing(KEYS) == HEALTHY
    await limiter.learn(KEYS, RateHeaders(requests=of_a_minute(20, remaining=0), tokens=None))
    assert board.standing(KEYS) == Cooling(remaining_s=10.0, promised_s=10.0, reason=FailureReason.RATE_LIMIT)


async def test_what_is_learnt_is_bounded(limiter: Limiter) -> None:
    for number in range(limits.MAX_LEARNT + 20):
        keys = msgspec.structs.replace(KEYS, key_model=f"m:{number}")
        await limiter.learn(keys, RateHeaders(requests=of_a_minute(20), tokens=None))
    assert len(limiter._learnt) == limits.MAX_LEARNT


async def test_local_windows_are_bounded(hand: HandClock) -> None:
    windows = LocalWindows(hand)
    for number in range(local_windows.MAX_WINDOWS + 20):
        await windows.book([Limit(key=f"w{number}", rpm=1, tpm=None)], 1, 0.0)
    assert await windows.use(["w0"]) == {}
    await hand.advance(63.0)
    assert await windows.prune() == local_windows.MAX_WINDOWS
