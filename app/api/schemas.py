"""What the sessions API takes and returns. Requests are pydantic models, answers msgspec structs: both end up in the OpenAPI document."""

import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.domain.errors import NotFoundError
from app.domain.events import MessageView, ToolCallView, rfc3339
from app.domain.ids import SessionId, TurnId
from app.domain.messages import Content, Message, clean_text
from app.domain.sessions import Session

MAX_PROMPT_BYTES = 262_144
MAX_IMPORTED = 10_000
MAX_METADATA = 16

_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")


def session_id_of(text: str) -> SessionId:
    """A session id from a path. Raises NotFoundError for text that cannot be one: it has nothing to say to the database."""
    return SessionId(_checked(text, "sess_"))


def turn_id_of(text: str) -> TurnId:
    """A turn id from a path. Raises NotFoundError like :func:`session_id_of`."""
    return TurnId(_checked(text, "turn_"))


def _checked(text: str, prefix: str) -> str:
    if not text.startswith(prefix) or _ID.fullmatch(text) is None:
        raise NotFoundError
    return text


def _prompt(text: str) -> str:
    if len(text.encode()) > MAX_PROMPT_BYTES:
        msg = f"must have at most {MAX_PROMPT_BYTES} bytes"
        raise ValueError(msg)
    return text


def _few(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_METADATA:
        msg = f"must have at most {MAX_METADATA} keys"
        raise ValueError(msg)
    return metadata


Prompt = Annotated[str, AfterValidator(clean_text), AfterValidator(_prompt)]
Name = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(clean_text)]
Names = Annotated[list[Name], Field(max_length=64)]
UserName = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(clean_text)]
MetadataKey = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(clean_text)]
MetadataValue = Annotated[str, Field(max_length=512), AfterValidator(clean_text)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], AfterValidator(_few)]


class RequestBody(BaseModel):
    """A request body: unknown fields and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SessionCreate(RequestBody):
    """A new session."""

    system_prompt: Prompt | None = Field(None, description="Default: that of the imported `messages`, else the tenant's.")
    model: Name | None = Field(None, description="Begin each turn at the chain's route of this model.")
    toolsets: Names | None = Field(None, description="Tools that turns may call. Default: all toolsets.")
    user: UserName | None = Field(None, description="Your name for the end user; sessions can be listed by it.")
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_IMPORTED)] | None = Field(
        None,
        description="A history to start from, in OpenAI's chat format. Leading `system` and `developer` messages become the system prompt "
        "unless one is given; a tool call without its result, or a result without its call, is repaired.",
    )
    keep_interrupted_text: bool = Field(False, description="Show the model the marked partial text of an interrupted turn.")
    metadata: Metadata = Field({}, description="Up to 16 strings of yours.")


class SessionPatch(RequestBody):
    """Changes of a session: fields left out stay; `null` goes back to the default. They apply from the next turn on."""

    system_prompt: Prompt | None = None
    model: Name | None = None
    toolsets: Names | None = None
    user: UserName | None = None
    keep_interrupted_text: bool | None = None
    metadata: Metadata | None = Field(None, description="Replaces all of it.")


class SessionStatus(StrEnum):
    """Whether a turn of the session runs, or waits for somebody."""

    IDLE = "idle"
    RUNNING = "running"


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session. Times are RFC 3339 in UTC."""

    id: SessionId
    system_prompt: str
    model: str | None
    toolsets: tuple[str, ...]
    user: str | None
    keep_interrupted_text: bool
    metadata: dict[str, str]
    status: SessionStatus
    active_turn_id: str | None
    created_at: str
    updated_at: str


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions, newest first."""

    data: tuple[SessionView, ...]
    has_more: bool
    next_cursor: str | None


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a transcript, oldest first."""

    data: tuple[MessageView, ...]
    has_more: bool
    next_cursor: str | None


class DeletedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session is gone with its messages and turns."""

    id: SessionId
    deleted: bool = True


class ContextMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as the model is shown it. ``id`` and ``seq`` are ``null`` where the gateway joined messages or filled one in."""

    id: str | None
    seq: int | None
    role: str
    content: Content
    tool_calls: tuple[ToolCallView, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    reasoning: str | None = None
    kind: str = "said"


class ContextPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is shown, in one piece."""

    data: tuple[ContextMessage, ...]
    has_more: bool
    next_cursor: str | None


def session_view(session: Session) -> SessionView:
    """The session as clients see it."""
    return SessionView(
        id=session.id,
        system_prompt=session.system_prompt,
        model=session.model,
        toolsets=session.toolsets,
        user=session.user,
        keep_interrupted_text=session.keep_interrupted_text,
        metadata=session.metadata,
        status=SessionStatus.RUNNING if session.active_turn_id else SessionStatus.IDLE,
        active_turn_id=session.active_turn_id,
        created_at=rfc3339(session.created_at_ms),
        updated_at=rfc3339(session.updated_at_ms),
    )


def context_message(message: Message, place: tuple[str, int] | None) -> ContextMessage:
    """A message of the working set; ``place`` is its id and seq, when it is one message of the transcript."""
    return ContextMessage(
        id=place[0] if place else None,
        seq=place[1] if place else None,
        role=message.role.value,
        content=message.content,
        tool_calls=tuple(
            ToolCallView(id=call.id, function={"name": call.name, "arguments": call.arguments}) for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        is_error=message.is_error,
        reasoning=message.reasoning,
        kind=message.kind.value,
    )
