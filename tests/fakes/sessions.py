"""Sessions and their messages in memory: :class:`app.ports.SessionStore` and :class:`app.ports.MessageStore`."""

import asyncio

import msgspec
from typing_extensions import override

from app.domain.errors import ConflictError, UnavailableError
from app.domain.ids import MessageId, SessionId, TenantId, TurnId
from app.domain.messages import Message, MessageKind, StoredMessage
from app.domain.sessions import NewSession, Page, Session, SessionChange
from app.ports import Clock, MessageStore, SessionStore


class InMemorySessions(SessionStore):
    """Sessions; ``running`` holds the turn of a session that has one, ``away`` makes every call fail like a database that is gone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[SessionId, NewSession] = {}
        self._created_at_ms: dict[SessionId, int] = {}
        self.messages: dict[SessionId, list[StoredMessage]] = {}
        self.running: dict[SessionId, TurnId] = {}
        self.away = False

    def stored(self, session_id: SessionId) -> NewSession:
        """What was written for a session."""
        return self._sessions[session_id]

    def known(self, session_id: SessionId) -> bool:
        """Whether there is such a session."""
        return session_id in self._sessions

    def created_at_ms(self, session_id: SessionId) -> int:
        """When a session was created."""
        return self._created_at_ms[session_id]

    def of_tenant(self, tenant_id: TenantId) -> list[NewSession]:
        """What was written for the tenant's sessions, newest first."""
        found = [session for session in self._sessions.values() if session.tenant_id == tenant_id and session.parent_session_id is None]
        return sorted(found, key=lambda session: session.id, reverse=True)

    @override
    async def create(self, session: NewSession) -> tuple[Session, bool]:
        self._check()
        for known in self._sessions.values():
            same_key = session.idempotency_key is not None and known.idempotency_key == session.idempotency_key
            if same_key and known.tenant_id == session.tenant_id:
                if known.fingerprint != session.fingerprint:
                    raise ConflictError("idempotency_mismatch", "This idempotency key was used with another body.")
                return self._view(known), True
        self._sessions[session.id] = session
        self._created_at_ms[session.id] = self._clock.unix_ms()
        self.messages[session.id] = []
        for message_id, message in session.messages:
            self.append(session.id, MessageId(message_id), message)
        return self._view(session), False

    def append(self, session_id: SessionId, message_id: MessageId, message: Message, *, archived: bool = False) -> None:
        """Write a message behind the others."""
        rows = self.messages[session_id]
        rows.append(
            StoredMessage(
                id=message_id,
                session_id=session_id,
                seq=len(rows) + 1,
                turn_id=None,
                message=message,
                archived=archived,
                created_at_ms=self._clock.unix_ms(),
            )
        )

    @override
    async def get(self, tenant_id: TenantId, session_id: SessionId) -> Session | None:
        self._check()
        session = self._sessions.get(session_id)
        return self._view(session) if session is not None and session.tenant_id == tenant_id else None

    @override
    async def page(self, tenant_id: TenantId, limit: int, before: str | None, user: str | None) -> Page[Session]:
        self._check()
        found = [
            self._view(session)
            for session in self.of_tenant(tenant_id)
            if (before is None or session.id < before) and user in (None, session.user)
        ]
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if len(found) > limit else None)

    @override
    async def change(self, tenant_id: TenantId, session_id: SessionId, change: SessionChange) -> Session | None:
        known = await self.get(tenant_id, session_id)
        if known is None or change.if_user not in (msgspec.UNSET, known.user):
            return None
        given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
        given.pop("if_user", None)
        session = self._sessions[session_id] = msgspec.structs.replace(self._sessions[session_id], **given)
        return self._view(session)

    @override
    async def delete(self, tenant_id: TenantId, session_id: SessionId) -> bool:
        if await self.get(tenant_id, session_id) is None:
            return False
        if session_id in self.running:
            raise ConflictError("turn_in_progress", "A turn of this session is not over.", turn_id=self.running[session_id])
        self._remove(session_id)
        return True

    def _remove(self, session_id: SessionId) -> None:
        """Its children's sessions go with it."""
        for child in [known.id for known in self._sessions.values() if known.parent_session_id == session_id]:
            self._remove(child)
        del self._sessions[session_id]
        del self.messages[session_id]

    def _check(self) -> None:
        if self.away:
            raise UnavailableError("storage_unavailable", "The database cannot be reached right now.")

    def _view(self, session: NewSession) -> Session:
        return Session(
            id=session.id,
            tenant_id=session.tenant_id,
            system_prompt=session.system_prompt,
            model=session.model,
            toolsets=session.toolsets,
            user=session.user,
            keep_interrupted_text=session.keep_interrupted_text,
            metadata=session.metadata,
            active_turn_id=self.running.get(session.id),
            created_at_ms=self._created_at_ms[session.id],
            updated_at_ms=self._created_at_ms[session.id],
        )


class InMemoryMessages(MessageStore):
    """The messages of :class:`InMemorySessions`."""

    def __init__(self, sessions: InMemorySessions) -> None:
        self._sessions = sessions
        self.rounds = 0
        """Of the event loop, which reading a working set takes."""

    @override
    async def working_set(self, session_id: SessionId) -> list[StoredMessage]:
        for _ in range(self.rounds):
            await asyncio.sleep(0)
        return [row for row in self._sessions.messages.get(session_id, []) if not row.archived]

    @override
    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after_seq: int) -> Page[StoredMessage] | None:
        if await self._sessions.get(tenant_id, session_id) is None:
            return None
        rows = self._sessions.messages[session_id]
        found = [row for row in rows if row.seq > after_seq and row.message.kind is not MessageKind.NOTE]
        return Page(data=tuple(found[:limit]), next_cursor=str(found[limit - 1].seq) if len(found) > limit else None)
