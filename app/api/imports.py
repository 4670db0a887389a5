"""Imported histories: OpenAI's chat format to messages of ours, checked to the last field.

Unknown keys of a message are left out: histories come from many programs. What a message needs must be there and of its type.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.domain.errors import InvalidRequestError
from app.domain.messages import (
    CALLERS,
    Content,
    ContentPart,
    Message,
    Replay,
    Role,
    ToolCall,
    canonical_json,
    clean_json,
    clean_text,
    content_text,
)

_SYSTEM_ROLES = ("system", "developer")
_PART_TYPES = frozenset({"text", "image_url", "input_audio", "file"})
_TEXT_TYPES = ("text", "refusal")
_MAX_ID = 256
_MAX_DEPTH = 64


class ImportedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A history as read; not repaired yet. ``system_prompt`` is ``None`` when it had no system message."""

    system_prompt: str | None
    messages: tuple[Message, ...]


def read_history(items: Sequence[Mapping[str, Any]], *, lenient: bool = False) -> ImportedHistory:
    """Read a history in OpenAI's chat format. Raises InvalidRequestError with the place of what is wrong.

    ``lenient``, for clients of OpenAI's own API: system messages may stand anywhere (they all go into the system prompt), and assistant
    messages that say nothing are left out.
    """
    system: list[str] = []
    messages: list[Message] = []
    for index, item in enumerate(items):
        place = f"/messages/{index}"
        _check_depth(item, place)
        role = item.get("role")
        if role in _SYSTEM_ROLES:
            if messages and not lenient:
                raise InvalidRequestError("A system message may stand only at the beginning.", pointer=f"{place}/role")
            system.append(_plain_text(item, place))
        elif not (lenient and role == "assistant" and _says_nothing(item)):
            messages.append(_message(role, item, place))
    return ImportedHistory(system_prompt="\n\n".join(system) if system else None, messages=tuple(messages))


def _says_nothing(item: Mapping[str, Any]) -> bool:
    content = item.get("content")
    return not item.get("tool_calls") and (content is None or content == [] or (isinstance(content, str) and not content.strip()))


def _message(role: object, item: Mapping[str, Any], place: str) -> Message:
    match role:
        case "user":
            return Message(role=Role.USER, content=_user_content(item, place))
        case "assistant":
            return _assistant(item, place)
        case "tool":
            name = _optional_text(item, "name", place)
            return Message(
                role=Role.TOOL,
                content=_plain_text(item, place),
                tool_call_id=_required_id(item, "tool_call_id", place),
                tool_name=name,
                is_error=item.get("is_error") is True,
            )
        case _:
            raise InvalidRequestError("Must be one of system, developer, user, assistant and tool.", pointer=f"{place}/role")


def _user_content(item: Mapping[str, Any], place: str) -> Content:
    content = item.get("content")
    if isinstance(content, str):
        if not content.strip():
            raise InvalidRequestError("Must not be empty.", pointer=f"{place}/content")
        return clean_text(content)
    parts = _parts(content, place)
    for index, part in enumerate(parts):
        if part["type"] not in _PART_TYPES:
            names = ", ".join(sorted(_PART_TYPES))
            raise InvalidRequestError(f"Must be one of {names}.", pointer=f"{place}/content/{index}/type")
        value = part.get(part["type"])
        if not isinstance(value, str if part["type"] == "text" else dict):
            raise InvalidRequestError("The part lacks the value that its type names.", pointer=f"{place}/content/{index}")
        if part["type"] == "image_url":
            _check_image(value, f"{place}/content/{index}/image_url")
    return parts


def _check_image(image: Any, place: str) -> None:
    """An image is named by an address, or stands in one. What is in it is the provider's to judge."""
    url = image.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://", "data:image/")):
        raise InvalidRequestError("Must be an http, https or data:image address.", pointer=f"{place}/url")


def _assistant(item: Mapping[str, Any], place: str) -> Message:
    calls = _tool_calls(item.get("tool_calls"), f"{place}/tool_calls")
    text = "" if item.get("content") is None else _plain_text(item, place)
    if not calls and not text.strip():
        raise InvalidRequestError("An assistant message needs content or tool calls.", pointer=place)
    reasoning = _optional_text(item, "reasoning", place) or _optional_text(item, "reasoning_content", place)
    replay = Replay(origin=CALLERS, items=({"reasoning_content": reasoning},)) if calls and reasoning else None
    return Message(role=Role.ASSISTANT, content=text, tool_calls=calls, reasoning=reasoning, replay=replay)


def _plain_text(item: Mapping[str, Any], place: str) -> str:
    """Content that can only be text: a string, or parts of text that are joined."""
    content = item.get("content")
    if isinstance(content, str):
        return clean_text(content)
    texts: list[ContentPart] = []
    for index, part in enumerate(_parts(content, place)):
        kind = part["type"]
        text = part.get(kind)
        if kind not in _TEXT_TYPES or not isinstance(text, str):
            raise InvalidRequestError("Only text can stand here.", pointer=f"{place}/content/{index}")
        texts.append({"type": "text", "text": text})
    return content_text(texts)


def _parts(content: object, place: str) -> list[ContentPart]:
    if not isinstance(content, list) or not content:
        raise InvalidRequestError("Must be a string or a list of content parts.", pointer=f"{place}/content")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequestError("Must be an object with a type.", pointer=f"{place}/content/{index}")
    cleaned: list[ContentPart] = clean_json(content)
    return cleaned


def _tool_calls(value: object, place: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequestError("Must be a list of tool calls.", pointer=place)
    return tuple(_tool_call(call, f"{place}/{index}") for index, call in enumerate(value))


def _tool_call(call: object, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequestError('Must be an object with "id" and "function".', pointer=place)
    return ToolCall(
        id=_required_id(call, "id", place),
        name=_required_id(function, "name", f"{place}/function"),
        arguments=_arguments(function.get("arguments"), f"{place}/function/arguments"),
    )


def _arguments(value: object, place: str) -> str:
    """The JSON text of a call's arguments, kept as it is where it is clean; some programs write the object itself, or nothing."""
    text = value if isinstance(value, str) else ""
    if value is None or (isinstance(value, str) and not text.strip()):
        return "{}"
    try:
        parsed = json.loads(text) if text else value
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError("Must be the JSON text of an object.", pointer=place)
    _check_depth(parsed, place)
    return text if text and clean_json(parsed) == parsed and clean_text(text) == text else canonical_json(parsed)


def _required_id(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID:
        raise InvalidRequestError(f"Must be a string of 1 to {_MAX_ID} characters.", pointer=f"{place}/{key}")
    return clean_text(value)


def _optional_text(item: Mapping[str, Any], key: str, place: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError("Must be a string.", pointer=f"{place}/{key}")
    return clean_text(value) if value else None


def _check_depth(value: object, place: str) -> None:
    """Refuse what is nested so deeply that walking it could exhaust the stack."""
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        if not level:
            return
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
    if level:
        raise InvalidRequestError("Nested too deeply.", pointer=place)


def _children(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return []
