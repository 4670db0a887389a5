"""Memories in memory, as :class:`app.ports.MemoryStore`."""

import asyncio

import msgspec
from typing_extensions import override

from app.domain.errors import NotFoundError
from app.domain.ids import SessionId, TenantId
from app.domain.memory import Memory
from app.ports import MemoryStore
from tests.fakes.sessions import InMemorySessions


class InMemoryMemories(MemoryStore):
    """The memories of :class:`InMemorySessions`. Every call lets other tasks run, as a database does."""

    def __init__(self, sessions: InMemorySessions) -> None:
        self._sessions = sessions
        self._memories: dict[tuple[TenantId, str], Memory] = {}

    @override
    async def of_user(self, tenant_id: TenantId, user: str | None) -> Memory:
        await asyncio.sleep(0)
        return self._memories.get((tenant_id, user or ""), Memory())

    @override
    async def of_session(self, tenant_id: TenantId, session_id: SessionId) -> tuple[str | None, Memory]:
        session = await self._sessions.get(tenant_id, session_id)
        if session is None:
            raise NotFoundError
        return session.user, await self.of_user(tenant_id, session.user)

    @override
    async def replace(self, tenant_id: TenantId, user: str | None, memory: Memory) -> bool:
        await asyncio.sleep(0)
        if self._memories.get((tenant_id, user or ""), Memory()).revision != memory.revision:
            return False
        self._memories[tenant_id, user or ""] = msgspec.structs.replace(memory, revision=memory.revision + 1)
        return True
