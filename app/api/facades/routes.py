"""The routes below ``/v1``."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Header, Request, Response

from app.api.authentication import principal
from app.api.body import raw_object, read_body
from app.api.client_tools import client_tools
from app.api.facades.answering import Order, answer
from app.api.facades.binding import DEFAULT_MODEL, Call, session_of, start, unknown_model
from app.api.facades.chat_input import read_messages
from app.api.facades.chat_output import ChatForm
from app.api.facades.options import chat_options, response_options
from app.api.facades.protocol import Identity
from app.api.facades.response_input import read_input
from app.api.facades.response_output import ResponseForm
from app.api.facades.schemas import ChatCompletionCreate, ResponseCreate
from app.api.openai_errors import PREFIX, CallError
from app.api.openapi import json_request
from app.api.routes.sessions import checked_idempotency_key
from app.api.schemas import turn_id_of
from app.api.services import Services, services_of
from app.domain.errors import InvalidRequestError, NotFoundError
from app.domain.ids import SessionId, made_at_ms
from app.domain.tenants import Principal, Purpose, Route, Tenant

router = APIRouter(prefix=PREFIX, tags=["openai"])

MODELS = (ChatCompletionCreate, ResponseCreate)

Caller = Annotated[Principal, Depends(principal)]
_KEY = (
    "A repeat with the same key and body attaches to the first one's turn, for 24 hours. A call without a session that came to nothing, by "
    "an error that may pass or since its client left, is run anew, unless a tool was run."
)
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", description=_KEY)]
SessionHeader = Annotated[str | None, Header(alias="X-Session-Id", description="The call is a turn of this session.")]
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "As OpenAI answers: one object, or with `stream` Server-Sent Events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {"type": "string"}}},
    }
}
_LISTING: dict[int | str, dict[str, Any]] = {
    200: {"description": "As OpenAI answers.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.post(
    "/chat/completions",
    summary="Create a chat completion",
    response_class=Response,
    responses=_ANSWER,
    openapi_extra=json_request(ChatCompletionCreate),
)
async def create_chat_completion(
    request: Request, caller: Caller, *, idempotency_key: IdempotencyKey = None, session: SessionHeader = None
) -> Response:
    """OpenAI's chat completions over a turn of the gateway. `X-Turn-Id` names the turn."""
    services, tenant = services_of(request), caller.tenant
    key = checked_idempotency_key(idempotency_key)
    body = await read_body(request, ChatCompletionCreate)
    call = Call(
        body=body,
        raw=await raw_object(request) if key else {},
        history=read_messages(body.messages),
        options=chat_options(body),
        tools=client_tools(body.tools, nested=True),
        session_id=session_of(body.session_id, session),
        pointer="/messages",
        named={},
    )
    started = await start(services, tenant, call, path=request.url.path, idempotency_key=key)
    include_usage = bool((body.stream_options or {}).get("include_usage"))
    form = ChatForm(Identity.of(started.turn_id), include_usage=include_usage)
    order = Order(tenant=tenant, started=started, form=form, stream=bool(body.stream), on_disconnect=body.on_disconnect)
    return await answer(request, services, order)


@router.post(
    "/responses",
    summary="Create a response",
    response_class=Response,
    responses=_ANSWER,
    openapi_extra=json_request(ResponseCreate),
)
async def create_response(
    request: Request, caller: Caller, *, idempotency_key: IdempotencyKey = None, session: SessionHeader = None
) -> Response:
    """OpenAI's responses over a turn of the gateway. `X-Turn-Id` names the turn."""
    services, tenant = services_of(request), caller.tenant
    key = checked_idempotency_key(idempotency_key)
    body = await read_body(request, ResponseCreate)
    call = Call(
        body=body,
        raw=await raw_object(request) if key else {},
        history=read_input(body.input, body.instructions),
        options=response_options(body),
        tools=client_tools(body.tools, nested=False),
        session_id=await _session_of_response(services, tenant, body, session),
        pointer="/input",
        named={"response_format": "/text/format", "reasoning_effort": "/reasoning/effort"},
    )
    started = await start(services, tenant, call, path=request.url.path, idempotency_key=key)
    form = ResponseForm(Identity.of(started.turn_id), _echo(body, call.session_id))
    order = Order(tenant=tenant, started=started, form=form, stream=bool(body.stream), on_disconnect=body.on_disconnect)
    return await answer(request, services, order)


@router.get("/models", summary="List the models", response_class=Response, responses=_LISTING)
async def list_models(caller: Caller) -> Response:
    """The models of the tenant's chat chain, and `default`, which asks the chain in its order."""
    return _json({"object": "list", "data": _models(caller.tenant)})


@router.get("/models/{model:path}", summary="Read a model", response_class=Response, responses=_LISTING)
async def read_model(caller: Caller, model: str) -> Response:
    """One model of the chat chain."""
    for entry in _models(caller.tenant):
        if entry["id"] == model:
            return _json(entry)
    raise unknown_model(model)


async def _session_of_response(services: Services, tenant: Tenant, body: ResponseCreate, header: str | None) -> SessionId | None:
    conversation = body.conversation.get("id") if isinstance(body.conversation, dict) else body.conversation
    if conversation is not None and not isinstance(conversation, str):
        raise InvalidRequestError("Must be the id of a session.", pointer="/conversation")
    known = session_of(body.session_id, conversation, header)
    if body.previous_response_id is None:
        return known
    if conversation is not None:
        raise InvalidRequestError("Give a conversation or a previous response, not both.", pointer="/previous_response_id")
    try:
        turn_id = turn_id_of("turn_" + body.previous_response_id.removeprefix("resp_"))
        view = await services.turns.get(tenant.id, turn_id)
    except NotFoundError:
        text = "The previous response does not exist."
        raise CallError(404, text, code="previous_response_not_found", param="previous_response_id") from None
    if view.session_id is None:
        text = "That response belongs to no session: send the whole conversation, or call with a session from the beginning."
        raise InvalidRequestError(text, pointer="/previous_response_id")
    return view.session_id


def _echo(body: ResponseCreate, session_id: SessionId | None) -> dict[str, Any]:
    """What a response repeats of its request."""
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "conversation": None if session_id is None else {"id": session_id},
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": (body.reasoning or {}).get("summary")},
        "background": False,
        "store": False,
        "temperature": body.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
    }


def _models(tenant: Tenant) -> list[dict[str, Any]]:
    routes = tenant.chains.get(Purpose.CHAT, ())
    names = {route.model: _model(route.model, route) for route in reversed(routes)}
    listed = [names[name] for name in dict.fromkeys(route.model for route in routes)]
    if routes and DEFAULT_MODEL not in names:
        listed.append(_model(DEFAULT_MODEL, routes[0]))
    return listed


def _model(name: str, route: Route) -> dict[str, Any]:
    provider = route.provider
    return {"id": name, "object": "model", "created": made_at_ms(provider.id) // 1000, "owned_by": provider.name}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
