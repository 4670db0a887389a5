"""LISTEN/NOTIFY between replicas: only a hint, so it may be late, doubled or missing.

Notifications are coalesced (one ``pg_notify`` per :data:`COALESCE_S` at most) and sent outside any write's transaction. The payload is
``topic`` and turn ids, separated by spaces, split below Postgres' limit of 8,000 bytes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import asyncpg
from sqlalchemy import text

from app.domain.errors import UnavailableError
from app.domain.ids import TurnId
from app.ports import Clock
from app.store.engine import Database, Statement, plain_url

logger = logging.getLogger(__name__)

CHANNEL = "agent_gateway"
COALESCE_S = 0.02
RECONNECT_S = 1.0
MAX_IDS = 200
"""Turn ids of one payload (31 characters each)."""

_NOTIFY = Statement(text("SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS payload"))


class PostgresWakeups:
    """:class:`app.ports.Wakeups` over one listening connection and the ordinary pool."""

    def __init__(self, database: Database, direct_url: str, clock: Clock) -> None:
        self._database = database
        self._url = plain_url(direct_url)
        self._clock = clock
        self._pending: dict[str, set[TurnId]] = {}
        self._asked = asyncio.Event()
        self._listeners: dict[str, list[Callable[[str], None]]] = {}

    def announce(self, topic: str, turn_ids: Iterable[TurnId] = ()) -> None:
        """Tell every replica, soon and coalesced; never blocks, never raises."""
        self._pending.setdefault(topic, set()).update(turn_ids)
        self._asked.set()

    def subscribe(self, topic: str, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with a turn id (or an empty string) for each announcement under ``topic``."""
        self._listeners.setdefault(topic, []).append(listener)

    async def run_sender(self) -> None:
        """Send what was announced until cancelled."""
        while True:
            await self._asked.wait()
            await self._clock.sleep(COALESCE_S)
            self._asked.clear()
            pending, self._pending = self._pending, {}
            try:
                await self._database.fetch(_NOTIFY, {"channel": CHANNEL, "payloads": list(_payloads(pending))})
            except UnavailableError:
                logger.debug("an announcement was dropped: the database is away")
            except Exception:
                # The background-task boundary: hints may be lost, but not for ever.
                logger.exception("an announcement was dropped")

    async def run_listener(self) -> None:
        """Listen until cancelled; connects again when the connection is lost."""
        while True:
            try:
                await self._listen()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError):
                logger.debug("not listening for announcements: the database is away")
            except Exception:
                # As above.
                logger.exception("not listening for announcements")
            await self._clock.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._url, timeout=5.0)
        closed = asyncio.Event()
        try:
            connection.add_termination_listener(lambda *_: closed.set())
            await connection.add_listener(CHANNEL, self._received)
            await closed.wait()
        finally:
            await connection.close(timeout=1.0)

    def _received(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        topic, *turn_ids = str(payload).split(" ")
        for listener in self._listeners.get(topic, ()):
            for turn_id in turn_ids or ("",):
                listener(turn_id)


def _payloads(pending: dict[str, set[TurnId]]) -> Iterable[str]:
    for topic, turn_ids in pending.items():
        ids = sorted(turn_ids)
        for start in range(0, max(1, len(ids)), MAX_IDS):
            yield " ".join((topic, *ids[start : start + MAX_IDS]))
