"""Requests as bytes.

The messages come last and each is encoded by its own values and those before it only, so the bytes of a request, without the closing
brackets, are a prefix of the next request with the same system prompt, tools, options and route.
"""

import re
from typing import Any, Final

from app.domain.messages import CALLERS, Message, Role, ToolCall, ToolSpec, clean_json, clean_text
from app.domain.model import NO_OPTIONS, ModelOptions, ModelRequest
from app.domain.tenants import Route
from app.providers.wire import CallIds, ToolsetEncoder, encode_content, encode_json, is_object, legal_tool_name

_recalling_models: Final = re.compile(r"deepseek|kimi|moonshot|glm-|mimo", re.IGNORECASE)
"""Models that want their reasoning back with their calls, and mostly refuse a history without; others refuse a history with it."""
_reasoning_models: Final = re.compile(r"(?:^|/)(?:o\d|gpt-[5-9])")
"""OpenAI's models that take ``max_completion_tokens`` and refuse ``max_tokens``."""


def encode_request(route: Route, request: ModelRequest) -> bytes:
    """Return the body of ``request`` for ``route``; equal values give equal bytes."""
    options = request.options
    name = b"max_completion_tokens" if _reasoning_models.search(route.model) else b"max_tokens"
    limit = route.output_limit(options)
    head = b'{"model":%b,"stream":true,"stream_options":{"include_usage":true},"%b":%d' % (encode_json(route.model), name, limit)
    asked = b"" if options is NO_OPTIONS else _encode_options(options, offers_tools=bool(request.tools))
    tools = b',"tools":%b' % _tools.encode(request.tools) if request.tools else b""
    messages: list[bytes] = []
    if system := request.whole_system:
        messages.append(b'{"role":"system","content":%b}' % encode_content(system))
    ids = CallIds()
    recalls = _Recalls(route)
    messages.extend(_encode_message(message, ids, recalls) for message in request.messages)
    return b'%b%b%b,"messages":[%b]}' % (head, asked, tools, b",".join(messages))


def _encode_options(options: ModelOptions, *, offers_tools: bool) -> bytes:
    """The members for what is asked. What is about tools is left out without any: servers refuse it then."""
    members: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop": list(options.stop) or None,
        "tool_choice": _tool_choice(options.tool_choice) if offers_tools else None,
        "parallel_tool_calls": options.parallel_tool_calls if offers_tools else None,
        "response_format": options.response_format,
        "reasoning_effort": options.reasoning_effort,
    }
    asked = {name: value for name, value in members.items() if value is not None}
    return b"," + encode_json(clean_json(asked))[1:-1] if asked else b""


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or not choice.startswith("tool:"):
        return choice
    return {"type": "function", "function": {"name": legal_tool_name(choice.removeprefix("tool:"))}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": legal_tool_name(tool.name),
        "description": clean_text(tool.description),
        "parameters": clean_json(tool.parameters),
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


_tools: Final = ToolsetEncoder(_tool)


class _Recalls:
    """What of replies is sent back to a route: only what came from there, or what the caller itself sends."""

    __slots__ = ("_origins", "_plain")

    def __init__(self, route: Route) -> None:
        self._origins = (route.origin, CALLERS)
        self._plain = _recalling_models.search(f"{route.provider.base_url} {route.model}") is not None

    def encode(self, message: Message) -> bytes:
        """The members of a message for it, each behind a comma."""
        replay = message.replay
        if replay is None or replay.origin not in self._origins:
            return b""
        members = {name: value for item in replay.items for name, value in item.items() if self._plain or name != "reasoning_content"}
        return b"," + encode_json(members)[1:-1] if members else b""


def _encode_message(message: Message, ids: CallIds, recalls: _Recalls) -> bytes:
    match message.role:
        case Role.USER:
            return b'{"role":"user","content":%b}' % encode_content(message.content)
        case Role.ASSISTANT:
            return _encode_assistant(message, ids, recalls)
        case Role.TOOL:
            call_id = encode_json(ids.of_result(message.tool_call_id or ""))
            return b'{"role":"tool","tool_call_id":%b,"content":%b}' % (call_id, encode_content(message.content))


def _encode_assistant(message: Message, ids: CallIds, recalls: _Recalls) -> bytes:
    content = message.content
    recalled = recalls.encode(message)
    if not message.tool_calls:
        return b'{"role":"assistant","content":%b%b}' % (encode_content(content), recalled)
    blank = not content or (isinstance(content, str) and not content.strip())
    encoded = b"null" if blank else encode_content(content)
    calls = [_encode_call(call, call_id) for call, call_id in zip(message.tool_calls, ids.of_calls(message.tool_calls), strict=True)]
    return b'{"role":"assistant","content":%b%b,"tool_calls":[%b]}' % (encoded, recalled, b",".join(calls))


def _encode_call(call: ToolCall, call_id: str) -> bytes:
    name = encode_json(legal_tool_name(call.name))
    arguments = encode_content(call.arguments if is_object(call.arguments) else "{}")
    return b'{"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (encode_json(call_id), name, arguments)
