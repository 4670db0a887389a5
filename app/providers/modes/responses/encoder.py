"""Requests as bytes.

The input comes last and each of its items is encoded by its own values and those before it only, so the bytes of a request, without the
closing brackets, are a prefix of the next request with the same system prompt, tools, options and route.
"""

import hashlib
import re
from typing import Any, Final, assert_never

from app.domain.messages import Content, ContentPart, Message, Role, ToolCall, ToolSpec, clean_json, clean_text
from app.domain.model import NO_OPTIONS, ModelOptions, ModelRequest
from app.domain.tenants import Route
from app.providers.wire import CallIds, ToolsetEncoder, encode_content, encode_json, is_object, legal_tool_name

_MAX_ID: Final = 64
"""Longest ``call_id`` that OpenAI takes."""
_ROOM_FOR_NUMBER: Final = 6
_DIGEST: Final = 16
_LEAST_OUTPUT: Final = 16
"""Tokens: a lower limit is refused, so that callers who ask for a word or two get a few words more."""
_thoughtless_models: Final = re.compile(r"(?:^|[/:])(?:gpt-[34]|chatgpt-|gpt-\d[\d.]*-chat)")
"""OpenAI's models without reasoning, which refuse to be asked for it; fine-tuned ones (``ft:gpt-…``) too."""


def encode_request(route: Route, request: ModelRequest) -> bytes:
    """Return the body of ``request`` for ``route``; equal values give equal bytes."""
    options = request.options
    head = b'{"model":%b,"stream":true,"store":false,"max_output_tokens":%d' % (
        encode_json(route.model),
        max(route.output_limit(options), _LEAST_OUTPUT),
    )
    thoughtless = not request.replays or _thoughtless_models.search(route.model)
    include = b"" if thoughtless else b',"include":["reasoning.encrypted_content"]'
    asked = b"" if options is NO_OPTIONS else _encode_options(options, offers_tools=bool(request.tools))
    instructions = request.whole_system
    system = b',"instructions":%b' % encode_content(instructions) if instructions else b""
    tools = b',"tools":%b' % _tools.encode(request.tools) if request.tools else b""
    ids = CallIds(_legal_id)
    origin = route.origin
    items: list[bytes] = []
    for message in request.messages:
        items.extend(_encode_message(message, ids, origin))
    return b'%b%b%b%b%b,"input":[%b]}' % (head, include, asked, system, tools, b",".join(items))


def _legal_id(call_id: str) -> str:
    """A call's id of a length that is taken, with room for a number."""
    call_id = clean_text(call_id)
    if len(call_id) <= _MAX_ID - _ROOM_FOR_NUMBER:
        return call_id
    digest = hashlib.sha256(call_id.encode()).hexdigest()[:_DIGEST]
    return f"{call_id[: _MAX_ID - _ROOM_FOR_NUMBER - _DIGEST - 1]}_{digest}"


def _encode_options(options: ModelOptions, *, offers_tools: bool) -> bytes:
    """The members for what is asked; the protocol has no word for ``stop``. What is about tools is left out without any."""
    form = options.response_format
    members: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "tool_choice": _tool_choice(options.tool_choice) if offers_tools else None,
        "parallel_tool_calls": options.parallel_tool_calls if offers_tools else None,
        "text": None if form is None else {"format": _text_format(form)},
        "reasoning": None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
    }
    asked = {name: value for name, value in members.items() if value is not None}
    return b"," + encode_json(clean_json(asked))[1:-1] if asked else b""


def _tool_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or not choice.startswith("tool:"):
        return choice
    return {"type": "function", "name": legal_tool_name(choice.removeprefix("tool:"))}


def _text_format(form: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's ``response_format``, whose schema lies one level deeper in Chat Completions."""
    schema = form.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else form


def _tool(tool: ToolSpec) -> dict[str, Any]:
    """A function; without the word it would be strict, which a schema that is not made for it would not pass."""
    return {
        "type": "function",
        "name": legal_tool_name(tool.name),
        "description": clean_text(tool.description),
        "parameters": clean_json(tool.parameters),
        "strict": tool.strict,
    }


_tools: Final = ToolsetEncoder(_tool)


def _encode_message(message: Message, ids: CallIds, origin: str) -> list[bytes]:
    match message.role:
        case Role.USER:
            parts = encode_content(_input_parts(message.content))
            return [b'{"type":"message","role":"user","content":%b}' % parts]
        case Role.ASSISTANT:
            return _encode_assistant(message, ids, origin)
        case Role.TOOL:
            call_id = encode_json(ids.of_result(message.tool_call_id or ""))
            content = message.content
            output = encode_content(content if isinstance(content, str) else _input_parts(content))
            return [b'{"type":"function_call_output","call_id":%b,"output":%b}' % (call_id, output)]
        case _:
            assert_never(message.role)


def _encode_assistant(message: Message, ids: CallIds, origin: str) -> list[bytes]:
    """The items of a reply. One that says nothing has none: reasoning is refused where nothing follows it."""
    items: list[bytes] = []
    parts = _output_parts(message.content)
    if parts:
        items.append(b'{"type":"message","role":"assistant","content":%b}' % encode_content(parts))
    items += [_encode_call(call, call_id) for call, call_id in zip(message.tool_calls, ids.of_calls(message.tool_calls), strict=True)]
    replay = message.replay
    if not items or replay is None or replay.origin != origin:
        return items
    return [encode_content([item])[1:-1] for item in replay.items] + items


def _encode_call(call: ToolCall, call_id: str) -> bytes:
    name = encode_json(legal_tool_name(call.name))
    arguments = encode_content(call.arguments if is_object(call.arguments) else "{}")
    return b'{"type":"function_call","call_id":%b,"name":%b,"arguments":%b}' % (encode_json(call_id), name, arguments)


def _output_parts(content: Content) -> list[ContentPart]:
    """What an assistant has said; blank text is left out."""
    if isinstance(content, str):
        return [{"type": "output_text", "text": content}] if content.strip() else []
    parts: list[ContentPart] = []
    for part in content:
        match part:
            case {"type": "text" | "output_text", "text": str(text)} if text.strip():
                parts.append({"type": "output_text", "text": text})
            case {"type": "refusal", "refusal": str(refusal)}:
                parts.append({"type": "refusal", "refusal": refusal})
            case _:
                pass
    return parts


def _input_parts(content: Content) -> list[ContentPart]:
    return [{"type": "input_text", "text": clean_text(content)}] if isinstance(content, str) else [_input_part(part) for part in content]


def _input_part(part: ContentPart) -> ContentPart:
    """One of Chat Completions' parts in this protocol's form; what has the same form in both, or is unknown, stays as it is."""
    match part:
        case {"type": "text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": url} as image}:
            return {"type": "input_image", "image_url": url, "detail": image.get("detail", "auto")}
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            return part
