"""A request that was refused for its form, made acceptable. Pure."""

import enum
import unicodedata
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from app.domain.messages import Message, ToolCall, ToolSpec, clean_text
from app.domain.model import ModelRequest


class Amendment(enum.StrEnum):
    """What is changed. The stored history stays as it is."""

    WITHOUT_REPLAY = "without_replay"
    """Signed thinking and encrypted reasoning are left out, and not asked for."""
    PLAIN_TEXT = "plain_text"
    """Surrogates, noncharacters, private and unassigned code points and controls become U+FFFD."""
    ASCII = "ascii"
    """Whatever is not ASCII becomes ``?``."""


_ALLOWED_CONTROLS = frozenset("\t\n\r")
_DOUBTFUL = frozenset({"Cc", "Cn", "Co", "Cs"})


def amend(request: ModelRequest, amendment: Amendment) -> ModelRequest:
    """The request with ``amendment`` applied."""
    match amendment:
        case Amendment.WITHOUT_REPLAY:
            messages = tuple(msgspec.structs.replace(message, replay=None) for message in request.messages)
            return msgspec.structs.replace(request, messages=messages, replays=False)
        case Amendment.PLAIN_TEXT:
            return _with_text(request, _plain)
        case Amendment.ASCII:
            return _with_text(request, _ascii)
        case _:
            assert_never(amendment)


def _with_text(request: ModelRequest, change: Callable[[str], str]) -> ModelRequest:
    return msgspec.structs.replace(
        request,
        system=change(request.system),
        messages=tuple(_message(message, change) for message in request.messages),
        tools=tuple(_tool(tool, change) for tool in request.tools),
    )


def _message(message: Message, change: Callable[[str], str]) -> Message:
    calls = tuple(ToolCall(call.id, change(call.name), _deep_json(call.arguments, change)) for call in message.tool_calls)
    return msgspec.structs.replace(message, content=_deep(message.content, change), tool_calls=calls)


def _tool(tool: ToolSpec, change: Callable[[str], str]) -> ToolSpec:
    return msgspec.structs.replace(tool, description=change(tool.description), parameters=_deep(tool.parameters, change))


def _deep_json(text: str, change: Callable[[str], str]) -> str:
    """JSON text changed inside its strings, where escapes may stand for what the text itself does not show."""
    try:
        value = msgspec.json.decode(clean_text(text))
    except msgspec.MsgspecError:
        return change(text)
    return msgspec.json.encode(_deep(value, change)).decode()


def _deep(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {change(key): _deep(item, change) for key, item in value.items()}
        case list():
            return [_deep(item, change) for item in value]
        case _:
            return value


def _plain(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if character not in _ALLOWED_CONTROLS and unicodedata.category(character) in _DOUBTFUL else character for character in text
    )


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode("ascii")
