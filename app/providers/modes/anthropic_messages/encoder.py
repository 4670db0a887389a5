"""Requests as bytes.

A body's last member is ``messages``. What a message of the conversation adds depends on itself and on those before it, and is only ever
appended: to the last message on the wire when the role is the same, else as another one. So the bytes of a request, without its closing
brackets and cache markers, are a prefix of the next request with the same system prompt, tools, options and route.

The history is valid already (see ``context/history.py``): results stand right behind their calls, in their order.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from app.domain.capabilities import schema_of, takes_effort
from app.domain.messages import Content, Message, Role, ToolCall, ToolSpec, clean_json, clean_text
from app.domain.model import NO_OPTIONS, ModelOptions, ModelRequest
from app.domain.tenants import Route
from app.providers.modes.anthropic_messages.blocks import content_blocks, text_block
from app.providers.tool_calls import read_arguments
from app.providers.wire import CallIds, ToolsetEncoder, encode_content, encode_json, is_object, legal_tool_name

MARKED_MESSAGES: Final = 3
"""How many messages at the end carry a cache marker, so that a request finds what the one before it wrote. The API allows 4 in all."""

_MARKER: Final = b',"cache_control":{"type":"ephemeral"}}'
_BEGINNING: Final = text_block("[The conversation begins here.]")
"""Stands before an assistant's message that would be the first one: the API wants a user's."""
_EMPTY: Final = text_block("[empty message]")
_GONE: Final = "Not available any more."
_NO_CALLS: Final = b',"tool_choice":{"type":"none"}'
_NO_DETAILS: Final = b'"No details were given."'
"""Of a failed call: the API refuses an error without content."""
_USER: Final = b"user"
_ASSISTANT: Final = b"assistant"
_MAX_TEMPERATURE: Final = 1.0
_TOOL_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
_models_without_xhigh: Final = re.compile(r"claude-(?:opus-4[-.][56]|sonnet-4[-.]6)\b")
_models_without_max: Final = re.compile(r"claude-opus-4[-.]5\b")
_illegal_in_id: Final = re.compile(r"[^a-zA-Z0-9_-]")


def encode_request(route: Route, request: ModelRequest) -> bytes:
    """Return the body of ``request`` for ``route``; equal values give equal bytes."""
    options = request.options
    limit = route.output_limit(options)
    tools = _tools.encode(request.tools) if request.tools else _encode_past_tools(request.messages)
    asked = b"" if options is NO_OPTIONS else _encode_options(options, route.model, offers_tools=bool(request.tools))
    if tools and not request.tools:
        asked += _NO_CALLS
    conversation = _Conversation(route.origin)
    for message in request.messages:
        conversation.add(message)
    return b'{"model":%b,"max_tokens":%d,"stream":true%b%b,"messages":[%b]}' % (
        encode_json(route.model),
        limit,
        asked,
        _encode_static(request, tools),
        b",".join(conversation.encode(MARKED_MESSAGES - bool(request.summary))),
    )


def _encode_past_tools(messages: Sequence[Message]) -> bytes:
    """Stand-ins for the tools that were called, where none is offered any more: the API refuses calls in a history without tools."""
    names = sorted({legal_tool_name(call.name) for message in messages for call in message.tool_calls})
    return encode_json([_tool(ToolSpec(name=name, description=_GONE, parameters={})) for name in names]) if names else b""


def _encode_static(request: ModelRequest, tools: bytes) -> bytes:
    """Tools, system prompt and summary, with a cache marker behind the prompt and one behind the summary, which changes more often."""
    blocks = [_marked(text_block(text)) for text in (request.system, request.summary) if text.strip()]
    if blocks:
        system = b',"system":[%b]' % b",".join(blocks)
        return b',"tools":%b%b' % (tools, system) if tools else system
    return b',"tools":%b]' % _marked(tools[:-1]) if tools else b""


def _marked(block: bytes) -> bytes:
    """An encoded object, or a list that ends in one, with a cache marker as the object's last member."""
    return block[:-1] + _MARKER


def _encode_options(options: ModelOptions, model: str, *, offers_tools: bool) -> bytes:
    """The members for what is asked.

    The scale of temperature ends at 1 here. Newer models refuse ``top_p`` beside it, so temperature goes first.
    """
    members: dict[str, Any] = {
        "temperature": None if options.temperature is None else min(options.temperature, _MAX_TEMPERATURE),
        "top_p": options.top_p if options.temperature is None else None,
        "stop_sequences": [stop for stop in options.stop if stop.strip()] or None,
        "tool_choice": _tool_choice(options) if offers_tools else None,
        "output_config": _output_config(options, model),
    }
    asked = {name: value for name, value in members.items() if value is not None}
    return b"," + encode_json(clean_json(asked))[1:-1] if asked else b""


def _tool_choice(options: ModelOptions) -> dict[str, Any] | None:
    wanted = options.tool_choice or ""
    choice: dict[str, Any] | None = None
    if wanted.startswith("tool:"):
        choice = {"type": "tool", "name": legal_tool_name(wanted.removeprefix("tool:"))}
    elif wanted in _TOOL_CHOICES:
        choice = {"type": _TOOL_CHOICES[wanted]}
    if options.parallel_tool_calls is False and wanted != "none":
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return choice


def _output_config(options: ModelOptions, model: str) -> dict[str, Any] | None:
    schema = None if options.response_format is None else schema_of(options.response_format)
    config: dict[str, Any] = {} if schema is None else {"format": {"type": "json_schema", "schema": schema}}
    if options.reasoning_effort is not None and takes_effort(model):
        config["effort"] = _effort(options.reasoning_effort, model)
    return config or None


def _effort(asked: str, model: str) -> str:
    """The nearest effort that the model knows."""
    if asked in ("none", "minimal"):
        return "low"
    if (asked == "xhigh" and _models_without_xhigh.search(model)) or (asked == "max" and _models_without_max.search(model)):
        return "high"
    return asked


def _tool(tool: ToolSpec) -> dict[str, Any]:
    """The API wants a schema that says that it is one of an object."""
    return {
        "name": legal_tool_name(tool.name),
        "description": clean_text(tool.description),
        "input_schema": {"type": "object", **clean_json(tool.parameters)},
        **({"strict": True} if tool.strict else {}),
    }


_tools: Final = ToolsetEncoder(_tool)


def _legal_id(call_id: str) -> str:
    return _illegal_in_id.sub("_", call_id)


class _Conversation:
    """Messages as they are on the wire: user and assistant in turn, each a list of encoded blocks."""

    __slots__ = ("_ids", "_messages", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._ids = CallIds(_legal_id)
        self._messages: list[tuple[bytes, list[bytes]]] = []

    def add(self, message: Message) -> None:
        match message.role:
            case Role.USER:
                blocks = content_blocks(message.content)
                self._append(_USER, blocks if blocks or self._speaks(_USER) else [_EMPTY])
            case Role.ASSISTANT:
                self._append(_ASSISTANT, self._assistant_blocks(message))
            case Role.TOOL:
                self._append(_USER, [_result_block(message, self._ids.of_result(message.tool_call_id or ""))])

    def encode(self, markers: int) -> list[bytes]:
        """The messages, with cache markers on the last blocks of the last ``markers`` ones."""
        first_marked = len(self._messages) - markers
        return [_encode_message(role, blocks, marked=place >= first_marked) for place, (role, blocks) in enumerate(self._messages)]

    def _speaks(self, role: bytes) -> bool:
        return bool(self._messages) and self._messages[-1][0] == role

    def _append(self, role: bytes, blocks: list[bytes]) -> None:
        if not blocks:
            return
        if self._speaks(role):
            self._messages[-1][1].extend(blocks)
            return
        if role == _ASSISTANT and not self._messages:
            self._messages.append((_USER, [_BEGINNING]))
        self._messages.append((role, blocks))

    def _assistant_blocks(self, message: Message) -> list[bytes]:
        """Text loses its trailing blanks, which the API refuses at the end of a conversation. Thinking alone is no message."""
        text = _text_of(message.content).rstrip()
        blocks = [text_block(text)] if text else []
        calls = message.tool_calls
        blocks += [_call_block(call, call_id) for call, call_id in zip(calls, self._ids.of_calls(calls), strict=True)]
        replay = message.replay
        if not blocks or replay is None or replay.origin != self._origin:
            return blocks
        return [encode_json(item) for item in replay.items] + blocks


def _encode_message(role: bytes, blocks: Sequence[bytes], *, marked: bool) -> bytes:
    content = b",".join(blocks)
    return b'{"role":"%b","content":[%b]}' % (role, _marked(content) if marked else content)


def _text_of(content: Content) -> str:
    """An assistant's text; its messages have no other parts here."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if part.get("type") == "text")


def _call_block(call: ToolCall, call_id: str) -> bytes:
    name = encode_json(legal_tool_name(call.name))
    return b'{"type":"tool_use","id":%b,"name":%b,"input":%b}' % (encode_json(call_id), name, _encode_input(call.arguments))


def _encode_input(arguments: str) -> bytes:
    """Arguments are JSON text already; what a strict parser might refuse in them is written anew."""
    if "\\u" not in arguments and is_object(arguments):
        return arguments.encode()
    return read_arguments(arguments)[0].encode()


def _result_block(message: Message, call_id: str) -> bytes:
    content = message.content
    if isinstance(content, str):
        encoded = encode_content(content) if content.strip() else b""
    else:
        blocks = content_blocks(content)
        encoded = b"[%b]" % b",".join(blocks) if blocks else b""
    if not encoded and message.is_error:
        encoded = _NO_DETAILS
    result = b'{"type":"tool_result","tool_use_id":%b' % encode_json(call_id)
    if encoded:
        result += b',"content":%b' % encoded
    return result + (b',"is_error":true}' if message.is_error else b"}")
