"""Requests as bytes.

The messages come last and each is encoded by its own values and those before it only, so the bytes of a request, without the closing
brackets, are a prefix of the next request with the same system prompt, tools and route.
"""

import re
from collections import OrderedDict
from functools import lru_cache
from typing import Any, Final

import msgspec

from app.domain.messages import Content, Message, Role, ToolCall, ToolSpec, clean_json, clean_text
from app.domain.model import ModelRequest
from app.domain.tenants import Route

_CACHED_TOOLSETS: Final = 64

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_object_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_illegal_in_name: Final = re.compile(r"[^a-zA-Z0-9_-]")
_reasoning_models: Final = re.compile(r"(?:^|/)(?:o\d|gpt-[5-9])")
"""OpenAI's models that take ``max_completion_tokens`` and refuse ``max_tokens``."""
_tools_cache: OrderedDict[int, tuple[tuple[ToolSpec, ...], bytes]] = OrderedDict()
"""Encoded tools by the identity of their tuple, which the entry keeps alive so that the identity stays its own."""


def encode_request(route: Route, request: ModelRequest) -> bytes:
    """Return the body of ``request`` for ``route``; equal values give equal bytes."""
    limit = b"max_completion_tokens" if _reasoning_models.search(route.model) else b"max_tokens"
    head = b'{"model":%b,"stream":true,"stream_options":{"include_usage":true},"%b":%d' % (_encode(route.model), limit, route.output_tokens)
    tools = b',"tools":%b' % _encode_tools(request.tools) if request.tools else b""
    messages: list[bytes] = []
    if request.system:
        messages.append(b'{"role":"system","content":%b}' % _encode_content(request.system))
    ids = _CallIds()
    messages.extend(_encode_message(message, ids) for message in request.messages)
    return b'%b%b,"messages":[%b]}' % (head, tools, b",".join(messages))


@lru_cache(maxsize=1024)
def legal_tool_name(name: str) -> str:
    """Return ``name`` as every provider accepts it: ``^[a-zA-Z0-9_-]{1,64}$``. Models invent names, and replaying those must not fail."""
    return _illegal_in_name.sub("_", name)[:64] or "unnamed"


class _CallIds:
    """Gives every call of a history a unique, non-empty id on the wire, and each result the id of its call.

    Some servers repeat ids in every reply (``call_0``). Ids depend only on the messages before, so prefixes stay stable.
    """

    __slots__ = ("_open", "_used")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._open: dict[str, list[str]] = {}

    def of_calls(self, calls: tuple[ToolCall, ...]) -> list[str]:
        self._open.clear()
        result = []
        for call in calls:
            wanted = clean_text(call.id) or "call"
            unique = wanted
            number = 2
            while unique in self._used:
                unique = f"{wanted}_{number}"
                number += 1
            self._used.add(unique)
            self._open.setdefault(call.id, []).append(unique)
            result.append(unique)
        return result

    def of_result(self, call_id: str) -> str:
        waiting = self._open.get(call_id)
        if not waiting:
            return clean_text(call_id)
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def _encode_tools(tools: tuple[ToolSpec, ...]) -> bytes:
    cached = _tools_cache.get(id(tools))
    if cached is not None:
        _tools_cache.move_to_end(id(tools))
        return cached[1]
    encoded = _encode_sorted([{"type": "function", "function": _function(tool)} for tool in tools])
    _tools_cache[id(tools)] = (tools, encoded)
    if len(_tools_cache) > _CACHED_TOOLSETS:
        _tools_cache.popitem(last=False)
    return encoded


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": legal_tool_name(tool.name),
        "description": clean_text(tool.description),
        "parameters": clean_json(tool.parameters),
    }


def _encode_message(message: Message, ids: _CallIds) -> bytes:
    match message.role:
        case Role.USER:
            return b'{"role":"user","content":%b}' % _encode_content(message.content)
        case Role.ASSISTANT:
            return _encode_assistant(message, ids)
        case Role.TOOL:
            call_id = _encode(ids.of_result(message.tool_call_id or ""))
            return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (call_id, _encode_content(message.content))


def _encode_assistant(message: Message, ids: _CallIds) -> bytes:
    content = message.content
    if not message.tool_calls:
        return b'{"role":"assistant","content":%b}' % _encode_content(content)
    blank = not content or (isinstance(content, str) and not content.strip())
    encoded = b"null" if blank else _encode_content(content)
    calls = [_encode_call(call, call_id) for call, call_id in zip(message.tool_calls, ids.of_calls(message.tool_calls), strict=True)]
    return b'{"role":"assistant","content":%b,"tool_calls":[%b]}' % (encoded, b",".join(calls))


def _encode_call(call: ToolCall, call_id: str) -> bytes:
    name = _encode(legal_tool_name(call.name))
    arguments = _encode_content(call.arguments if _is_object(call.arguments) else "{}")
    return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (_encode(call_id), name, arguments)


def _is_object(text: str) -> bool:
    try:
        _object_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return False
    return True


def _encode_content(content: Content) -> bytes:
    if isinstance(content, str):
        return _encode(clean_text(content))
    try:
        return _encode(content)
    except UnicodeError:
        return _encode(clean_json(content))
