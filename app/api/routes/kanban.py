"""The board of a session: a card for each child turn, and what its model put there."""

import re
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from app.api.authentication import principal
from app.api.openapi import json_answer
from app.api.paging import DEFAULT_LIMIT, After, Cursor, Limit, cursor_of, position
from app.api.schemas import session_id_of
from app.api.services import services_of
from app.domain.errors import NotFoundError
from app.domain.events import rfc3339
from app.domain.ids import SessionId, TurnId
from app.domain.kanban import Card, CardState
from app.domain.tenants import Principal

router = APIRouter(prefix="/sessions", tags=["sessions"])

_POSITION = re.compile(r"card_[0-9a-z]{26}")


class CardView(msgspec.Struct, frozen=True, kw_only=True):
    """A card. `turn_id` is the turn that made it, `child_turn_id` the child turn that works on it; `result` is the end of its work."""

    id: str
    session_id: SessionId
    turn_id: TurnId | None
    child_turn_id: TurnId | None
    title: str
    state: CardState
    owner: str
    result: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    updated_at: str


class CardPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of cards, oldest first."""

    data: tuple[CardView, ...]
    has_more: bool
    next_cursor: str | None


SHAPES = (CardView, CardPage)


@router.get(
    "/{session_id}/kanban",
    summary="List the cards of a session's board",
    response_class=Response,
    responses=json_answer(CardPage, "Oldest first."),
)
async def list_cards(
    request: Request,
    caller: Annotated[Principal, Depends(principal)],
    session_id: str,
    *,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    after: After = None,
) -> Response:
    """The cards of the session's board."""
    start = position(cursor or after, _POSITION)
    page = await services_of(request).kanban.page(caller.tenant.id, session_id_of(session_id), limit, start)
    if page is None:
        raise NotFoundError
    following = cursor_of(page.next_cursor)
    body = CardPage(data=tuple(_view(card) for card in page.data), has_more=following is not None, next_cursor=following)
    return Response(msgspec.json.encode(body), media_type="application/json")


def _view(card: Card) -> CardView:
    return CardView(
        id=card.id,
        session_id=card.session_id,
        turn_id=card.turn_id,
        child_turn_id=card.child_turn_id,
        title=card.title,
        state=card.state,
        owner=card.owner,
        result=card.result,
        created_at=rfc3339(card.created_at_ms),
        started_at=None if card.started_at_ms is None else rfc3339(card.started_at_ms),
        ended_at=None if card.ended_at_ms is None else rfc3339(card.ended_at_ms),
        updated_at=rfc3339(card.updated_at_ms),
    )
