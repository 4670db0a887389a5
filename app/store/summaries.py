"""Summaries, read, and the end of what they stand for. They are written in the commit of the turn that makes them."""

from typing import Any

import msgspec
from sqlalchemy import BigInteger, and_, cast, extract, select, text

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.model import Usage
from app.domain.sessions import Page
from app.domain.summaries import Summary
from app.store.engine import Database
from app.store.tables import sessions, summaries

_usage = msgspec.json.Decoder(Usage)
_CREATED_AT_MS = cast(extract("epoch", summaries.c.created_at) * 1000, BigInteger).label("created_at_ms")

_PRUNE = text("""
WITH gone AS (
    DELETE FROM messages WHERE (session_id, seq) IN (
        SELECT session_id, seq FROM messages m WHERE archived AND created_at < clock_timestamp() - make_interval(secs => :age_s)
          AND NOT EXISTS (SELECT 1 FROM messages p WHERE p.session_id = m.session_id AND p.seq = m.seq - 1 AND p.note AND NOT p.archived)
        ORDER BY created_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), replaced AS (
    DELETE FROM summaries WHERE id IN (
        SELECT id FROM summaries WHERE NOT active AND created_at < clock_timestamp() - make_interval(secs => :age_s)
        ORDER BY created_at LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM replaced) AS removed
""")


class SummaryRepository:
    """:class:`app.ports.SummaryStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[Summary] | None:
        """Summaries, newest first; ``None`` when the session is unknown to the tenant."""
        shown = summaries.c.session_id == sessions.c.id
        if before is not None:
            shown = and_(shown, summaries.c.id < before)
        # A known session without summaries gives one row of NULLs, an unknown one none.
        rows = await self._database.fetch(
            select(*summaries.c, _CREATED_AT_MS)
            .select_from(sessions.outerjoin(summaries, shown))
            .where(sessions.c.id == session_id, sessions.c.tenant_id == tenant_id)
            .order_by(summaries.c.id.desc())
            .limit(limit + 1)
        )
        if not rows:
            return None
        found = [_summary(row) for row in rows if row.id is not None]
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if len(found) > limit else None)


class ArchiveRepository:
    """:class:`app.ports.ArchiveStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prune(self, age_s: float) -> int:
        """Delete archived messages and replaced summaries older than ``age_s`` seconds, at most a thousand of each."""
        rows = await self._database.fetch(_PRUNE, {"age_s": age_s})
        return int(rows[0].removed)


def _summary(row: Any) -> Summary:
    return Summary(
        id=row.id,
        session_id=SessionId(row.session_id),
        turn_id=None if row.turn_id is None else TurnId(row.turn_id),
        active=row.active,
        body=row.body,
        first_seq=row.first_seq,
        last_seq=row.last_seq,
        tokens_before=row.tokens_before,
        tokens_after=row.tokens_after,
        usage=_usage.decode(row.usage),
        cost_usd=row.cost_usd,
        reason=row.reason,
        created_at_ms=row.created_at_ms,
    )
