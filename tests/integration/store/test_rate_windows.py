"""Rate windows under concurrency, over several processes' connections and over a restart (cases C033, C035, C037)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from app.domain.delivery import Booked, Booking, Limit, Refused
from app.store.engine import Database
from app.store.rate_windows import RateWindows

LONG = 86_400.0
COUNT = text("SELECT count(*) AS found, coalesce(sum(cardinality(seconds)), 0) AS buckets FROM rate_windows")


@asynccontextmanager
async def a_replica(url: str, ahead_s: float = 0.0, connections: int = 4) -> AsyncIterator[RateWindows]:
    """Another process' windows: connections of its own."""
    database = Database(url, pool_size=connections)
    try:
        yield RateWindows(database, lambda: ahead_s)
    finally:
        await database.close()


async def book_all(windows: RateWindows, limits: Sequence[Limit], sizes: Sequence[int], patience_s: float) -> list[Booking]:
    """All at once."""
    return await asyncio.gather(*(windows.book(limits, tokens, patience_s) for tokens in sizes))


def booked(bookings: Sequence[Booking]) -> list[Booked]:
    return sorted((booking for booking in bookings if isinstance(booking, Booked)), key=lambda booking: booking.second)


def fullest(bookings: Sequence[Booking]) -> tuple[int, int]:
    """The most calls and tokens of any 60.5 seconds, where every call is made at the end of its second or anywhere in it."""
    made = booked(bookings)
    windows = [[other for other in made if one.second - 61.5 < other.second <= one.second] for one in made]
    return max(map(len, windows)), max(sum(booking.tokens for booking in window) for window in windows)


async def test_of_fifty_calls_at_the_same_instant_only_as_many_as_the_limit_are_made(database: Database) -> None:
    bookings = await book_all(RateWindows(database), [Limit(key="w", rpm=5, tpm=None)], [10] * 50, 0.0)

    assert len(booked(bookings)) == 5
    refusals = [booking for booking in bookings if isinstance(booking, Refused)]
    assert len(refusals) == 45
    assert all(refusal.limit == "rpm" and 59.0 < refusal.delay_s <= 62.0 for refusal in refusals)


@pytest.mark.parametrize(
    "limit",
    [pytest.param(Limit(key="w", rpm=60, tpm=None), id="requests"), pytest.param(Limit(key="w", rpm=None, tpm=6_000), id="tokens")],
)
async def test_two_replicas_with_150_calls_at_once_share_one_limit_of_60_a_minute(database_url: str, limit: Limit) -> None:
    async with a_replica(database_url) as one, a_replica(database_url) as other:
        halves = await asyncio.gather(*(book_all(windows, [limit], [100] * 75, LONG) for windows in (one, other)))
    bookings = booked([booking for half in halves for booking in half])

    assert len(bookings) == 150
    assert fullest(bookings)[0] <= 60
    first = bookings[0].second
    assert max(booking.second for booking in bookings) - first <= 126  # no place is left empty
    assert sum(booking.delay_s == 0.0 for booking in bookings) == 60


async def test_bookings_of_two_limits_on_many_connections_stay_within_both(database_url: str) -> None:
    """8 connections with 50 bookings each, the limits named in both orders: no deadlock, both kept at the same second."""
    credential, model = Limit(key="w", rpm=40, tpm=40_000), Limit(key="v", rpm=25, tpm=None)
    made: list[Booking] = []

    async def one_connection(number: int) -> None:
        limits = [(credential, model), (model, credential), (credential,)][number % 3]
        async with a_replica(database_url, connections=1) as windows:
            made.extend([await windows.book(limits, 100 + 50 * (turn % 7), LONG) for turn in range(50)])

    await asyncio.gather(*(one_connection(number) for number in range(8)))

    assert len(booked(made)) == 400
    calls, tokens = fullest(made)
    assert calls <= 40
    assert tokens <= 40_000
    assert fullest([booking for booking in booked(made) if "v" in booking.keys])[0] <= 25


async def test_a_restart_in_the_middle_of_a_window_forgets_nothing(database_url: str) -> None:
    only = [Limit(key="w", rpm=60, tpm=None)]
    async with a_replica(database_url) as before:
        made = await book_all(before, only, [10] * 45, LONG)
    async with a_replica(database_url, ahead_s=20.0) as after:
        made += await book_all(after, only, [10] * 45, LONG)

    assert len(booked(made)) == 90
    assert fullest(made)[0] <= 60


async def test_calls_are_made_in_the_order_in_which_they_were_booked(database: Database) -> None:
    windows = RateWindows(database)
    only = [Limit(key="w", rpm=3, tpm=1_000)]
    seconds = []
    for tokens in (400, 400, 300, 900, 1, 1, 1, 1):
        booking = await windows.book(only, tokens, LONG)
        assert isinstance(booking, Booked)
        seconds.append(booking.second)
    assert seconds == sorted(seconds)


async def test_giving_back_and_settling_beside_bookings_loses_no_count(database: Database) -> None:
    windows = RateWindows(database)
    only = [Limit(key="w", rpm=None, tpm=None)]

    async def one(number: int) -> None:
        booking = await windows.book(only, 100, LONG)
        assert isinstance(booking, Booked)
        if number % 2:
            await windows.give_back(booking)
        else:
            await windows.settle(booking, 30)

    await asyncio.gather(*(one(number) for number in range(60)))

    use = await windows.use(["w"])
    assert (use["w"].calls, use["w"].tokens) == (30, 900)


async def test_a_window_that_is_pruned_beside_its_booking_is_made_again(database: Database) -> None:
    windows = RateWindows(database)
    late = RateWindows(database, lambda: 200.0)
    only = [Limit(key="w", rpm=1_000, tpm=None)]
    bookings = await asyncio.gather(*(windows.book(only, 1, LONG) for _ in range(40)), *(late.prune() for _ in range(10)))
    assert sum(isinstance(booking, Booked) for booking in bookings) == 40


async def test_pruning_waits_for_nobody(database: Database) -> None:
    windows, late = RateWindows(database), RateWindows(database, lambda: 200.0)
    for key in ("a", "b"):
        await windows.book([Limit(key=key, rpm=1, tpm=None)], 1, 0.0)
    async with database.transaction() as connection, asyncio.timeout(5.0):
        await connection.execute(text("SELECT 1 FROM rate_windows WHERE key = 'a' FOR UPDATE"))
        assert await late.prune() == 1
    assert await late.prune() == 1


async def test_a_row_stays_small_and_50_000_keys_are_gone_after_a_window(database: Database) -> None:
    ahead = [0.0]
    windows = RateWindows(database, lambda: ahead[0])
    for _ in range(100):
        await windows.book([Limit(key="busy", rpm=None, tpm=None)], 1, 0.0)
        ahead[0] += 3.0
    assert (await database.fetch(COUNT))[0].buckets <= 21

    fill = text("""
        INSERT INTO rate_windows (key, seconds, calls, tokens)
        SELECT 'k' || n, ARRAY[CAST(extract(epoch FROM clock_timestamp()) + :ahead AS bigint)], '{1}', '{10}'
        FROM generate_series(1, 50000) AS n
    """)
    await database.fetch(fill, {"ahead": ahead[0]})
    assert await windows.prune() == 0

    ahead[0] += 63.0
    assert await windows.prune() == 50_001
    assert (await database.fetch(COUNT))[0].found == 0
