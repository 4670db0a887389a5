"""The stores of one kind with what a test needs to set a scene in them: in memory, or in Postgres."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import text
from typing_extensions import override

from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message
from app.domain.openings import OpenTurn
from app.domain.sessions import NewSession
from app.ports import MessageStore, ReplicaStore, SessionStore, TurnStore, UsageStore
from app.store.engine import Database
from app.store.messages import MessageRepository
from app.store.replicas import ReplicaRepository
from app.store.sessions import SessionRepository
from app.store.turns import TurnRepository
from app.store.usage import UsageRepository
from tests.fakes.clock import HandClock
from tests.fakes.quotas import InMemoryUsage
from tests.fakes.replicas import InMemoryReplicas
from tests.fakes.sessions import InMemoryMessages, InMemorySessions
from tests.fakes.turns import InMemoryTurns
from tests.integration.store.builders import a_tenant, alive, an_id

TTL_S = 20.0


class World(Protocol):
    """Stores that belong together."""

    turns: TurnStore
    sessions: SessionStore
    messages: MessageStore
    replicas: ReplicaStore
    usage: UsageStore

    async def tenant(self) -> TenantId:
        """A new tenant."""

    async def alive(self, replica: ReplicaId, for_s: float = 60.0) -> None:
        """Let a replica live for some time yet; a negative one makes it long gone."""

    async def pass_time(self, seconds: float) -> None:
        """Everything that the turns store has happened so much longer ago."""

    async def archive(self, session_id: SessionId, before_seq: int) -> None:
        """Take messages out of the working set."""


async def taken_over(world: World, owner: ReplicaId, known: Sequence[TurnId] = ()) -> list[OpenTurn]:
    """Take over what nobody runs, right behind a beat."""
    return await world.turns.take_over(owner, known, 10, beat=await world.replicas.beat(owner, TTL_S))


async def new_session(world: World, tenant_id: TenantId, *messages: Message, **changes: str | None) -> SessionId:
    """A session with an imported history."""
    session = NewSession(
        id=SessionId(an_id("sess")),
        tenant_id=tenant_id,
        system_prompt="be kind",
        model=changes.get("model"),
        toolsets=(),
        tools=b"[]",
        user=changes.get("user"),
        keep_interrupted_text=False,
        metadata={},
        messages=tuple((an_id("msg"), message) for message in messages),
        idempotency_key=changes.get("idempotency_key"),
        fingerprint=(changes.get("fingerprint") or "").encode(),
    )
    created, _ = await world.sessions.create(session)
    return created.id


class MemoryWorld(World):
    """The fakes, on a clock that is driven by hand."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self._sessions = InMemorySessions(self.clock)
        self._replicas = InMemoryReplicas(self.clock)
        self.sessions = self._sessions
        self.messages = InMemoryMessages(self._sessions)
        self.replicas = self._replicas
        self.turns = InMemoryTurns(self._sessions, self._replicas, self.clock, ttl_s=TTL_S)
        self.usage = InMemoryUsage(self.turns, self.clock)

    @override
    async def tenant(self) -> TenantId:
        return TenantId(an_id("ten"))

    @override
    async def alive(self, replica: ReplicaId, for_s: float = 60.0) -> None:
        await self._replicas.beat(replica, for_s)

    @override
    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    @override
    async def archive(self, session_id: SessionId, before_seq: int) -> None:
        rows = self._sessions.messages[session_id]
        kept = [row for row in rows if row.seq >= before_seq]
        gone = [row for row in rows if row.seq < before_seq]
        rows.clear()
        for row in gone:
            self._sessions.append(session_id, MessageId(row.id), row.message, archived=True)
        rows.extend(kept)


class PostgresWorld(World):
    """The repositories, on a database of their own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sessions = SessionRepository(database)
        self.messages = MessageRepository(database)
        self.replicas = ReplicaRepository(database)
        self.turns = TurnRepository(database, lease_ttl_s=TTL_S)
        self.usage = UsageRepository(database)

    @override
    async def tenant(self) -> TenantId:
        return await a_tenant(self.database)

    @override
    async def alive(self, replica: ReplicaId, for_s: float = 60.0) -> None:
        await alive(self.database, replica, for_s)

    @override
    async def pass_time(self, seconds: float) -> None:
        columns = ("created_at", "started_at", "ended_at", "watched_until", "expires_at")
        shifts = ", ".join(f"{column} = {column} - make_interval(secs => :seconds)" for column in columns)
        await self.database.fetch(text(f"UPDATE turns SET {shifts}"), {"seconds": seconds})
        await self.database.fetch(
            text("UPDATE stateless_keys SET created_at = created_at - make_interval(secs => :seconds)"), {"seconds": seconds}
        )
        await self.database.fetch(
            text("UPDATE replicas SET expires_at = expires_at - make_interval(secs => :seconds)"), {"seconds": seconds}
        )

    @override
    async def archive(self, session_id: SessionId, before_seq: int) -> None:
        await self.database.fetch(
            text("UPDATE messages SET archived = true WHERE session_id = :id AND seq < :seq"), {"id": session_id, "seq": before_seq}
        )
