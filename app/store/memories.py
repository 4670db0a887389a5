"""What models keep of end users: one row per tenant and end user, replaced as a whole."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, func, select, text

from app.domain.errors import NotFoundError
from app.domain.ids import SessionId, TenantId
from app.domain.memory import Memory
from app.store.engine import Database
from app.store.tables import memory, sessions

_COLUMNS = (memory.c.notes, memory.c.user_profile, memory.c.revision)

# One statement, so that of two writers with the same revision one is told to read again: both insert, or both update, the same row.
_REPLACE = text("""
WITH changed AS (
    UPDATE memory SET notes = :notes, user_profile = :user_profile, revision = revision + 1, updated_at = clock_timestamp()
    WHERE tenant_id = :tenant_id AND end_user = :end_user AND revision = :revision
    RETURNING 1
), made AS (
    INSERT INTO memory (tenant_id, end_user, notes, user_profile, revision)
    SELECT CAST(:tenant_id AS text), CAST(:end_user AS text), CAST(:notes AS text), CAST(:user_profile AS text), 1
    WHERE CAST(:revision AS bigint) = 0
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT 1 FROM changed UNION ALL SELECT 1 FROM made
""")


class MemoryRepository:
    """:class:`app.ports.MemoryStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_user(self, tenant_id: TenantId, user: str | None) -> Memory:
        """The memory of an end user."""
        rows = await self._database.fetch(select(*_COLUMNS).where(memory.c.tenant_id == tenant_id, memory.c.end_user == (user or "")))
        return _memory(rows[0]) if rows else Memory()

    async def of_session(self, tenant_id: TenantId, session_id: SessionId) -> tuple[str | None, Memory]:
        """The end user of a session with their memory. Raises NotFoundError."""
        same = and_(memory.c.tenant_id == sessions.c.tenant_id, memory.c.end_user == func.coalesce(sessions.c.end_user, ""))
        rows = await self._database.fetch(
            select(*_COLUMNS, sessions.c.end_user)
            .select_from(sessions.outerjoin(memory, same))
            .where(sessions.c.id == session_id, sessions.c.tenant_id == tenant_id)
        )
        if not rows:
            raise NotFoundError
        return rows[0].end_user, Memory() if rows[0].revision is None else _memory(rows[0])

    async def replace(self, tenant_id: TenantId, user: str | None, memory: Memory) -> bool:
        """Write a memory made of the one with its revision; false when somebody else wrote since."""
        params = {
            "tenant_id": tenant_id,
            "end_user": user or "",
            "notes": memory.notes,
            "user_profile": memory.user,
            "revision": memory.revision,
        }
        return bool(await self._database.fetch(_REPLACE, params))


def _memory(row: Sequence[Any]) -> Memory:
    notes, user, revision = row[:3]
    return Memory(notes=notes, user=user, revision=revision)
