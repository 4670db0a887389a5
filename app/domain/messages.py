"""The one message format that history, tools and all API modes share.

Roles are ``user``, ``assistant`` and ``tool``; the system prompt is kept apart (it belongs to the session). The stored form is the
JSON of :class:`Message`, kept as bytes, so that what was written comes back byte for byte.
"""

import enum
import json
from typing import Any, TypeAlias

import msgspec

from app.domain.ids import MessageId, SessionId, TurnId

ContentPart: TypeAlias = dict[str, Any]
"""One OpenAI content part, for example ``{"type": "text", "text": "…"}`` or ``{"type": "image_url", …}``."""
Content: TypeAlias = str | list[ContentPart]


class Role(enum.StrEnum):
    """Who speaks in a message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class MessageKind(enum.StrEnum):
    """Why a message exists."""

    SAID = "said"
    """By the user, the model or a tool; part of the transcript."""
    NOTE = "note"
    """By the gateway, to keep the history valid (for example after an interrupt); shown to the model, not in the transcript."""


class ToolCall(msgspec.Struct, frozen=True):
    """A model's request to run a tool. ``arguments`` is the JSON text, always a valid JSON object once stored."""

    id: str
    name: str
    arguments: str


CALLERS = "caller"
"""The origin of reasoning in a caller's own history: it knows whom it is for."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a reply that its provider wants back unchanged: signed thinking blocks, encrypted reasoning items, members of a message.

    ``origin`` is :attr:`app.domain.tenants.Route.origin` of the route that gave them; they mean nothing to any other. What a caller brings
    along in a history of its own has :data:`CALLERS`. ``items`` are JSON objects as the provider wrote them, in order.
    """

    origin: str
    items: tuple[dict[str, Any], ...]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One entry of a conversation."""

    role: Role
    content: Content = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On role ``tool``: the call that this answers."""
    tool_name: str | None = None
    is_error: bool = False
    """On role ``tool``: the call failed; ``content`` says how."""
    reasoning: str | None = None
    replay: Replay | None = None
    """On role ``assistant``: sent back to where it came from."""
    kind: MessageKind = MessageKind.SAID


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its place in a session, or in a stateless call. ``seq`` rises by position; gaps are possible."""

    id: MessageId
    session_id: SessionId | None
    seq: int
    turn_id: TurnId | None
    message: Message
    archived: bool
    created_at_ms: int


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model is told of a tool. ``parameters`` is a JSON schema of type object.

    ``strict``: the provider is to see that arguments keep to the schema, and refuses schemas for which it cannot.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Return the stored form of ``message``."""
    return _encoder.encode(message)


def decode_message(body: bytes) -> Message:
    """Read the stored form. Raises ``msgspec.DecodeError`` for bytes that are not one."""
    return _decoder.decode(body)


def clean_text(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD: Postgres refuses the first, UTF-8 the second. The one place that does."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # Python keeps the halves of an escaped pair ("\ud83e" "\udd80") apart until they pass through UTF-16.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any) -> Any:
    """Clean every string in a JSON-like value and turn NaN and infinities, which JSON lacks, into ``None``."""
    match value:
        case str():
            return clean_text(value)
        case float():
            return value if value - value == 0.0 else None
        case dict():
            return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item) for item in value]
        case _:
            return value


def canonical_json(value: Any) -> str:
    """Compact JSON with sorted keys: the same value always gives the same bytes."""
    return json.dumps(clean_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_text(content: Content) -> str:
    """The text of a content value; other parts are left out."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
