"""Summaries in memory, as :class:`app.ports.SummaryStore`."""

from typing_extensions import override

from app.domain.ids import SessionId, TenantId
from app.domain.sessions import Page
from app.domain.summaries import Summary
from app.ports import SummaryStore
from tests.fakes.sessions import InMemorySessions


class InMemorySummaries(SummaryStore):
    """The summaries of :class:`InMemorySessions`, as a test puts them in."""

    def __init__(self, sessions: InMemorySessions) -> None:
        self._sessions = sessions
        self.rows: list[Summary] = []

    @override
    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[Summary] | None:
        if await self._sessions.get(tenant_id, session_id) is None:
            return None
        found = [row for row in self.rows if row.session_id == session_id and (before is None or row.id < before)]
        found.sort(key=lambda row: row.id, reverse=True)
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if len(found) > limit else None)
