"""Cards of sessions' boards. Only a turn's tools write, with the session that its tenant was checked for."""

from typing import Any

from sqlalchemy import text

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.kanban import MAX_CARDS, Card, CardChange, CardState, NewCard
from app.domain.sessions import Page
from app.store.engine import Database, Statement

_ENDED = "('done', 'failed', 'cancelled')"
# The card of a child that has ended is no longer running, even where nobody came to say so on it; one that never began is given up with its
# parent's turn.
_COLUMNS = """c.id, c.session_id, c.turn_id, c.child_turn_id, c.title, c.owner, c.result,
    CASE WHEN c.state IN ('todo', 'running') AND c.child_turn_id IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM turns w WHERE w.id = c.child_turn_id AND w.ended_at IS NULL)
              AND (c.state = 'running' OR NOT EXISTS (SELECT 1 FROM turns p WHERE p.id = c.turn_id AND p.ended_at IS NULL))
         THEN 'cancelled' ELSE c.state END AS state,
    (extract(epoch FROM c.created_at) * 1000)::bigint AS created_at_ms, (extract(epoch FROM c.started_at) * 1000)::bigint AS started_at_ms,
    (extract(epoch FROM c.ended_at) * 1000)::bigint AS ended_at_ms, (extract(epoch FROM c.updated_at) * 1000)::bigint AS updated_at_ms"""

_ADD = Statement(
    text(f"""
INSERT INTO kanban_cards AS c (id, session_id, turn_id, child_turn_id, title, state, owner, result, started_at, ended_at)
SELECT CAST(:id AS text), s.id, CAST(:turn_id AS text), CAST(:child_turn_id AS text), CAST(:title AS text), CAST(:state AS text),
       CAST(:owner AS text), '', CASE WHEN CAST(:state AS text) = 'running' THEN clock_timestamp() END,
       CASE WHEN CAST(:state AS text) IN {_ENDED} THEN clock_timestamp() END
FROM sessions s
WHERE s.id = :session_id AND (SELECT count(*) FROM kanban_cards k WHERE k.session_id = s.id) < {MAX_CARDS}
RETURNING {_COLUMNS}
""")
)

_CHANGE = Statement(
    text(f"""
UPDATE kanban_cards AS c SET
    title = coalesce(CAST(:title AS text), c.title), owner = coalesce(CAST(:owner AS text), c.owner),
    result = coalesce(CAST(:result AS text), c.result), state = coalesce(CAST(:state AS text), c.state),
    started_at = CASE WHEN CAST(:state AS text) = 'running' THEN coalesce(c.started_at, clock_timestamp()) ELSE c.started_at END,
    ended_at = CASE WHEN CAST(:state AS text) IS NULL THEN c.ended_at
                    WHEN CAST(:state AS text) IN {_ENDED} THEN coalesce(c.ended_at, clock_timestamp()) END,
    updated_at = clock_timestamp()
WHERE c.id = :id AND c.session_id = :session_id
RETURNING {_COLUMNS}
""")
)

_GET = Statement(text(f"SELECT {_COLUMNS} FROM kanban_cards c WHERE c.id = :id AND c.session_id = :session_id"))
_LIST = Statement(text(f"SELECT {_COLUMNS} FROM kanban_cards c WHERE c.session_id = :session_id ORDER BY c.id"))
# A known session without cards gives one row of NULLs, an unknown one none.
_PAGE = Statement(
    text(f"""
SELECT {_COLUMNS} FROM sessions s
LEFT JOIN kanban_cards c ON c.session_id = s.id AND (CAST(:after AS text) IS NULL OR c.id > CAST(:after AS text))
WHERE s.id = :session_id AND s.tenant_id = :tenant_id
ORDER BY c.id LIMIT :limit
""")
)


class KanbanRepository:
    """:class:`app.ports.KanbanStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, card: NewCard) -> Card | None:
        """Put a card on its session's board; ``None`` when that is full or gone."""
        values = {
            "id": card.id,
            "session_id": card.session_id,
            "turn_id": card.turn_id,
            "child_turn_id": card.child_turn_id,
            "title": card.title,
            "state": card.state.value,
            "owner": card.owner,
        }
        rows = await self._database.fetch(_ADD, values)
        return _card(rows[0]) if rows else None

    async def change(self, session_id: SessionId, card_id: str, change: CardChange) -> Card | None:
        """Change a card; ``None`` when the board has no such card."""
        values = {
            "id": card_id,
            "session_id": session_id,
            "title": change.title,
            "state": None if change.state is None else change.state.value,
            "owner": change.owner,
            "result": change.result,
        }
        rows = await self._database.fetch(_CHANGE, values)
        return _card(rows[0]) if rows else None

    async def card(self, session_id: SessionId, card_id: str) -> Card | None:
        """One card of a board."""
        rows = await self._database.fetch(_GET, {"id": card_id, "session_id": session_id})
        return _card(rows[0]) if rows else None

    async def board(self, session_id: SessionId) -> list[Card]:
        """All cards of a board, oldest first."""
        return [_card(row) for row in await self._database.fetch(_LIST, {"session_id": session_id})]

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after: str | None) -> Page[Card] | None:
        """Cards, oldest first; ``None`` when the session is unknown to the tenant."""
        params = {"tenant_id": tenant_id, "session_id": session_id, "after": after, "limit": limit + 1}
        rows = await self._database.fetch(_PAGE, params)
        if not rows:
            return None
        found = [_card(row) for row in rows if row.id is not None]
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if len(found) > limit else None)


def _card(row: Any) -> Card:
    return Card(
        id=row.id,
        session_id=SessionId(row.session_id),
        turn_id=TurnId(row.turn_id) if row.turn_id else None,
        child_turn_id=TurnId(row.child_turn_id) if row.child_turn_id else None,
        title=row.title,
        state=CardState(row.state),
        owner=row.owner,
        result=row.result,
        created_at_ms=row.created_at_ms,
        started_at_ms=row.started_at_ms,
        ended_at_ms=row.ended_at_ms,
        updated_at_ms=row.updated_at_ms,
    )
