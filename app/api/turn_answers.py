"""Answers about turns: a turn as clients see it, at once or when its stream has ended, and what the routes of turns share."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec
from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel

from app.api.authentication import principal
from app.api.errors import problem_response
from app.api.services import Services, services_of
from app.domain.children import ChildrenUse
from app.domain.conversation_events import ActionCall
from app.domain.events import Problem, output_url, rfc3339
from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.messages import canonical_json
from app.domain.model import RouteRef, RouteUse, Usage
from app.domain.tenants import Principal
from app.domain.tools import CallRecord, CallStatus
from app.domain.turns import TurnState, TurnView
from app.turns.pauses import action_calls

Caller = Annotated[Principal, Depends(principal)]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="A repeat with the same key and body attaches to the first one's turn, for 24 hours."),
]


class RequiredAction(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn waits for, and until when."""

    calls: tuple[ActionCall, ...]
    expires_at: str


class TurnBody(msgspec.Struct, frozen=True, kw_only=True):
    """A turn; ``session_id`` is ``null`` for a stateless call.

    ``output`` is the answer, or the partial text of an interrupted turn; ``error`` is set when it failed; ``children`` is what child turns
    used beside it, ``null`` without any; ``requires_action`` is set while it waits for somebody.
    """

    id: TurnId
    session_id: SessionId | None
    status: TurnState
    reason: str | None
    output: str | None
    error: Problem | None
    iterations: int
    attempts: int
    usage: Usage
    cost_usd: float | None
    route: RouteRef | None
    routes: tuple[RouteUse, ...]
    children: ChildrenUse | None
    last_event_id: int
    metadata: dict[str, str]
    background: bool
    created_at: str
    started_at: str | None
    ended_at: str | None
    requires_action: RequiredAction | None


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that has its result. ``output_url`` has that as text, as long as it is kept.

    ``toolset`` is ``client`` for a tool of the turn's client, ``null`` where the tool is not known. ``arguments`` are JSON text without
    secrets, cut after 4,096 characters. ``started_at`` is ``null`` for a call that was not run. ``duration_ms`` is from
    ``tool.started`` on, with any wait for a free place.
    """

    tool_call_id: str
    name: str
    toolset: str | None
    arguments: str
    outcome: CallStatus
    started_at: str | None
    duration_ms: int
    output_url: str


class TurnDetail(TurnBody, frozen=True, kw_only=True):
    """A turn with its tool calls: the last 256 that have results."""

    tool_calls: tuple[ToolCallBody, ...]


class TurnPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a session's turns, newest first."""

    data: tuple[TurnBody, ...]
    has_more: bool
    next_cursor: str | None


class _Outcome(msgspec.Struct):
    """What a terminal event's data has beside the machine's state."""

    output: str
    error: Problem | None = None


SHAPES = (TurnBody, TurnDetail, TurnPage)

MAX_SHOWN_CALLS = 256

_outcome = msgspec.json.Decoder(_Outcome)
_encode = msgspec.json.Encoder().encode


def turn_body(view: TurnView) -> TurnBody:
    """A turn as clients see it."""
    outcome = _outcome.decode(view.outcome) if view.outcome else None
    return TurnBody(
        id=view.id,
        session_id=view.session_id,
        status=view.state,
        reason=view.reason,
        output=outcome.output if outcome else None,
        error=outcome.error if outcome else None,
        iterations=view.machine.iteration,
        attempts=view.machine.attempts,
        usage=view.machine.usage,
        cost_usd=view.machine.cost_usd,
        route=view.machine.route,
        routes=view.machine.routes,
        children=view.machine.children,
        last_event_id=view.last_seq,
        metadata=view.request.metadata,
        background=view.request.background,
        created_at=rfc3339(view.created_at_ms),
        started_at=rfc3339(view.started_at_ms) if view.started_at_ms else None,
        ended_at=rfc3339(view.ended_at_ms) if view.ended_at_ms else None,
        requires_action=_required_action(view),
    )


async def turn_detail(services: Services, tenant_id: TenantId, turn_id: TurnId) -> TurnDetail:
    """A turn with its tool calls. Raises NotFoundError, UnavailableError."""
    body = turn_body(await services.turns.get(tenant_id, turn_id))
    records = await services.calls.newest(tenant_id, turn_id, MAX_SHOWN_CALLS)
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return TurnDetail(**fields, tool_calls=tuple(_call_body(turn_id, record) for record in records))


def _call_body(turn_id: TurnId, record: CallRecord) -> ToolCallBody:
    return ToolCallBody(
        tool_call_id=record.tool_call_id,
        name=record.name,
        toolset=record.toolset,
        arguments=record.arguments,
        outcome=record.status,
        started_at=None if record.started_at_ms is None else rfc3339(record.started_at_ms),
        duration_ms=record.duration_ms,
        output_url=output_url(turn_id, record.tool_call_id, record.seq),
    )


def _required_action(view: TurnView) -> RequiredAction | None:
    paused = view.machine.paused
    if view.state is not TurnState.REQUIRES_ACTION or paused is None:
        return None
    return RequiredAction(calls=action_calls(paused), expires_at=rfc3339(view.expires_at_ms or 0))


async def finished(
    request: Request,
    frames: AsyncGenerator[bytes, None],
    caller: Principal,
    *,
    headers: dict[str, str],
    left: Callable[[], None] | None,
    turn_id: TurnId,
) -> Response:
    """The turn when it has ended, or waits for somebody: the same stream, collected."""
    gone = asyncio.ensure_future(_disconnected(request))
    reading = asyncio.ensure_future(_read_to_end(frames))
    try:
        await asyncio.wait((gone, reading), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            if left is not None:
                left()
            return Response(status_code=499)
        await reading
    finally:
        gone.cancel()
        reading.cancel()
    body = await turn_detail(services_of(request), caller.tenant.id, turn_id)
    if body.error is not None:
        return problem_response(request.scope, body.error, headers)
    return json_response(body, 200, headers)


async def _read_to_end(frames: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(frames):
        async for _ in frames:
            pass


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def fingerprint(body: BaseModel) -> bytes:
    """What a body says, and of which kind it is: a key belongs to one call."""
    return hashlib.sha256(f"{type(body).__name__}{canonical_json(body.model_dump(mode='json'))}".encode()).digest()


def wants_json(request: Request) -> bool:
    """Whether the client asks for JSON and not for a stream."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A value as a JSON answer."""
    return Response(_encode(value), status_code=status, media_type="application/json", headers=headers)
