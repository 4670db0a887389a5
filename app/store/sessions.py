"""Sessions. Every statement filters by tenant; all but deletion are one statement in autocommit."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Row, and_, bindparam, cast, delete, extract, func, select, text, true, update

from app.domain.errors import ConflictError, UnavailableError
from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.messages import MessageKind, encode_message
from app.domain.sessions import NewSession, Page, Session, SessionChange
from app.domain.turns import TurnState
from app.store.engine import Database
from app.store.tables import sessions, turns
from app.store.turn_sql import HOLDING

_CREATE_TRIES = 3
_toolsets = msgspec.json.Decoder(tuple[str, ...])
_metadata = msgspec.json.Decoder(dict[str, str])

# The session and its imported messages are one statement, so nobody ever sees one without the others.
_CREATE = text(
    """
    WITH created AS (
        INSERT INTO sessions (id, tenant_id, system_prompt, model, toolsets, tools, end_user, keep_interrupted_text, metadata, next_seq,
                              memory, idempotency_key, fingerprint, parent_session_id)
        VALUES (:id, :tenant_id, :system_prompt, :model, :toolsets, :tools, :end_user, :keep_interrupted_text, :metadata, :next_seq,
                :memory, :idempotency_key, :fingerprint, :parent_session_id)
        ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id, created_at
    ), imported AS (
        INSERT INTO messages (session_id, seq, id, note, body)
        SELECT created.id, message.seq, message.id, message.note, message.body
        FROM created, unnest(CAST(:message_ids AS text[]), CAST(:notes AS boolean[]), CAST(:bodies AS bytea[]))
             WITH ORDINALITY AS message (id, note, body, seq)
    ), findable AS (
        INSERT INTO search_queue (session_id, seqs)
        SELECT created.id, ARRAY[seq] FROM created, generate_series(1, CAST(:next_seq AS bigint) - 1) AS seq
    )
    SELECT id FROM created
    """
)


def _ms(column: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(extract("epoch", column) * 1000, BigInteger)


_ACTIVE = (
    select(turns.c.id)
    .where(turns.c.session_id == sessions.c.id, turns.c.state.in_(HOLDING))
    .correlate(sessions)
    .scalar_subquery()
    .label("active_turn_id")
)
_COLUMNS = (
    sessions.c.id,
    sessions.c.tenant_id,
    sessions.c.system_prompt,
    sessions.c.model,
    sessions.c.toolsets,
    sessions.c.end_user,
    sessions.c.keep_interrupted_text,
    sessions.c["metadata"].label("metadata_json"),
    _ACTIVE,
    _ms(sessions.c.created_at).label("created_at_ms"),
    _ms(sessions.c.updated_at).label("updated_at_ms"),
)

_LISTED = sessions.c.parent_session_id.is_(None)
_GET = select(*_COLUMNS).where(sessions.c.id == bindparam("session_id"), sessions.c.tenant_id == bindparam("tenant_id"))


class SessionRepository:
    """:class:`app.ports.SessionStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, session: NewSession) -> tuple[Session, bool]:
        """Write a session with its imported messages; a known idempotency key returns its session and ``True``.

        Raises ConflictError (``idempotency_mismatch``) when the key was used with another body.
        """
        params = _create_params(session)
        for _ in range(_CREATE_TRIES):
            if await self._database.fetch(_CREATE, params):
                created = await self.get(session.tenant_id, session.id)
                if created is not None:
                    return created, False
            earlier = await self._earlier(session)
            if earlier is not None:
                return earlier, True
        # The session of the key was deleted between the two looks, again and again.
        raise UnavailableError("storage_unavailable", "The idempotency key is in use; try again.")

    async def _earlier(self, session: NewSession) -> Session | None:
        """The session that the idempotency key has already made."""
        rows = await self._database.fetch(
            select(*_COLUMNS, sessions.c.fingerprint).where(
                sessions.c.tenant_id == session.tenant_id, sessions.c.idempotency_key == session.idempotency_key
            )
        )
        if not rows:
            return None
        if rows[0].fingerprint != session.fingerprint:
            raise ConflictError("idempotency_mismatch", "This idempotency key was used with another body.")
        return _session(rows[0])

    async def get(self, tenant_id: TenantId, session_id: SessionId) -> Session | None:
        """One session, ``None`` when unknown to the tenant or deleted."""
        rows = await self._database.fetch(_GET, {"session_id": session_id, "tenant_id": tenant_id})
        return _session(rows[0]) if rows else None

    async def page(self, tenant_id: TenantId, limit: int, before: str | None, user: str | None) -> Page[Session]:
        """Sessions, newest first; ``before`` is a session id."""
        query = select(*_COLUMNS).where(sessions.c.tenant_id == tenant_id, _LISTED).order_by(sessions.c.id.desc()).limit(limit + 1)
        if before is not None:
            query = query.where(sessions.c.id < before)
        if user is not None:
            query = query.where(sessions.c.end_user == user)
        found = [_session(row) for row in await self._database.fetch(query)]
        more = len(found) > limit
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if more else None)

    async def change(self, tenant_id: TenantId, session_id: SessionId, change: SessionChange) -> Session | None:
        """Apply a change; ``None`` when unknown, or not of the end user that it was made for. A turn that runs keeps what it began with."""
        values = _changed_columns(change)
        if not values:
            return await self.get(tenant_id, session_id)
        statement = (
            update(sessions)
            .where(_is(tenant_id, session_id), _made_for(change))
            .values({**values, sessions.c.updated_at: func.clock_timestamp()})
            .returning(*_COLUMNS)
        )
        rows = await self._database.fetch(statement)
        return _session(rows[0]) if rows else None

    async def delete(self, tenant_id: TenantId, session_id: SessionId) -> bool:
        """Delete a session with all that belongs to it; false when unknown. Raises ConflictError (``turn_in_progress``) while a turn runs.

        A queued turn counts too: it would vanish without its terminal event.
        """
        async with self._database.transaction() as connection:
            # The lock first and the look for turns in a later statement: a turn that is being written holds a share lock on the row,
            # and a snapshot from before the wait for it would not show the turn.
            locked = await connection.execute(select(sessions.c.id).where(_is(tenant_id, session_id)).with_for_update())
            if locked.first() is None:
                return False
            open_turn = (
                select(turns.c.id)
                .where(turns.c.session_id == session_id, turns.c.state.in_((*HOLDING, TurnState.QUEUED.value)))
                .order_by(turns.c.state.desc(), turns.c.ordinal)
                .limit(1)
            )
            turn_id = (await connection.execute(open_turn)).scalar()
            if turn_id is not None:
                raise ConflictError("turn_in_progress", "A turn of this session is not over: stop it first.", turn_id=TurnId(turn_id))
            await connection.execute(delete(sessions).where(_is(tenant_id, session_id)))
        return True


def _is(tenant_id: TenantId, session_id: SessionId) -> ColumnElement[bool]:
    return and_(sessions.c.id == session_id, sessions.c.tenant_id == tenant_id)


def _made_for(change: SessionChange) -> ColumnElement[bool]:
    return true() if change.if_user is msgspec.UNSET else sessions.c.end_user.is_not_distinct_from(change.if_user)


def _create_params(session: NewSession) -> Mapping[str, Any]:
    messages = session.messages
    return {
        "id": session.id,
        "tenant_id": session.tenant_id,
        "system_prompt": session.system_prompt,
        "model": session.model,
        "toolsets": msgspec.json.encode(session.toolsets),
        "tools": session.tools,
        "end_user": session.user,
        "keep_interrupted_text": session.keep_interrupted_text,
        "metadata": msgspec.json.encode(session.metadata),
        "next_seq": len(messages) + 1,
        "memory": session.memory,
        "idempotency_key": session.idempotency_key,
        "fingerprint": session.fingerprint,
        "parent_session_id": session.parent_session_id,
        "message_ids": [message_id for message_id, _ in messages],
        "notes": [message.kind is MessageKind.NOTE for _, message in messages],
        "bodies": [encode_message(message) for _, message in messages],
    }


def _changed_columns(change: SessionChange) -> dict[Any, Any]:
    given = {
        sessions.c.system_prompt: change.system_prompt,
        sessions.c.model: change.model,
        sessions.c.toolsets: _encoded(change.toolsets),
        sessions.c.tools: change.tools,
        sessions.c.end_user: change.user,
        sessions.c.keep_interrupted_text: change.keep_interrupted_text,
        sessions.c["metadata"]: _encoded(change.metadata),
        sessions.c.memory: change.memory,
    }
    return {column: value for column, value in given.items() if value is not msgspec.UNSET}


def _encoded(value: object) -> bytes | msgspec.UnsetType:
    return msgspec.UNSET if value is msgspec.UNSET else msgspec.json.encode(value)


def _session(row: Row[Any]) -> Session:
    return Session(
        id=SessionId(row.id),
        tenant_id=TenantId(row.tenant_id),
        system_prompt=row.system_prompt,
        model=row.model,
        toolsets=_toolsets.decode(row.toolsets),
        user=row.end_user,
        keep_interrupted_text=row.keep_interrupted_text,
        metadata=_metadata.decode(row.metadata_json),
        active_turn_id=row.active_turn_id,
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
    )
