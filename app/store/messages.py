"""Messages of sessions, read. They are written together with what they belong to: a session's import, a turn's commit."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, bindparam, cast, extract, select, true

from app.domain.ids import SessionId, TenantId
from app.domain.messages import StoredMessage, decode_message
from app.domain.sessions import Page
from app.store.engine import Database, Statement
from app.store.tables import messages, sessions

_CREATED_AT_MS = cast(extract("epoch", messages.c.created_at) * 1000, BigInteger).label("created_at_ms")
_COLUMNS = (messages.c.id, messages.c.seq, messages.c.turn_id, messages.c.body, messages.c.archived, _CREATED_AT_MS)

# On the path of every turn, some hundred rows: one range of the primary key, and only what is asked for.
_WORKING_SET = Statement(
    select(*_COLUMNS).where(messages.c.session_id == bindparam("session_id"), ~messages.c.archived).order_by(messages.c.seq)
)

_ENTRIES = (
    select(*_COLUMNS)
    .where(messages.c.session_id == sessions.c.id, messages.c.seq > bindparam("after_seq"), ~messages.c.note)
    .order_by(messages.c.seq)
    .limit(bindparam("rows"))
    .lateral("entries")
)
# A known session without messages gives one row of NULLs, an unknown one none.
_PAGE = (
    select(_ENTRIES)
    .select_from(sessions.outerjoin(_ENTRIES, true()))
    .where(sessions.c.id == bindparam("session_id"), sessions.c.tenant_id == bindparam("tenant_id"))
    .order_by(_ENTRIES.c.seq)
)


class MessageRepository:
    """:class:`app.ports.MessageStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def working_set(self, session_id: SessionId) -> list[StoredMessage]:
        """The messages that the model is shown, in order; those of the running turn included.

        The session was looked up with its tenant before: by the turn that runs in it, or by the route.
        """
        return [_stored(row, session_id) for row in await self._database.fetch(_WORKING_SET, {"session_id": session_id})]

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after_seq: int) -> Page[StoredMessage] | None:
        """The transcript, archived rows included, notes left out; ``None`` when the session is unknown to the tenant."""
        rows = await self._database.fetch(
            _PAGE, {"tenant_id": tenant_id, "session_id": session_id, "after_seq": after_seq, "rows": limit + 1}
        )
        if not rows:
            return None
        found = [_stored(row, session_id) for row in rows if row.id is not None]
        more = len(found) > limit
        return Page(data=tuple(found[:limit]), next_cursor=str(found[limit - 1].seq) if more else None)


def _stored(row: Sequence[Any], session_id: SessionId) -> StoredMessage:
    # Unpacked at once: reading the columns by name would cost more than everything else here.
    message_id, seq, turn_id, body, archived, created_at_ms = row
    return StoredMessage(
        id=message_id,
        session_id=session_id,
        seq=seq,
        turn_id=turn_id,
        message=decode_message(body),
        archived=archived,
        created_at_ms=created_at_ms,
    )
