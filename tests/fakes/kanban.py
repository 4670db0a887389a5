"""Boards in memory: :class:`app.ports.KanbanStore`."""

import msgspec
from typing_extensions import override

from app.domain.ids import SessionId, TenantId
from app.domain.kanban import MAX_CARDS, Card, CardChange, CardState, NewCard
from app.domain.sessions import Page
from app.ports import Clock, KanbanStore
from tests.fakes.sessions import InMemorySessions


class InMemoryKanban(KanbanStore):
    """Cards beside sessions; boards of unknown sessions take none."""

    def __init__(self, sessions: InMemorySessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self.cards: dict[str, Card] = {}

    @override
    async def add(self, card: NewCard) -> Card | None:
        if not self._sessions.known(card.session_id) or len(await self.board(card.session_id)) >= MAX_CARDS:
            return None
        now = self._clock.unix_ms()
        added = self.cards[card.id] = Card(
            id=card.id,
            session_id=card.session_id,
            turn_id=card.turn_id,
            child_turn_id=card.child_turn_id,
            title=card.title,
            state=card.state,
            owner=card.owner,
            result="",
            created_at_ms=now,
            started_at_ms=now if card.state is CardState.RUNNING else None,
            ended_at_ms=now if card.state.ended else None,
            updated_at_ms=now,
        )
        return added

    @override
    async def change(self, session_id: SessionId, card_id: str, change: CardChange) -> Card | None:
        card = await self.card(session_id, card_id)
        if card is None:
            return None
        now, state = self._clock.unix_ms(), change.state
        ended = card.ended_at_ms if state is None else (card.ended_at_ms or now) if state.ended else None
        changed = self.cards[card_id] = msgspec.structs.replace(
            card,
            title=card.title if change.title is None else change.title,
            owner=card.owner if change.owner is None else change.owner,
            result=card.result if change.result is None else change.result,
            state=state or card.state,
            started_at_ms=(card.started_at_ms or now) if state is CardState.RUNNING else card.started_at_ms,
            ended_at_ms=ended,
            updated_at_ms=now,
        )
        return changed

    @override
    async def card(self, session_id: SessionId, card_id: str) -> Card | None:
        card = self.cards.get(card_id)
        return card if card is not None and card.session_id == session_id else None

    @override
    async def board(self, session_id: SessionId) -> list[Card]:
        return [card for _, card in sorted(self.cards.items()) if card.session_id == session_id]

    @override
    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after: str | None) -> Page[Card] | None:
        if await self._sessions.get(tenant_id, session_id) is None:
            return None
        found = [card for card in await self.board(session_id) if after is None or card.id > after]
        return Page(data=tuple(found[:limit]), next_cursor=found[limit - 1].id if len(found) > limit else None)
