"""What every :class:`app.ports.RateWindowStore` does."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from app.domain.delivery import Booked, Booking, Limit, Refused, WindowUse
from app.ports import RateWindowStore
from app.store.engine import Database
from app.store.rate_windows import RateWindows
from tests.fakes.clock import HandClock
from tests.fakes.rate_windows import InMemoryRateWindows

LONG = 86_400.0
A_WINDOW = (61.0, 62.0)
"""Between these is the wait for the place of a call that is made now."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Windows, and the way to let their time pass."""

    windows: RateWindowStore
    let_pass: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["memory", "postgres"])
def timed(request: pytest.FixtureRequest) -> Timed:
    if request.param == "memory":
        clock = HandClock()
        return Timed(InMemoryRateWindows(clock), clock.advance)
    database: Database = request.getfixturevalue("database")
    ahead = [0.0]

    async def let_pass(seconds: float) -> None:
        ahead[0] += seconds

    return Timed(RateWindows(database, lambda: ahead[0]), let_pass)


@pytest.fixture
def windows(timed: Timed) -> RateWindowStore:
    return timed.windows


def limit(key: str = "w", *, rpm: int | None = None, tpm: int | None = None) -> Limit:
    return Limit(key=key, rpm=rpm, tpm=tpm)


def booked(booking: Booking) -> Booked:
    assert isinstance(booking, Booked)
    return booking


def refused(booking: Booking) -> Refused:
    assert isinstance(booking, Refused)
    return booking


async def test_calls_within_the_limit_are_made_at_once_and_the_next_one_after_the_window(windows: RateWindowStore) -> None:
    bookings = [booked(await windows.book([limit(rpm=3)], 10, LONG)) for _ in range(5)]

    assert [booking.delay_s for booking in bookings[:3]] == [0.0, 0.0, 0.0]
    assert A_WINDOW[0] - 1 < bookings[3].delay_s <= A_WINDOW[1]
    assert bookings[3].second - bookings[0].second in {62, 63}
    assert bookings[3].limit == "rpm"
    assert bookings[4].second - bookings[3].second <= 1


async def test_a_call_beyond_the_patience_is_refused_with_the_time_and_costs_nothing(timed: Timed) -> None:
    only = [limit(rpm=1)]
    await timed.windows.book(only, 10, 0.0)

    refusals = [refused(await timed.windows.book(only, 10, 30.0)) for _ in range(5)]
    assert all(refusal.limit == "rpm" and 60.0 < refusal.delay_s <= 62.0 for refusal in refusals)
    assert await timed.windows.use(["w"]) == {"w": WindowUse(calls=1, tokens=10)}

    await timed.let_pass(refusals[-1].delay_s)
    assert booked(await timed.windows.book(only, 10, 0.05)).delay_s <= 0.05


async def test_one_who_knocks_every_second_gets_in_when_the_window_is_over(timed: Timed) -> None:
    for _ in range(2):
        booked(await timed.windows.book([limit(rpm=2)], 0, 0.0))
    got_in = []
    for second in range(1, 70):
        await timed.let_pass(1.0)
        if isinstance(await timed.windows.book([limit(rpm=2)], 0, 0.0), Booked):
            got_in.append(second)
    assert len(got_in) == 2
    assert got_in[0] in {61, 62}


async def test_tokens_are_limited_like_calls(windows: RateWindowStore) -> None:
    only = [limit(tpm=1_000)]
    assert booked(await windows.book(only, 600, LONG)).delay_s == 0.0
    assert refused(await windows.book(only, 500, 5.0)).limit == "tpm"
    assert booked(await windows.book(only, 400, LONG)).delay_s == 0.0
    assert booked(await windows.book(only, 500, LONG)).delay_s > 60.0


async def test_nobody_overtakes_a_call_that_waits(windows: RateWindowStore) -> None:
    only = [limit(tpm=1_000)]
    await windows.book(only, 600, LONG)
    large = booked(await windows.book(only, 500, LONG))
    assert large.limit == "tpm"
    small = booked(await windows.book(only, 1, LONG))
    assert small.second >= large.second
    assert refused(await windows.book(only, 1, 5.0)).delay_s > 60.0


async def test_a_freed_place_before_a_call_that_waits_is_not_for_those_behind_it(windows: RateWindowStore) -> None:
    only = [limit(tpm=1_000)]
    first = booked(await windows.book(only, 600, LONG))
    large = booked(await windows.book(only, 500, LONG))
    await windows.give_back(first)
    assert booked(await windows.book(only, 1, LONG)).second >= large.second


async def test_a_call_that_waits_for_one_limit_is_not_overtaken_in_the_other(windows: RateWindowStore) -> None:
    credential, model = limit("w", rpm=10), limit("v", rpm=1)
    await windows.book([credential, model], 1, LONG)
    waiting = booked(await windows.book([credential, model], 1, LONG))
    assert booked(await windows.book([credential], 1, LONG)).second >= waiting.second


async def test_a_call_larger_than_the_limit_goes_again_when_it_used_nothing(windows: RateWindowStore) -> None:
    only = [limit(tpm=1_000)]
    await windows.settle(booked(await windows.book(only, 5_000, 0.0)), 0)
    assert booked(await windows.book(only, 5_000, 0.0)).delay_s == 0.0


async def test_a_call_larger_than_the_limit_goes_alone(timed: Timed) -> None:
    only = [limit(tpm=1_000)]
    assert booked(await timed.windows.book(only, 5_000, 0.0)).delay_s == 0.0
    assert refused(await timed.windows.book(only, 1, 0.0)).delay_s > 60.0

    await timed.let_pass(62.0)
    booked(await timed.windows.book(only, 1, 0.0))
    assert refused(await timed.windows.book(only, 5_000, 0.0)).limit == "tpm"


async def test_two_limits_are_booked_for_the_same_second(windows: RateWindowStore) -> None:
    both = [limit("w", rpm=10), limit("v", rpm=1)]
    await windows.book(both, 10, LONG)
    later = booked(await windows.book(both, 10, LONG))

    assert later.keys == ("w", "v")
    assert later.delay_s > 60.0
    assert later.limit == "rpm"
    assert await windows.use(["w", "v"]) == {"w": WindowUse(calls=2, tokens=20), "v": WindowUse(calls=2, tokens=20)}


async def test_a_refusal_by_one_limit_books_nothing_in_the_other(windows: RateWindowStore) -> None:
    await windows.book([limit("v", rpm=1)], 10, 0.0)

    assert refused(await windows.book([limit("w", rpm=10), limit("v", rpm=1)], 10, 5.0)).limit == "rpm"
    assert (await windows.use(["w", "v"])).get("w", WindowUse(calls=0, tokens=0)) == WindowUse(calls=0, tokens=0)
    assert booked(await windows.book([limit("w", rpm=1)], 10, 0.0)).delay_s == 0.0


async def test_credentials_do_not_share_a_window(windows: RateWindowStore) -> None:
    await windows.book([limit("w", rpm=1)], 10, 0.0)
    assert booked(await windows.book([limit("other", rpm=1)], 10, 0.0)).delay_s == 0.0


async def test_a_place_given_back_is_free_again(windows: RateWindowStore) -> None:
    only = [limit(rpm=2, tpm=100)]
    first = booked(await windows.book(only, 50, 0.0))
    await windows.book(only, 50, 0.0)
    waiting = booked(await windows.book(only, 50, LONG))

    await windows.give_back(waiting)
    await windows.give_back(first)

    assert await windows.use(["w"]) == {"w": WindowUse(calls=1, tokens=50)}
    assert booked(await windows.book(only, 50, 0.0)).delay_s == 0.0


async def test_settling_replaces_the_estimate_by_what_was_used(windows: RateWindowStore) -> None:
    only = [limit(tpm=1_000)]
    first = booked(await windows.book(only, 900, 0.0))
    await windows.settle(first, 200)
    assert await windows.use(["w"]) == {"w": WindowUse(calls=1, tokens=200)}

    second = booked(await windows.book(only, 700, 0.0))
    await windows.settle(second, 2_000)
    assert await windows.use(["w"]) == {"w": WindowUse(calls=2, tokens=2_200)}
    assert refused(await windows.book(only, 1, 5.0)).limit == "tpm"


async def test_what_is_used_never_falls_below_zero(windows: RateWindowStore) -> None:
    first = booked(await windows.book([limit(tpm=1_000)], 100, 0.0))
    await windows.settle(first, 0)
    await windows.settle(first, 0)
    assert await windows.use(["w"]) == {"w": WindowUse(calls=1, tokens=0)}


async def test_settling_and_giving_back_what_counts_no_more_is_harmless(timed: Timed) -> None:
    old = booked(await timed.windows.book([limit(rpm=1)], 100, 0.0))
    await timed.let_pass(70.0)
    booked(await timed.windows.book([limit(rpm=1)], 100, 0.0))

    await timed.windows.settle(old, 5)
    await timed.windows.give_back(old)
    await timed.windows.give_back(Booked(keys=("unknown",), second=1, tokens=1, delay_s=0.0))

    assert await timed.windows.use(["w", "unknown"]) == {"w": WindowUse(calls=1, tokens=100)}


async def test_a_window_without_limits_counts_only(windows: RateWindowStore) -> None:
    for _ in range(5):
        assert booked(await windows.book([limit()], 1_000, 0.0)).delay_s == 0.0
    assert await windows.use(["w"]) == {"w": WindowUse(calls=5, tokens=5_000)}


async def test_idle_windows_are_pruned_and_others_kept(timed: Timed) -> None:
    for key in ("a", "b", "c"):
        await timed.windows.book([limit(key, rpm=1)], 1, LONG)
    assert await timed.windows.prune() == 0

    await timed.let_pass(50.0)
    await timed.windows.book([limit("c", rpm=1)], 1, LONG)
    await timed.let_pass(20.0)
    assert await timed.windows.prune() == 2
    assert set(await timed.windows.use(["a", "b", "c"])) == {"c"}

    await timed.let_pass(120.0)
    assert await timed.windows.prune() == 1
    assert booked(await timed.windows.book([limit("c", rpm=1)], 1, 0.0)).delay_s == 0.0


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_minute_of_any_alignment_ever_exceeds_the_limits(timed: Timed, seed: int) -> None:
    """Ten minutes of bursts and pauses: what is made, at the latest moment of its second, keeps every window of 60.5 seconds."""
    chance = random.Random(seed)
    only = [limit(rpm=20, tpm=5_000)]
    calls: list[tuple[int, int]] = []
    for _ in range(60):
        for _ in range(chance.choice([1, 1, 2, 12])):
            tokens = chance.randint(1, 700)
            booking = await timed.windows.book(only, tokens, 40.0)
            if isinstance(booking, Booked) and chance.random() < 0.1:
                await timed.windows.give_back(booking)
            elif isinstance(booking, Booked):
                calls.append((booking.second, tokens))
        await timed.let_pass(chance.uniform(0.0, 20.0))

    assert calls == sorted(calls, key=lambda call: call[0])
    for second, _ in calls:
        window = [tokens for at, tokens in calls if second - 61.5 < at <= second]
        assert len(window) <= 20
        assert sum(window) <= 5_000
    assert max(sum(at // 60 == minute for at, _ in calls) for minute in {at // 60 for at, _ in calls}) >= 15  # it is used as well
