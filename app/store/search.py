"""Search in a tenant's conversations. Every statement filters by tenant and end user; :mod:`app.store.search_index` fills the index."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import select, text

from app.domain.ids import MessageId, SessionId, TurnId
from app.domain.messages import StoredMessage, decode_message
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.domain.search_terms import QueryTerm, query_terms, telling_terms
from app.store.engine import Database
from app.store.search_index import SearchIndex
from app.store.tables import sessions

REACH = 3
"""Messages shown on either side of one that was found."""
_CATCH_UP = 4
"""Batches of the queue that a search indexes first, so that it mostly sees what was written just before it."""
_END = 2**62

# Without ``within`` the best message of each session; ``words`` is 0 for all when each holds every word. The words are looked up first, by
# themselves: joined at once, the planner would walk through the tenant's sessions.
_FIND = text("""
WITH x AS MATERIALIZED (
    SELECT session_id, seq, terms FROM message_search
    WHERE terms @@ CAST(CAST(:query AS text) AS tsquery) AND (CAST(:within AS text) IS NULL OR session_id = CAST(:within AS text))
), f AS MATERIALIZED (
    SELECT x.session_id, x.seq, x.terms, m.created_at
    FROM x
    JOIN sessions s ON s.id = x.session_id
    JOIN messages m ON m.session_id = x.session_id AND m.seq = x.seq
    WHERE s.tenant_id = :tenant_id AND s.end_user IS NOT DISTINCT FROM CAST(:end_user AS text) AND s.parent_session_id IS NULL
      AND (x.session_id <> :reader_id OR m.archived)
), r AS (
    SELECT session_id, seq, created_at,
           (SELECT count(*) FROM unnest(CAST(:parts AS text[])) AS p(query) WHERE f.terms @@ CAST(p.query AS tsquery)) AS words
    FROM f
), n AS (
    SELECT session_id, seq, created_at, words, count(*) OVER (PARTITION BY session_id) AS hits,
           row_number() OVER (PARTITION BY session_id ORDER BY words DESC, seq DESC) AS place
    FROM r
)
SELECT session_id, seq, hits FROM n WHERE place = 1 OR CAST(:within AS text) IS NOT NULL
ORDER BY words DESC, created_at DESC, seq DESC LIMIT :limit
""")

_SESSIONS = text("""
SELECT s.id, (extract(epoch FROM s.created_at) * 1000)::bigint AS created_at_ms,
       (extract(epoch FROM s.updated_at) * 1000)::bigint AS updated_at_ms,
       (SELECT count(*) FROM messages m WHERE m.session_id = s.id AND NOT m.note) AS total
FROM sessions s
WHERE s.id = ANY (CAST(:ids AS text[])) AND s.tenant_id = :tenant_id AND s.end_user IS NOT DISTINCT FROM CAST(:end_user AS text)
  AND s.parent_session_id IS NULL
""")

# Sessions were narrowed to the reader's before.
_WINDOWS = text("""
SELECT w.place, m.*
FROM unnest(CAST(:ids AS text[]), CAST(:seqs AS bigint[]), CAST(:befores AS integer[]), CAST(:afters AS integer[]))
     WITH ORDINALITY AS w(session_id, seq, before, after, place)
CROSS JOIN LATERAL (
    SELECT o.session_id, o.seq, o.id, o.turn_id, o.body, o.archived, (extract(epoch FROM o.created_at) * 1000)::bigint AS created_at_ms
    FROM (
        (SELECT * FROM messages b WHERE b.session_id = w.session_id AND b.seq <= w.seq AND NOT b.note ORDER BY b.seq DESC LIMIT w.before)
        UNION ALL
        (SELECT * FROM messages a WHERE a.session_id = w.session_id AND a.seq > w.seq AND NOT a.note ORDER BY a.seq LIMIT w.after)
    ) AS o
) AS m
ORDER BY w.place, m.seq
""")


class _Window(msgspec.Struct, frozen=True):
    """``before`` messages up to and with the one at ``seq``, and ``after`` behind it."""

    session_id: SessionId
    seq: int
    before: int
    after: int


class SearchRepository:
    """:class:`app.ports.SearchStore` on Postgres."""

    def __init__(self, database: Database, index: SearchIndex) -> None:
        self._database = database
        self._index = index

    async def discover(self, reader: Reader, query: str, within: SessionId | None, limit: int) -> list[SearchHit]:
        """Messages with all words of ``query``, else with most of them; see the port."""
        wanted = query_terms(query)
        scope = await self._scope(reader)
        if not wanted or scope is None:
            return []
        await self._catch_up()
        params = {**scope, "reader_id": reader.session_id, "within": within, "limit": limit}
        found = await self._find(params, wanted, " & ")
        if not found and len(wanted) > 1:
            found = await self._find(params, telling_terms(wanted), " | ")
        known = {row.id: row for row in await self._sessions(scope, {row.session_id for row in found})}
        shown = await self._windows([_Window(SessionId(row.session_id), row.seq, REACH + 1, REACH) for row in found])
        return [
            SearchHit(seq=row.seq, hits=row.hits, excerpt=_excerpt(known[row.session_id], messages))
            for row, messages in zip(found, shown, strict=True)
            if row.session_id in known
        ]

    async def excerpt(self, reader: Reader, session_id: SessionId, first: int, last: int) -> SessionExcerpt | None:
        """The first and the last messages of a session."""
        return await self._read(reader, session_id, [_Window(session_id, 0, 0, first), _Window(session_id, _END, last, 0)])

    async def around(self, reader: Reader, session_id: SessionId, seq: int, reach: int) -> SessionExcerpt | None:
        """A message with its neighbours."""
        return await self._read(reader, session_id, [_Window(session_id, seq, reach + 1, reach)])

    async def recent(self, reader: Reader, limit: int) -> list[SessionExcerpt]:
        """The newest other sessions, each with its first message."""
        scope = await self._scope(reader)
        if scope is None:
            return []
        newest = (
            select(sessions.c.id)
            .where(sessions.c.tenant_id == scope["tenant_id"], sessions.c.end_user == scope["end_user"])
            .where(sessions.c.id != reader.session_id, sessions.c.parent_session_id.is_(None))
            .order_by(sessions.c.id.desc())
            .limit(limit)
        )
        ids = [SessionId(row.id) for row in await self._database.fetch(newest)]
        known = {row.id: row for row in await self._sessions(scope, ids)}
        first = await self._windows([_Window(session_id, 0, 0, 1) for session_id in ids])
        return [_excerpt(known[each], messages) for each, messages in zip(ids, first, strict=True) if each in known]

    async def _scope(self, reader: Reader) -> dict[str, Any] | None:
        """Whose sessions the reader may read; ``None`` when its own is unknown to the tenant."""
        own = select(sessions.c.end_user).where(sessions.c.id == reader.session_id, sessions.c.tenant_id == reader.tenant_id)
        rows = await self._database.fetch(own)
        return {"tenant_id": reader.tenant_id, "end_user": rows[0].end_user} if rows else None

    async def _catch_up(self) -> None:
        for _ in range(_CATCH_UP):
            if not await self._index.catch_up():
                return

    async def _find(self, params: dict[str, Any], wanted: Sequence[QueryTerm], operator: str) -> Sequence[Any]:
        parts = [f"'{term.text}'{':*' if term.prefix else ''}" for term in wanted]  # terms are letters and digits only
        any_of = operator == " | "
        query = f"'{params['tenant_id']}' & ({operator.join(parts)})"
        return await self._database.fetch(_FIND, {**params, "query": query, "parts": parts if any_of else []})

    async def _read(self, reader: Reader, session_id: SessionId, windows: list[_Window]) -> SessionExcerpt | None:
        scope = await self._scope(reader)
        known = await self._sessions(scope, (session_id,)) if scope else ()
        if not known:
            return None
        shown = {message.seq: message for messages in await self._windows(windows) for message in messages}
        return _excerpt(known[0], [shown[seq] for seq in sorted(shown)])

    async def _sessions(self, scope: dict[str, Any], ids: Iterable[str]) -> Sequence[Any]:
        return await self._database.fetch(_SESSIONS, {**scope, "ids": list(ids)})

    async def _windows(self, windows: list[_Window]) -> list[list[StoredMessage]]:
        """For each window its messages, in order."""
        shown: list[list[StoredMessage]] = [[] for _ in windows]
        params = {
            "ids": [window.session_id for window in windows],
            "seqs": [window.seq for window in windows],
            "befores": [window.before for window in windows],
            "afters": [window.after for window in windows],
        }
        for row in await self._database.fetch(_WINDOWS, params):
            shown[row.place - 1].append(_stored(row))
        return shown


def _excerpt(row: Any, messages: Sequence[StoredMessage]) -> SessionExcerpt:
    return SessionExcerpt(
        session_id=SessionId(row.id),
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
        total=row.total,
        messages=tuple(messages),
    )


def _stored(row: Any) -> StoredMessage:
    return StoredMessage(
        id=MessageId(row.id),
        session_id=SessionId(row.session_id),
        seq=row.seq,
        turn_id=None if row.turn_id is None else TurnId(row.turn_id),
        message=decode_message(row.body),
        archived=row.archived,
        created_at_ms=row.created_at_ms,
    )
