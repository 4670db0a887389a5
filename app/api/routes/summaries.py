"""What compactions made of a session's messages."""

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
from app.domain.model import Usage
from app.domain.summaries import Summary
from app.domain.tenants import Principal

router = APIRouter(prefix="/sessions", tags=["sessions"])

_POSITION = re.compile(r"sum_[0-9a-z]{26}")


class SummaryView(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that stands, or stood, for the messages from `first_seq` to `last_seq` and all before them.

    `active`: it is what the model is shown now. `tokens_before` and `tokens_after` are estimates of the context; `usage` and `cost_usd`
    what making it took.
    """

    id: str
    session_id: SessionId
    turn_id: TurnId | None
    active: bool
    content: str
    first_seq: int
    last_seq: int
    tokens_before: int
    tokens_after: int
    usage: Usage
    cost_usd: float | None
    reason: str
    created_at: str


class SummaryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of summaries, newest first."""

    data: tuple[SummaryView, ...]
    has_more: bool
    next_cursor: str | None


SHAPES = (SummaryView, SummaryPage)


@router.get(
    "/{session_id}/summaries",
    summary="List summaries",
    response_class=Response,
    responses=json_answer(SummaryPage, "Newest first."),
)
async def list_summaries(
    request: Request,
    caller: Annotated[Principal, Depends(principal)],
    session_id: str,
    *,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    after: After = None,
) -> Response:
    """The summaries of the session; the messages that they stand for stay in its transcript."""
    before = position(cursor or after, _POSITION)
    page = await services_of(request).summaries.page(caller.tenant.id, session_id_of(session_id), limit, before)
    if page is None:
        raise NotFoundError
    following = cursor_of(page.next_cursor)
    body = SummaryPage(data=tuple(_view(summary) for summary in page.data), has_more=following is not None, next_cursor=following)
    return Response(msgspec.json.encode(body), media_type="application/json")


def _view(summary: Summary) -> SummaryView:
    return SummaryView(
        id=summary.id,
        session_id=summary.session_id,
        turn_id=summary.turn_id,
        active=summary.active,
        content=summary.body,
        first_seq=summary.first_seq,
        last_seq=summary.last_seq,
        tokens_before=summary.tokens_before,
        tokens_after=summary.tokens_after,
        usage=summary.usage,
        cost_usd=summary.cost_usd,
        reason=summary.reason,
        created_at=rfc3339(summary.created_at_ms),
    )
