"""Notifications between replicas: soon, coalesced, and only ever a hint."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
from sqlalchemy import text

from app.domain.ids import TurnId
from app.ports import Clock
from app.store.engine import Database
from app.store.wakeups import CHANNEL, MAX_IDS, PostgresWakeups
from tests.integration.store.builders import an_id

LISTENERS = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")


class Heard:
    """What a replica was told under the topic ``events``."""

    def __init__(self, wakeups: PostgresWakeups) -> None:
        self.ids: list[str] = []
        self.other = 0
        wakeups.subscribe("events", self.ids.append)
        wakeups.subscribe("queue", self._count)

    def _count(self, _turn_id: str) -> None:
        self.other += 1


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def listening(database: Database, count: int) -> None:
    async with asyncio.timeout(10.0):
        while len(await database.fetch(LISTENERS)) != count:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(wakeups: PostgresWakeups) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(wakeups.run_sender()), asyncio.ensure_future(wakeups.run_listener())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def sender(database: Database, database_url: str, clock: Clock) -> AsyncIterator[PostgresWakeups]:
    wakeups = PostgresWakeups(database, database_url, clock)
    async with working(wakeups):
        yield wakeups


@pytest.fixture
async def heard(database: Database, database_url: str, clock: Clock, sender: PostgresWakeups) -> AsyncIterator[Heard]:
    """Another replica, listening."""
    wakeups = PostgresWakeups(database, database_url, clock)
    told = Heard(wakeups)
    async with working(wakeups):
        await listening(database, 2)
        yield told


async def test_another_replica_hears_the_ids_under_their_topic(sender: PostgresWakeups, heard: Heard) -> None:
    turn_id = TurnId(an_id("turn"))
    sender.announce("events", (turn_id,))
    sender.announce("queue")
    await until(lambda: heard.ids and heard.other)
    assert (heard.ids, heard.other) == ([turn_id], 1)


async def test_announcements_are_coalesced(database: Database, sender: PostgresWakeups, heard: Heard) -> None:
    ids = [TurnId(an_id("turn")) for _ in range(5)]
    for _ in range(200):
        sender.announce("events", ids)
        sender.announce("queue")
    await until(lambda: len(heard.ids) == 5)
    await asyncio.sleep(0.1)
    assert sorted(heard.ids) == sorted(ids)
    assert heard.other == 1


async def test_more_ids_than_one_notification_can_hold_are_split(sender: PostgresWakeups, heard: Heard) -> None:
    ids = [TurnId(an_id("turn")) for _ in range(3 * MAX_IDS + 7)]
    sender.announce("events", ids)
    await until(lambda: len(heard.ids) == len(ids))
    assert sorted(heard.ids) == sorted(ids)


async def test_a_replica_hears_itself(database: Database, database_url: str, clock: Clock) -> None:
    wakeups = PostgresWakeups(database, database_url, clock)
    told = Heard(wakeups)
    async with working(wakeups):
        await listening(database, 1)
        wakeups.announce("events", (TurnId("turn_1"),))
        await until(lambda: told.ids == ["turn_1"])


async def test_listening_begins_again_when_the_connection_was_killed(
    database: Database, database_url: str, sender: PostgresWakeups, heard: Heard
) -> None:
    killer = await asyncpg.connect(database_url)
    try:
        before = {row.pid for row in await database.fetch(LISTENERS)}
        for pid in before:
            await killer.execute("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(10.0):
            while len({row.pid for row in await database.fetch(LISTENERS)} - before) != 2:
                await asyncio.sleep(0.05)
    finally:
        await killer.close()
    sender.announce("events", (TurnId("turn_2"),))
    await until(lambda: heard.ids == ["turn_2"])


async def test_a_payload_that_is_not_ours_does_no_harm(database_url: str, sender: PostgresWakeups, heard: Heard) -> None:
    stranger = await asyncpg.connect(database_url)
    try:
        for payload in ("", " ", "unknown turn_1", "events"):
            await stranger.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
    finally:
        await stranger.close()
    sender.announce("events", (TurnId("turn_3"),))
    await until(lambda: "turn_3" in heard.ids)
    assert heard.ids == ["", "turn_3"]


async def test_announcing_never_fails_also_while_the_database_is_away(clock: Clock) -> None:
    url = "postgresql://nobody@127.0.0.1:9/none"
    database = Database(url, pool_size=1)
    wakeups = PostgresWakeups(database, url, clock)
    async with working(wakeups):
        wakeups.announce("events", (TurnId("turn_1"),))
        await asyncio.sleep(0.2)
        wakeups.announce("events")
        await asyncio.sleep(0.1)
    await database.close()
