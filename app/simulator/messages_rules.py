"""Strict mode for Messages: what Anthropic's API refuses in a request. Pure functions.

Each rule is one that the API answers with status 400. `picky` adds rules that only some models and servers behind this protocol
have. The rules on single blocks are in `messages_block_rules`.
"""

from typing import Any

from app.simulator.messages_block_rules import block_problems, is_blank, is_legal_name
from app.simulator.signatures import is_thoughtful

MAX_CACHE_MARKERS = 4

_MEMBERS = frozenset(
    {
        "model", "max_tokens", "stream", "messages", "system", "tools", "tool_choice", "temperature", "top_p", "top_k",
        "stop_sequences", "metadata", "thinking", "output_config", "service_tier",
    }
)  # fmt: skip
_CHOICES = ("auto", "any", "tool", "none")
_THOUGHTS = ("thinking", "redacted_thinking")


def messages_problems(body: dict[str, Any], *, picky: bool) -> list[str]:
    """List every reason to refuse the request, in order; empty when there is none."""
    messages = body["messages"] if isinstance(body.get("messages"), list) else []
    model = body["model"] if isinstance(body.get("model"), str) else ""
    problems = _order_problems(messages)
    for index, message in enumerate(messages):
        problems.extend(_message_problems(f"messages.{index}", message, model))
    problems += _pairing_problems(messages)
    if picky:
        problems += _picky_problems(body, messages)
    return [*problems, *_system_problems(body.get("system")), *_tool_problems(body), *_option_problems(body), *_marker_problems(body)]


def blocks_of(message: object) -> list[dict[str, Any]]:
    """Return a message's blocks; a text is one block."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _of_type(message: object, kind: str) -> list[dict[str, Any]]:
    return [block for block in blocks_of(message) if block.get("type") == kind]


def _order_problems(messages: list[Any]) -> list[str]:
    if not messages:
        return ["messages: at least one message is required"]
    return [] if _role(messages[0]) == "user" else ["messages: first message must use the user role"]


def _message_problems(where: str, message: object, model: str) -> list[str]:
    if not isinstance(message, dict):
        return [f"{where}: is not an object"]
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        return [f"{where}: unexpected role {role!r}"]
    if isinstance(content, str):
        return [f"{where}: text content must be non-empty"] if is_blank(content) else []
    if not isinstance(content, list) or not content:
        return [f"{where}: content must be a text or a list of blocks that is not empty"]
    problems: list[str] = []
    for number, block in enumerate(content):
        problems.extend(block_problems(f"{where}.content.{number}", block, role=role, model=model))
    if role == "assistant" and blocks_of(message) and blocks_of(message)[-1].get("type") in _THOUGHTS:
        problems.append(f"{where}: the final block in an assistant message cannot be thinking")
    return problems


def _pairing_problems(messages: list[Any]) -> list[str]:
    """Check that every call is answered, once, at the beginning of the next message."""
    problems: list[str] = []
    used: set[Any] = set()
    for index, message in enumerate(messages):
        before = [block.get("id") for block in _of_type(messages[index - 1], "tool_use")] if index else []
        calls = [block.get("id") for block in _of_type(message, "tool_use")]
        following = _of_type(messages[index + 1], "tool_result") if index + 1 < len(messages) else []
        problems.extend(_result_problems(f"messages.{index}", blocks_of(message), before))
        unanswered = [call for call in calls if call not in [result.get("tool_use_id") for result in following]]
        if unanswered:
            problems.append(f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {unanswered}")
        for call in calls:
            if isinstance(call, str) and call in used:
                problems.append(f"messages.{index}: `tool_use` ids must be unique: {call!r}")
            used.add(str(call))
    return problems


def _result_problems(where: str, blocks: list[dict[str, Any]], calls: list[Any]) -> list[str]:
    problems: list[str] = []
    open_calls = list(calls)
    spoken = False
    for block in blocks:
        if block.get("type") != "tool_result":
            spoken = True
            continue
        call = block.get("tool_use_id")
        if call in open_calls:
            open_calls.remove(call)
        elif call in calls:
            problems.append(f"{where}: each tool_use must have a single result: {call!r}")
        else:
            problems.append(f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call!r}")
        if spoken:
            problems.append(f"{where}: tool_result blocks must come first")
    return problems


def _picky_problems(body: dict[str, Any], messages: list[Any]) -> list[str]:
    problems = [
        f"messages.{index}: roles must alternate: two {_role(message)} messages in a row"
        for index, message in enumerate(messages)
        if index and _role(messages[index - 1]) == _role(message)
    ]
    if messages and _role(messages[-1]) == "assistant":
        problems.append("messages: this model does not support assistant message prefill, the conversation must end with a user message")
        blocks = blocks_of(messages[-1])
        text = blocks[-1].get("text") if blocks else None
        if isinstance(text, str) and text != text.rstrip():
            problems.append("messages: final assistant content cannot end with trailing whitespace")
    if not body.get("tools") and any(_of_type(message, "tool_use") for message in messages):
        problems.append("messages: tool_use blocks need tools in the request")
    if body.get("temperature") is not None and body.get("top_p") is not None:
        problems.append("`temperature` and `top_p` cannot both be specified for this model")
    return problems + _thinking_problems(body, messages)


def _thinking_problems(body: dict[str, Any], messages: list[Any]) -> list[str]:
    """With thinking on, the calls that are being answered must come behind their thinking."""
    index = max((at for at, message in enumerate(messages) if _role(message) == "assistant"), default=-1)
    calls = _of_type(messages[index], "tool_use") if index >= 0 else []
    thinking = body.get("thinking")
    is_on = isinstance(thinking, dict) and thinking.get("type") != "disabled"
    if not calls or not (is_on or any(is_thoughtful(call.get("id")) for call in calls)):
        return []
    first = blocks_of(messages[index])[0].get("type")
    return (
        [] if first in _THOUGHTS else [f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`"]
    )


def _system_problems(system: object) -> list[str]:
    if system is None or (isinstance(system, str) and system):
        return []
    if not isinstance(system, list):
        return ["system: neither text nor a list of text blocks"]
    return [
        f"system.{number}: not a text block with non-whitespace text"
        for number, block in enumerate(system)
        if not isinstance(block, dict) or block.get("type") != "text" or is_blank(block.get("text"))
    ]


def _tool_problems(body: dict[str, Any]) -> list[str]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    problems = []
    if choice is not None:
        if not tools:
            problems.append("tool_choice: may only be specified while providing tools")
        if not isinstance(choice, dict) or choice.get("type") not in _CHOICES:
            problems.append("tool_choice: not of a known type")
    if tools is None:
        return problems
    if not isinstance(tools, list) or not tools:
        return [*problems, "tools: not a list with tools"]
    names = []
    for number, tool in enumerate(tools):
        name, schema = (tool.get("name"), tool.get("input_schema")) if isinstance(tool, dict) else (None, None)
        names.append(name)
        if not is_legal_name(name):
            problems.append(f"tools.{number}.name: illegal name {name!r}")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            problems.append(f"tools.{number}.input_schema: not a schema of type object")
    return problems + _name_order_problems([name for name in names if isinstance(name, str)])


def _name_order_problems(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        return ["tools: Tool names must be unique"]
    return ["tools: not sorted by name"] if names != sorted(names) else []


def _option_problems(body: dict[str, Any]) -> list[str]:
    problems = [f"{member}: Extra inputs are not permitted" for member in sorted(set(body) - _MEMBERS)]
    if not isinstance(body.get("model"), str) or not body["model"]:
        problems.append("model: Field required")
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        problems.append("max_tokens: Field required")
    temperature = body.get("temperature")
    if temperature is not None and not (isinstance(temperature, int | float) and 0 <= temperature <= 1):
        problems.append("temperature: range: 0..1")
    stops = body.get("stop_sequences") or []
    if not isinstance(stops, list) or any(is_blank(stop) for stop in stops):
        problems.append("stop_sequences: each stop sequence must contain non-whitespace")
    return problems


def _marker_problems(body: dict[str, Any]) -> list[str]:
    marked = [holder for holder in _holders(body) if holder.get("cache_control") is not None]
    problems = [f"cache_control: not allowed on a block of type {holder['type']}" for holder in marked if holder.get("type") in _THOUGHTS]
    if any(holder["cache_control"] not in ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}) for holder in marked):
        problems.append("cache_control: not of a known form")
    if len(marked) > MAX_CACHE_MARKERS:
        problems.append(f"A maximum of {MAX_CACHE_MARKERS} blocks with cache_control may be provided. Found {len(marked)}.")
    return problems


def _holders(body: dict[str, Any]) -> list[dict[str, Any]]:
    """List what can carry a cache marker."""
    lists = [body.get("tools"), body.get("system")]
    messages = body["messages"] if isinstance(body.get("messages"), list) else []
    holders = [item for items in lists if isinstance(items, list) for item in items if isinstance(item, dict)]
    return holders + [block for message in messages for block in blocks_of(message)]
