"""Sessions and their transcripts."""

import hashlib
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from app.api.authentication import principal
from app.api.body import read_body
from app.api.imports import ImportedHistory, read_history
from app.api.openapi import json_answer, json_request
from app.api.paging import DEFAULT_LIMIT, After, Cursor, Limit, cursor_of, position
from app.api.schemas import (
    MAX_PROMPT_BYTES,
    ContextMessage,
    ContextPage,
    DeletedSession,
    MessagePage,
    SessionCreate,
    SessionPage,
    SessionPatch,
    SessionView,
    context_message,
    session_id_of,
    session_view,
)
from app.api.services import Services, services_of
from app.context.history import repair
from app.context.prompt import memory_snapshot
from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.domain.events import message_view
from app.domain.ids import ENTROPY_BYTES, SessionId, make_id
from app.domain.messages import canonical_json, clean_text
from app.domain.sessions import NewSession, Session, SessionChange
from app.domain.tenants import Principal, Tenant
from app.domain.tools import CORE_TOOLSET

router = APIRouter(prefix="/sessions", tags=["sessions"])

SHAPES = (SessionView, SessionPage, MessagePage, ContextPage, DeletedSession)
MODELS = (SessionCreate, SessionPatch)

Caller = Annotated[Principal, Depends(principal)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A repeat with the same key and body gives the session of the first, for at least 24 hours.",
    ),
]
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_PROMPT_FIELDS = frozenset({"system_prompt", "toolsets", "user"})
_CHANGE_TRIES = 3
_SESSION_POSITION = re.compile(r"sess_[0-9a-z]{26}")
_MESSAGE_POSITION = re.compile(r"[0-9]{1,18}")


class TranscriptView(StrEnum):
    """Which messages of a session."""

    TRANSCRIPT = "transcript"
    CONTEXT = "context"


@router.post(
    "",
    status_code=201,
    summary="Create a session",
    response_class=Response,
    responses=json_answer(SessionView, "The session; `Location` is its address.", status=201),
    openapi_extra=json_request(SessionCreate, required=False),
)
async def create_session(request: Request, caller: Caller, idempotency_key: IdempotencyKey = None) -> Response:
    """Start a conversation, empty or from an imported history."""
    services = services_of(request)
    key = checked_idempotency_key(idempotency_key)
    body = await read_body(request, SessionCreate)
    new = await _new_session(services, caller.tenant, body, key)
    memory = await _memory(services, caller.tenant, new.user, new.toolsets)
    session, replayed = await services.sessions.create(msgspec.structs.replace(new, memory=memory))
    headers = {"Location": f"/sessions/{session.id}"}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return _json(session_view(session), 201, headers)


@router.get("", summary="List sessions", response_class=Response, responses=json_answer(SessionPage, "Newest first."))
async def list_sessions(
    request: Request,
    caller: Caller,
    *,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    after: After = None,
    user: Annotated[str | None, Query(max_length=512, description="Only those of this end user.")] = None,
) -> Response:
    """The tenant's sessions."""
    before = position(cursor or after, _SESSION_POSITION)
    user = None if user is None else clean_text(user)
    page = await services_of(request).sessions.page(caller.tenant.id, limit, before, user)
    following = cursor_of(page.next_cursor)
    data = tuple(session_view(session) for session in page.data)
    return _json(SessionPage(data=data, has_more=following is not None, next_cursor=following))


@router.get("/{session_id}", summary="Read a session", response_class=Response, responses=json_answer(SessionView, "The session."))
async def read_session(request: Request, caller: Caller, session_id: str) -> Response:
    """The session and whether a turn of it runs."""
    return _json(session_view(await _session(services_of(request), caller, session_id_of(session_id))))


@router.patch(
    "/{session_id}",
    summary="Change a session",
    response_class=Response,
    responses=json_answer(SessionView, "The session as it is now."),
    openapi_extra=json_request(SessionPatch),
)
async def change_session(request: Request, caller: Caller, session_id: str) -> Response:
    """Change what is given. A turn that runs keeps what it started with: changes apply from the next turn on.

    A new prompt, other toolsets or another end user give up the provider's prompt cache of this conversation once; with them the session
    is shown memory as it is now.
    """
    services = services_of(request)
    known = session_id_of(session_id)
    body = await read_body(request, SessionPatch)
    change = await _change(services, caller.tenant, body)
    if not body.model_fields_set.isdisjoint(_PROMPT_FIELDS):
        return _json(session_view(await _change_prompt(services, caller, known, change)))
    session = await services.sessions.change(caller.tenant.id, known, change)
    if session is None:
        raise NotFoundError
    return _json(session_view(session))


@router.delete("/{session_id}", summary="Delete a session", response_class=Response, responses=json_answer(DeletedSession, "It is gone."))
async def delete_session(request: Request, caller: Caller, session_id: str) -> Response:
    """Delete the session with its messages, turns and events. 409 while a turn of it runs or waits: stop that first."""
    known = session_id_of(session_id)
    if not await services_of(request).sessions.delete(caller.tenant.id, known):
        raise NotFoundError
    return _json(DeletedSession(id=known))


@router.get(
    "/{session_id}/messages",
    summary="Read the transcript",
    response_class=Response,
    responses=json_answer(MessagePage, "Oldest first; with `view=context` a ContextPage."),
)
async def list_messages(
    request: Request,
    caller: Caller,
    session_id: str,
    *,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    after: After = None,
    view: Annotated[TranscriptView, Query(description="`context`: what the model is shown now, in one piece.")] = TranscriptView.TRANSCRIPT,
) -> Response:
    """The transcript with archived messages, or the history that the next model call would begin with (without the system prompt)."""
    services = services_of(request)
    known = session_id_of(session_id)
    if view is TranscriptView.CONTEXT:
        session = await _session(services, caller, known)
        return _json(ContextPage(data=await _context(services, session), has_more=False, next_cursor=None))
    start = position(cursor or after, _MESSAGE_POSITION)
    page = await services.messages.page(caller.tenant.id, known, limit, int(start or 0))
    if page is None:
        raise NotFoundError
    following = cursor_of(page.next_cursor)
    data = tuple(message_view(stored) for stored in page.data)
    return _json(MessagePage(data=data, has_more=following is not None, next_cursor=following))


def checked_idempotency_key(key: str | None) -> str | None:
    """The value of an Idempotency-Key header. Raises InvalidRequestError for one that is empty, too long or not plain ASCII."""
    if key is not None and _IDEMPOTENCY_KEY.fullmatch(key) is None:
        raise InvalidRequestError("Must be 1 to 255 visible ASCII characters.", pointer="/Idempotency-Key")
    return key


async def _session(services: Services, caller: Principal, session_id: SessionId) -> Session:
    session = await services.sessions.get(caller.tenant.id, session_id)
    if session is None:
        raise NotFoundError
    return session


async def _change_prompt(services: Services, caller: Principal, session_id: SessionId, change: SessionChange) -> Session:
    """Apply a change with the memory that belongs to it: never that of an end user whose session it no longer is."""
    for _ in range(_CHANGE_TRIES):
        session = await _session(services, caller, session_id)
        user = session.user if change.user is msgspec.UNSET else change.user
        toolsets = session.toolsets if change.toolsets is msgspec.UNSET else change.toolsets
        memory = await _memory(services, caller.tenant, user, toolsets)
        made_for = msgspec.structs.replace(change, memory=memory, if_user=session.user)
        changed = await services.sessions.change(caller.tenant.id, session_id, made_for)
        if changed is not None:
            return changed
    raise ConflictError("session_changed", "Another request changes the end user of this session; try again.")


async def _memory(services: Services, tenant: Tenant, user: str | None, toolsets: Iterable[str]) -> str | None:
    """The snapshot of memory for a session's prompt: only where its model has the tool that keeps memory, one of the core."""
    if CORE_TOOLSET not in toolsets:
        return None
    return memory_snapshot(await services.memory.of_user(tenant.id, user))


async def _context(services: Services, session: Session) -> tuple[ContextMessage, ...]:
    stored = await services.messages.working_set(session.id)
    # Repair passes on the very objects that it leaves alone, which is how a message finds its row again.
    places = {id(item.message): (item.id, item.seq) for item in stored}
    shown = repair([item.message for item in stored])
    return tuple(context_message(message, places.get(id(message))) for message in shown)


async def _new_session(services: Services, tenant: Tenant, body: SessionCreate, key: str | None) -> NewSession:
    history = read_history(body.messages or ())
    _check_model(services, tenant, body.model)
    toolsets, tools = await _snapshot(services, tenant, body.toolsets)
    return NewSession(
        id=SessionId(_make_id(services, "sess")),
        tenant_id=tenant.id,
        system_prompt=_system_prompt(body, history, tenant),
        model=body.model,
        toolsets=toolsets,
        tools=tools,
        user=body.user,
        keep_interrupted_text=body.keep_interrupted_text,
        metadata=body.metadata,
        messages=tuple((_make_id(services, "msg"), message) for message in repair(history.messages)),
        idempotency_key=key,
        fingerprint=hashlib.sha256(canonical_json(body.model_dump(mode="json", exclude_unset=True)).encode()).digest(),
    )


def _system_prompt(body: SessionCreate, history: ImportedHistory, tenant: Tenant) -> str:
    if body.system_prompt is not None:
        return body.system_prompt
    if history.system_prompt is None:
        return tenant.settings.system_prompt
    if len(history.system_prompt.encode()) > MAX_PROMPT_BYTES:
        raise InvalidRequestError(f"The system messages must have at most {MAX_PROMPT_BYTES} bytes.", pointer="/messages")
    return history.system_prompt


async def _change(services: Services, tenant: Tenant, body: SessionPatch) -> SessionChange:
    given = body.model_fields_set
    change = SessionChange()
    if "system_prompt" in given:
        prompt = tenant.settings.system_prompt if body.system_prompt is None else body.system_prompt
        change = msgspec.structs.replace(change, system_prompt=prompt)
    if "model" in given:
        _check_model(services, tenant, body.model)
        change = msgspec.structs.replace(change, model=body.model)
    if "toolsets" in given:
        toolsets, tools = await _snapshot(services, tenant, body.toolsets)
        change = msgspec.structs.replace(change, toolsets=toolsets, tools=tools)
    if "user" in given:
        change = msgspec.structs.replace(change, user=body.user)
    if "keep_interrupted_text" in given:
        change = msgspec.structs.replace(change, keep_interrupted_text=bool(body.keep_interrupted_text))
    if "metadata" in given:
        change = msgspec.structs.replace(change, metadata=body.metadata or {})
    return change


def _check_model(services: Services, tenant: Tenant, model: str | None) -> None:
    if model is None:
        return
    try:
        services.model_clients.for_chat(tenant, model)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.detail, pointer="/model") from error


async def _snapshot(services: Services, tenant: Tenant, toolsets: list[str] | None) -> tuple[tuple[str, ...], bytes]:
    """The toolsets of a session and the canonical bytes of their tools, which every model call of it will carry."""
    toolbox = services.toolboxes.for_tenant(tenant)
    try:
        if toolsets is None:
            names, specs = await toolbox.available()
        else:
            names = tuple(dict.fromkeys(toolsets))
            specs = await toolbox.specs(names)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.detail, pointer="/toolsets") from error
    return names, msgspec.json.encode(specs, order="sorted")


def _make_id(services: Services, prefix: str) -> str:
    return make_id(prefix, services.clock.unix_ms(), secrets.token_bytes(ENTROPY_BYTES))


def _json(body: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json", headers=headers)
