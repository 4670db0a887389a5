"""Search in memory, as :class:`app.ports.SearchStore`."""

from typing_extensions import override

from app.domain.ids import SessionId
from app.domain.messages import MessageKind, StoredMessage
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.domain.search_terms import matches, message_text, query_terms, telling_terms, terms
from app.domain.sessions import NewSession
from app.ports import SearchStore
from tests.fakes.sessions import InMemorySessions

REACH = 3


class InMemorySearch(SearchStore):
    """Looks through the messages of :class:`InMemorySessions`."""

    def __init__(self, sessions: InMemorySessions) -> None:
        self._sessions = sessions

    @override
    async def discover(self, reader: Reader, query: str, within: SessionId | None, limit: int) -> list[SearchHit]:
        wanted = query_terms(query)
        if not wanted:
            return []
        some = telling_terms(wanted)
        all_words, any_words = [], []
        for session in self._visible(reader):
            for row in self._rows(session.id):
                if session.id == reader.session_id and not row.archived:
                    continue
                if within is not None and within != session.id:
                    continue
                found = terms(message_text(row.message))
                if all(matches(found, term) for term in wanted):
                    all_words.append((0, row))
                words = sum(matches(found, term) for term in some)
                if words:
                    any_words.append((words, row))
        return await self._hits(all_words or any_words, reader, within, limit)

    async def _hits(self, found: list[tuple[int, StoredMessage]], reader: Reader, within: SessionId | None, limit: int) -> list[SearchHit]:
        found.sort(key=lambda each: (each[0], each[1].created_at_ms, each[1].session_id or "", each[1].seq), reverse=True)
        hits: list[SearchHit] = []
        for _, row in found:
            assert row.session_id is not None
            count = sum(1 for _, other in found if other.session_id == row.session_id)
            if within is None and any(hit.excerpt.session_id == row.session_id for hit in hits):
                continue
            excerpt = await self.around(reader, row.session_id, row.seq, REACH)
            assert excerpt is not None
            hits.append(SearchHit(seq=row.seq, hits=count, excerpt=excerpt))
        return hits[:limit]

    @override
    async def excerpt(self, reader: Reader, session_id: SessionId, first: int, last: int) -> SessionExcerpt | None:
        rows = self._rows(session_id)
        shown = {row.seq: row for row in (*rows[:first], *rows[max(0, len(rows) - last) :])}
        return self._excerpt(reader, session_id, list(shown.values()))

    @override
    async def around(self, reader: Reader, session_id: SessionId, seq: int, reach: int) -> SessionExcerpt | None:
        rows = self._rows(session_id)
        before = [row for row in rows if row.seq <= seq][-reach - 1 :]
        return self._excerpt(reader, session_id, [*before, *[row for row in rows if row.seq > seq][:reach]])

    @override
    async def recent(self, reader: Reader, limit: int) -> list[SessionExcerpt]:
        others = [session.id for session in self._visible(reader) if session.id != reader.session_id]
        excerpts = [self._excerpt(reader, session_id, self._rows(session_id)[:1]) for session_id in others[:limit]]
        return [excerpt for excerpt in excerpts if excerpt is not None]

    def _visible(self, reader: Reader) -> list[NewSession]:
        sessions = self._sessions.of_tenant(reader.tenant_id)
        own = [session for session in sessions if session.id == reader.session_id]
        return [session for session in sessions if own and session.user == own[0].user]

    def _rows(self, session_id: SessionId) -> list[StoredMessage]:
        return [row for row in self._sessions.messages.get(session_id, []) if row.message.kind is not MessageKind.NOTE]

    def _excerpt(self, reader: Reader, session_id: SessionId, rows: list[StoredMessage]) -> SessionExcerpt | None:
        if session_id not in [session.id for session in self._visible(reader)]:
            return None
        at = self._sessions.created_at_ms(session_id)
        return SessionExcerpt(
            session_id=session_id, created_at_ms=at, updated_at_ms=at, total=len(self._rows(session_id)), messages=tuple(rows)
        )
