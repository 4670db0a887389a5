"""What a facade call is bound to: nothing but itself, or one of our sessions; and the turn that it starts."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from app.api.facades.schemas import FacadeBody
from app.api.imports import ImportedHistory
from app.api.openai_errors import CallError
from app.api.schemas import MAX_PROMPT_BYTES, session_id_of
from app.api.services import Services
from app.domain.capabilities import missing_option
from app.domain.errors import InvalidRequestError, NotFoundError
from app.domain.events import Problem
from app.domain.ids import SessionId, TurnId
from app.domain.messages import Content, ContentPart, Message, MessageKind, Role, ToolSpec, canonical_json
from app.domain.model import ModelOptions
from app.domain.openings import StatelessCall
from app.domain.tenants import Purpose, Tenant
from app.domain.turns import InterruptReason, TurnRequest, TurnState
from app.turns.service import Started

DEFAULT_MODEL = "default"
_MOST_TRIES = 10
"""Of one key; then its last failure is what it stands for."""
_COME_TO_NOTHING = (InterruptReason.CLIENT_GONE, InterruptReason.SHUTDOWN, InterruptReason.WORKER_LOST)


class _Failure(msgspec.Struct, frozen=True):
    """What of a failed turn's outcome tells whether it may be repeated."""

    output: str = ""
    error: Problem | None = None


_failure = msgspec.json.Decoder(_Failure).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A facade call as read. ``pointer`` is where its conversation stands in the body; ``raw`` is the whole body as JSON values.

    ``named``: where the body has the options whose place the protocols do not agree on.
    """

    body: FacadeBody
    raw: Mapping[str, Any]
    history: ImportedHistory
    options: ModelOptions
    tools: tuple[ToolSpec, ...]
    session_id: SessionId | None
    pointer: str
    named: Mapping[str, str]


async def start(services: Services, tenant: Tenant, call: Call, *, path: str, idempotency_key: str | None) -> Started:
    """Start the turn of a call, or find it again.

    Raises CallError (``model_not_found``), InvalidRequestError, and what :meth:`app.turns.service.Turns.start` raises.
    """
    model = model_of(tenant, call.body.model)
    _check_options(tenant, model, call)
    request = _request(tenant, call, model)
    stateless = None
    if call.session_id is None and not call.body.toolsets:
        _check_choice(call.options.tool_choice or "", call.tools)
    if call.session_id is None:
        stateless = await _stateless(services, tenant, call)
    else:
        request = _in_session(call, request)
    # A key belongs to its path. The ones of sessions are told apart from those of the native API in the same way.
    key = f"{path} {idempotency_key}" if idempotency_key else None
    fingerprint = _fingerprint(call) if idempotency_key else b""
    try:
        if request.answers:
            await _check_answers(services, tenant, call, request)
    except InvalidRequestError:  # also when this very call has brought the results before
        again = await services.turns.find_again(tenant, call.session_id, request, idempotency_key=key, fingerprint=fingerprint)
        if again is None:
            raise
        return again
    begin = partial(services.turns.start, tenant, call.session_id, request, fingerprint=fingerprint, stateless=stateless)
    started = await begin(idempotency_key=key)
    for _ in range(_MOST_TRIES):
        if not started.replayed or stateless is None or not await _is_worth_another(services, tenant, started.turn_id):
            break
        key = f"{key} {started.turn_id}"  # whoever repeats the call at the same time comes to the same key
        started = await begin(idempotency_key=key)
    return started


async def _is_worth_another(services: Services, tenant: Tenant, turn_id: TurnId) -> bool:
    """Whether a turn came to nothing and may be run anew: its error is one that clients repeat a call for, and no tool was run."""
    view = await services.turns.get(tenant.id, turn_id)
    if view.machine.iteration > 1 or view.outcome is None:
        return False
    if view.state is TurnState.INTERRUPTED:
        return view.reason in _COME_TO_NOTHING
    end = _failure(view.outcome)
    return end.error is not None and end.error.retryable and not end.output


def model_of(tenant: Tenant, name: str | None) -> str | None:
    """The model to ask first; ``None`` leaves it to the chain. Raises CallError (``model_not_found``)."""
    routes = tenant.chains.get(Purpose.CHAT, ())
    if name and any(route.model == name for route in routes):
        return name
    if name and name != DEFAULT_MODEL:
        raise unknown_model(name)
    return None


def unknown_model(name: str) -> CallError:
    """The error of a model that no route of the chat chain has."""
    text = f"The model {name[:100]!a} does not exist or you do not have access to it."
    return CallError(404, text, code="model_not_found", param="model")


def session_of(*names: str | None) -> SessionId | None:
    """The session that is named. Raises NotFoundError for a name that cannot be one, InvalidRequestError when two are named."""
    named = {name for name in names if name}
    if len(named) > 1:
        raise InvalidRequestError("Different sessions are named, in the body or in X-Session-Id.", pointer="/session_id")
    return session_id_of(named.pop()) if named else None


def _request(tenant: Tenant, call: Call, model: str | None) -> TurnRequest:
    limit = tenant.settings.max_iterations
    return TurnRequest(
        client_tools=call.tools,
        model=model,
        options=call.options,
        on_disconnect=call.body.on_disconnect,
        max_iterations=min(limit, call.body.max_iterations or limit),
        metadata=call.body.metadata or {},
    )


def _check_options(tenant: Tenant, model: str | None, call: Call) -> None:
    """Refuse what no route that is meant can be asked for: left out, the answer would be another one than was asked for."""
    routes = [route for route in tenant.chains.get(Purpose.CHAT, ()) if model in (None, route.model)]
    missing = [missing_option(route, call.options) for route in routes]
    if routes and None not in missing:
        name = next(filter(None, missing))
        text = "The provider of this model has no such parameter, or not this value of it."
        raise InvalidRequestError(text, pointer=call.named.get(name, f"/{name}"))


def _check_choice(choice: str, tools: Sequence[ToolSpec]) -> None:
    """Refuse to force a call of what is not there: providers do, each in words of its own."""
    if choice == "required" and not tools:
        raise InvalidRequestError("There are no tools to be called.", pointer="/tool_choice")
    if choice.startswith("tool:") and choice.removeprefix("tool:") not in {tool.name for tool in tools}:
        raise InvalidRequestError("There is no function of this name in tools.", pointer="/tool_choice")


async def _stateless(services: Services, tenant: Tenant, call: Call) -> StatelessCall:
    history = call.history
    if not any(message.role is Role.USER for message in history.messages):
        raise InvalidRequestError("At least one message of the user is needed.", pointer=call.pointer)
    prompt = history.system_prompt or ""
    if len(prompt.encode()) > MAX_PROMPT_BYTES:
        raise InvalidRequestError(f"The system messages must have at most {MAX_PROMPT_BYTES} bytes.", pointer=call.pointer)
    try:
        specs = await services.toolboxes.for_tenant(tenant).specs(call.body.toolsets or ())
    except InvalidRequestError as error:
        raise InvalidRequestError(error.detail, pointer="/toolsets") from error
    return StatelessCall(system_prompt=prompt, tools=msgspec.json.encode(specs, order="sorted"), history=history.messages)


def _in_session(call: Call, request: TurnRequest) -> TurnRequest:
    """The request with what is new in the call: everything behind the last assistant message."""
    if call.body.toolsets is not None:
        raise InvalidRequestError("A session has its own toolsets.", pointer="/toolsets")
    new = _new_messages(call.history.messages)
    answers = tuple(message for message in new if message.role is Role.TOOL)
    said = [message.content for message in new if message.role is Role.USER]
    if not (answers or said):
        raise InvalidRequestError("There is nothing new: the last message is the assistant's.", pointer=call.pointer)
    return msgspec.structs.replace(request, input=_joined(said), answers=answers)


def _new_messages(messages: Sequence[Message]) -> Sequence[Message]:
    last = max((index for index, message in enumerate(messages) if message.role is Role.ASSISTANT), default=-1)
    return messages[last + 1 :]


async def _check_answers(services: Services, tenant: Tenant, call: Call, request: TurnRequest) -> None:
    """Refuse results that the session does not wait for, and too few of them.

    What the model was shown stays as it was shown: once the session went on without a result, another one cannot take its place. With a
    new message of the user the results that are missing are given up.
    """
    if call.session_id is None or await services.sessions.get(tenant.id, call.session_id) is None:
        raise NotFoundError
    waiting: set[str | None] = set()
    for stored in await services.messages.working_set(call.session_id):
        if stored.message.role is Role.TOOL:
            waiting.discard(stored.message.tool_call_id)
        elif stored.message.kind is not MessageKind.NOTE:
            waiting = {asked.id for asked in stored.message.tool_calls}
    answered = {answer.tool_call_id for answer in request.answers}
    if not answered <= waiting:
        raise InvalidRequestError("A tool result answers no call that this session waits for.", pointer=call.pointer)
    if not request.input and answered != waiting:
        raise InvalidRequestError("Every call needs its result, or a new message of the user must follow.", pointer=call.pointer)


def _joined(said: Sequence[Content]) -> Content:
    texts = [content for content in said if isinstance(content, str)]
    if len(texts) == len(said):
        return "\n\n".join(texts)
    parts: list[ContentPart] = []
    for content in said:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _fingerprint(call: Call) -> bytes:
    """Of the whole body: also of parameters that are not looked at, which make it another request all the same."""
    content: dict[str, Any] = {"body": call.raw, "session_id": call.session_id}
    return hashlib.sha256(canonical_json(content).encode()).digest()
