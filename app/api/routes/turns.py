"""Turns: start, follow, read, interrupt."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from app.api.authentication import principal
from app.api.body import read_body
from app.api.client_tools import checked_tools
from app.api.openapi import EVENT_STREAM_RESPONSES, QUOTA_RESPONSES, json_answer, json_request
from app.api.paging import DEFAULT_LIMIT, After, Cursor, Limit, cursor_of, position
from app.api.rate_limit import rate_limit_headers
from app.api.routes.sessions import checked_idempotency_key
from app.api.schemas import Metadata, RequestBody, session_id_of, turn_id_of
from app.api.services import Services, services_of
from app.api.sse import after_of, event_stream
from app.api.turn_answers import (
    Caller,
    IdempotencyKey,
    TurnBody,
    TurnDetail,
    TurnPage,
    fingerprint,
    finished,
    json_response,
    turn_body,
    turn_detail,
    wants_json,
)
from app.domain.errors import InvalidRequestError, NotFoundError
from app.domain.ids import TenantId
from app.domain.messages import Content, clean_json, clean_text
from app.domain.tenants import Principal
from app.domain.turns import OnBusy, OnDisconnect, TurnKind, TurnRequest
from app.turns.service import Started

router = APIRouter(tags=["turns"])

MAX_INPUT_CHARACTERS = 2_000_000
MAX_PARTS = 256
MAX_TOOLS = 128
_TURN_POSITION = re.compile(r"turn_[0-9a-z]{26}")
_PART_TYPES = frozenset({"text", "image_url", "input_audio", "file"})


class TurnCreate(RequestBody):
    """A user message and how its turn is run."""

    input: (
        Annotated[str, Field(min_length=1, max_length=MAX_INPUT_CHARACTERS)]
        | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_PARTS)]
    ) = Field(description="Text, or OpenAI content parts.")
    on_busy: Annotated[OnBusy, Field(strict=False)] = Field(
        OnBusy.REJECT, description="When the session already has a turn: answer 409, wait in line, or interrupt it."
    )
    on_disconnect: Annotated[OnDisconnect, Field(strict=False)] = Field(
        OnDisconnect.CONTINUE,
        description="When this request's connection goes away: go on, or interrupt the turn unless somebody else reads it.",
    )
    background: bool = Field(False, description="Answer 202 at once; read the turn later.")
    max_iterations: Annotated[int, Field(ge=1, le=1_000)] | None = Field(None, description="Default and upper bound: the tenant's setting.")
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        None, description="Input and output tokens of the whole turn. Default and upper bound: the tenant's setting."
    )
    max_cost_usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        None, description="What the whole turn may cost. Default and upper bound: the tenant's setting."
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = Field(
        None,
        description="Your own functions for this turn, in OpenAI's format. When the model calls one, the turn waits for its result "
        "(`POST /turns/{id}/tool_results`). One with the name of a tool of the gateway stands in its place.",
    )
    metadata: Metadata = Field({}, description="Up to 16 strings of yours.")


class CompactionCreate(RequestBody):
    """How the turn that compacts a session is run; everything has a default."""

    on_busy: Annotated[OnBusy, Field(strict=False)] = Field(OnBusy.REJECT, description="As for a turn.")
    on_disconnect: Annotated[OnDisconnect, Field(strict=False)] = Field(OnDisconnect.CONTINUE, description="As for a turn.")
    background: bool = Field(False, description="Answer 202 at once.")
    metadata: Metadata = Field({}, description="Up to 16 strings of yours.")


MODELS = (TurnCreate, CompactionCreate)

LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", description="The last event that was read; wins over `after`.")]

_START_RESPONSES = EVENT_STREAM_RESPONSES | json_answer(TurnBody, "`background`: the turn as it stands.", status=202) | QUOTA_RESPONSES
_INTERRUPT_RESPONSES = json_answer(TurnBody, "It has ended.") | json_answer(TurnBody, "It is stopping.", status=202)


async def create_turn(request: Request, caller: Caller, session_id: str, *, idempotency_key: IdempotencyKey = None) -> Response:
    """Send a user message and stream the agent's work (`text/event-stream`).

    With `Accept: application/json` the answer is the finished turn; with `background: true` it is 202 and the turn as it stands. Where the
    turn waits for somebody, the stream ends with `tool.requires_action`, and the JSON answer is the turn as it waits.
    """
    body = await read_body(request, TurnCreate)
    return await _run_turn(request, caller, session_id, asked=_turn_request(body, caller), repeat=_Repeat(idempotency_key, body))


@router.post(
    "/sessions/{session_id}/compact",
    summary="Compact a session",
    response_class=Response,
    responses=_START_RESPONSES,
    openapi_extra=json_request(CompactionCreate),
)
async def compact_session(request: Request, caller: Caller, session_id: str, *, idempotency_key: IdempotencyKey = None) -> Response:
    """Replace the older part of a session's context by a summary, as a turn of its own: same slot, events, forms and interrupt.

    Its `output` is the summary. The transcript stays as it is.
    """
    body = await read_body(request, CompactionCreate)
    asked = TurnRequest(
        kind=TurnKind.COMPACTION, on_busy=body.on_busy, on_disconnect=body.on_disconnect, background=body.background, metadata=body.metadata
    )
    return await _run_turn(request, caller, session_id, asked=asked, repeat=_Repeat(idempotency_key, body))


@dataclass(frozen=True, slots=True)
class _Repeat:
    """By what a repeated request is known."""

    key: str | None
    body: BaseModel


async def _run_turn(request: Request, caller: Principal, session_id: str, *, asked: TurnRequest, repeat: _Repeat) -> Response:
    """Start a turn and answer in the form that was asked for."""
    services = services_of(request)
    key = checked_idempotency_key(repeat.key)
    digest = fingerprint(repeat.body) if key else b""
    started = await services.turns.start(caller.tenant, session_id_of(session_id), asked, idempotency_key=key, fingerprint=digest)
    headers = {"Location": f"/turns/{started.turn_id}", **rate_limit_headers(started.quotas)}
    if started.replayed:
        headers["Idempotency-Replayed"] = "true"
    if asked.background:
        view = await services.turns.get(caller.tenant.id, started.turn_id)
        return json_response(turn_body(view), 202, headers)
    left = partial(services.turns.client_left, caller.tenant.id, started.turn_id) if asked.on_disconnect is OnDisconnect.CANCEL else None
    frames = await _frames(services, caller.tenant.id, started)
    if wants_json(request):
        return await finished(request, frames, caller, headers=headers, left=left, turn_id=started.turn_id)
    return event_stream(frames, heartbeat_s=services.heartbeat_s, headers=headers, left=left)


class _StartRoute(APIRoute):
    """The route of the main call: documented by FastAPI like any other, served without its dependency injection.

    Reading four values through it, with its stacks of contexts, costs as much as all the rest of the request (ADR 6).
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        caller = await principal(request)
        key = request.headers.get("idempotency-key")
        response = await create_turn(request, caller, request.path_params["session_id"], idempotency_key=key)
        await response(scope, receive, send)


def add_start_route(app: FastAPI) -> None:
    """Add the main call; before all others, so that no list of routes is gone through for it."""
    app.router.add_api_route(
        "/sessions/{session_id}/turns",
        create_turn,
        methods=["POST"],
        tags=["turns"],
        summary="Run a turn",
        response_class=Response,
        responses=_START_RESPONSES,
        openapi_extra=json_request(TurnCreate),
        route_class_override=_StartRoute,
    )


@router.get(
    "/sessions/{session_id}/turns",
    summary="List a session's turns",
    response_class=Response,
    responses=json_answer(TurnPage, "Newest first."),
)
async def list_turns(
    request: Request, caller: Caller, session_id: str, *, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, after: After = None
) -> Response:
    """The turns of a session."""
    before = position(cursor or after, _TURN_POSITION)
    services, known = services_of(request), session_id_of(session_id)
    page = await services.turns.page(caller.tenant.id, known, limit, before)
    if not page.data and await services.sessions.get(caller.tenant.id, known) is None:
        raise NotFoundError
    following = cursor_of(page.next_cursor)
    data = tuple(turn_body(view) for view in page.data)
    return json_response(TurnPage(data=data, has_more=following is not None, next_cursor=following))


@router.get("/turns/{turn_id}", summary="Read a turn", response_class=Response, responses=json_answer(TurnDetail, "The turn."))
async def read_turn(request: Request, caller: Caller, turn_id: str) -> Response:
    """Where a turn stands, or how it ended, and its tool calls."""
    return json_response(await turn_detail(services_of(request), caller.tenant.id, turn_id_of(turn_id)))


@router.get("/turns/{turn_id}/events", summary="Follow a turn", response_class=Response, responses=EVENT_STREAM_RESPONSES)
async def follow_turn(
    request: Request,
    caller: Caller,
    turn_id: str,
    *,
    last_event_id: LastEventId = None,
    after: Annotated[str | None, Query(description="Only events behind this one.")] = None,
) -> Response:
    """Replay a turn's events behind a cursor, then follow it to its end. On any replica, during and after the turn."""
    services = services_of(request)
    turn = turn_id_of(turn_id)
    frames = await services.turns.follow(caller.tenant.id, turn, after_of(last_event_id, after))
    return event_stream(frames, heartbeat_s=services.heartbeat_s, headers={"Content-Location": f"/turns/{turn}"})


@router.delete("/turns/{turn_id}", summary="Interrupt a turn", response_class=Response, responses=_INTERRUPT_RESPONSES)
@router.post("/turns/{turn_id}/cancel", summary="Interrupt a turn", response_class=Response, responses=_INTERRUPT_RESPONSES)
async def interrupt_turn(request: Request, caller: Caller, turn_id: str) -> Response:
    """Stop a turn. Idempotent; the record stays."""
    services, known = services_of(request), turn_id_of(turn_id)
    view = await services.turns.interrupt(caller.tenant.id, known)
    return json_response(await turn_detail(services, caller.tenant.id, known), 200 if view.state.terminal else 202)


async def _frames(services: Services, tenant_id: TenantId, started: Started) -> AsyncGenerator[bytes, None]:
    """What the answer to a POST streams. Who comes back to a turn reads it like any other follower: the first connection may go."""
    if started.replayed:
        return await services.turns.follow(tenant_id, started.turn_id, 0)
    return services.turns.follow_started(started.turn_id)


def _turn_request(body: TurnCreate, caller: Principal) -> TurnRequest:
    limit = caller.tenant.settings.max_iterations
    return TurnRequest(
        input=_input(body.input),
        on_busy=body.on_busy,
        on_disconnect=body.on_disconnect,
        background=body.background,
        may_wait=True,
        client_tools=checked_tools(body.tools, nested=True),
        max_iterations=min(limit, body.max_iterations or limit),
        max_tokens=body.max_tokens,
        max_cost_usd=body.max_cost_usd,
        metadata=body.metadata,
    )


def _input(value: str | list[dict[str, Any]]) -> Content:
    if isinstance(value, str):
        text = clean_text(value)
        if not text.strip():
            raise InvalidRequestError("The input must not be blank.", pointer="/input")
        return text
    for index, part in enumerate(value):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _PART_TYPES or kind not in part:
            names = ", ".join(sorted(_PART_TYPES))
            raise InvalidRequestError(f"A content part has a type ({names}) and a field of that name.", pointer=f"/input/{index}")
        value_type: type = str if kind == "text" else dict
        if not isinstance(part[kind], value_type):
            wanted = "a string" if kind == "text" else "an object"
            raise InvalidRequestError(f"The {kind} of a part is {wanted}.", pointer=f"/input/{index}/{kind}")
    if all(part["type"] == "text" and not part["text"].strip() for part in value):
        raise InvalidRequestError("The input must not be blank.", pointer="/input")
    parts: list[dict[str, Any]] = clean_json(value)
    return parts
