"""Strict mode for Responses: what real servers refuse in a stateless request. Pure functions.

Each rule is one that OpenAI's API, or servers compatible with it, answer with status 400 (404 for what is not stored).
`picky` adds rules that only some servers have.
"""

import json
import re
from typing import Any

from app.simulator.responses_events import is_sealed

NOT_OURS = "the encrypted content could not be verified"
"""In the problem of a reasoning item that this server did not give out for this model."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_ID = 64
_FEWEST_TOKENS = 16
_ROLES = frozenset({"user", "assistant", "system", "developer"})
_SAID = {"output_text": "text", "refusal": "refusal"}
_GIVEN = {"input_text": "text", "input_image": None, "input_file": None, "input_audio": None}
_ENCRYPTED = "reasoning.encrypted_content"
_KNOWN = frozenset(
    {
        "background",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    }
)
_STORED = ("previous_response_id", "conversation")


def responses_problems(body: dict[str, Any], *, picky: bool) -> list[str]:
    """List every reason to refuse the request, in order; empty when there is none."""
    given = body.get("input")
    items = given if isinstance(given, list) else []
    problems = [] if items or (isinstance(given, str) and given) else ["input: nothing is said"]
    model = body.get("model")
    for index, item in enumerate(items):
        problems.extend(_item_problems(f"input[{index}]", item, model if isinstance(model, str) else ""))
    problems += _pairing_problems(items) + _reasoning_order_problems(items)
    if picky:
        problems += _picky_problems(items, body)
    return [*problems, *_tool_problems(body), *_option_problems(body)]


def _item_problems(where: str, item: object, model: str) -> list[str]:
    if not isinstance(item, dict):
        return [f"{where}: is not an object"]
    problems: list[str]
    match _kind(item):
        case "message":
            problems = _message_problems(where, item)
        case "function_call":
            problems = _call_problems(where, item)
        case "function_call_output":
            problems = _output_problems(where, item)
        case "reasoning":
            problems = _reasoning_problems(where, item, model)
        case "item_reference":
            problems = [f"{where}: item {item.get('id')!r} not found: nothing is stored"]
        case _:
            problems = [f"{where}: unknown type {item.get('type')!r}"]
    return problems


def _message_problems(where: str, item: dict[str, Any]) -> list[str]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return [f"{where}: unknown role {role!r}"]
    return _content_problems(f"{where}.content", item.get("content"), _SAID if role == "assistant" else _GIVEN)


def _content_problems(where: str, content: object, forms: dict[str, Any]) -> list[str]:
    """Check a text or a list of parts; `forms` has the key of each part's text."""
    if isinstance(content, str):
        return []
    if not isinstance(content, list):
        return [f"{where}: is neither text nor a list of parts"]
    if not content:
        return [f"{where}: is an empty list"]
    return [f"{where}[{number}]: is no valid part" for number, part in enumerate(content) if not _is_part(part, forms)]


def _is_part(part: object, forms: dict[str, Any]) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str) or part["type"] not in forms:
        return False
    key = forms[part["type"]]
    return key is None or isinstance(part.get(key), str)


def _call_problems(where: str, item: dict[str, Any]) -> list[str]:
    problems = _id_problems(where, item)
    if not _is_name(item.get("name")):
        problems.append(f"{where}: has the illegal name {item.get('name')!r}")
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        problems.append(f"{where}: arguments is not a string")
    elif not _is_json_object(arguments):
        problems.append(f"{where}: arguments is not a JSON object: {arguments[:40]!r}")
    return problems


def _output_problems(where: str, item: dict[str, Any]) -> list[str]:
    return _id_problems(where, item) + _content_problems(f"{where}.output", item.get("output"), _GIVEN)


def _id_problems(where: str, item: dict[str, Any]) -> list[str]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        return [f"{where}: has no call_id"]
    return [f"{where}: call_id is longer than {_LONGEST_ID}"] if len(call_id) > _LONGEST_ID else []


def _reasoning_problems(where: str, item: dict[str, Any], model: str) -> list[str]:
    problems = [] if isinstance(item.get("summary"), list) else [f"{where}: summary is missing"]
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content:
        problems.append(f"{where}: reasoning without encrypted_content: nothing is stored")
    elif not is_sealed(model, content):
        problems.append(f"{where}: {NOT_OURS}")
    return problems


def _pairing_problems(items: list[Any]) -> list[str]:
    """Check that every call has one result behind it, and every result a call before it."""
    problems = []
    waiting: set[str] = set()
    known: set[str] = set()
    for index, item in enumerate(items):
        call_id = item.get("call_id") if isinstance(item, dict) else None
        if not isinstance(call_id, str) or not call_id:
            continue
        match _kind(item):
            case "function_call" if call_id in known:
                problems.append(f"input[{index}]: repeats the call_id {call_id!r}")
            case "function_call":
                known.add(call_id)
                waiting.add(call_id)
            case "function_call_output" if call_id in waiting:
                waiting.remove(call_id)
            case "function_call_output" if call_id in known:
                problems.append(f"input[{index}]: second output for call {call_id!r}")
            case "function_call_output":
                problems.append(f"input[{index}]: no tool call found for call_id {call_id!r}")
            case _:
                pass
    return problems + [f"input: no tool output found for function call {call_id!r}" for call_id in sorted(waiting)]


def _reasoning_order_problems(items: list[Any]) -> list[str]:
    """Check that something that was thought of follows each reasoning."""
    problems = []
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        following = items[index + 1] if index + 1 < len(items) else None
        if not (_kind(following) in {"reasoning", "function_call"} or _role(following) == "assistant"):
            problems.append(f"input[{index}]: reasoning without the item that has to follow it")
    return problems


def _picky_problems(items: list[Any], body: dict[str, Any]) -> list[str]:
    problems = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if isinstance(item, dict) and "id" in item:
            problems.append(f"{where}: item {item['id']!r} not found: nothing is stored")
        if _kind(item) == "message" and _is_blank(item.get("content")):
            problems.append(f"{where}: empty {_role(item)} message")
        if index and _role(item) in {"user", "assistant"} and _role(items[index - 1]) == _role(item):
            problems.append(f"{where}: two {_role(item)} messages in a row")
        if (
            index
            and _kind(items[index - 1]) == "function_call"
            and _kind(item) not in {"function_call", "function_call_output", "reasoning"}
        ):
            problems.append(f"{where}: comes before the output of the call before it")
    limit = body.get("max_output_tokens")
    if isinstance(limit, int) and limit < _FEWEST_TOKENS:
        problems.append(f"max_output_tokens: below the minimum of {_FEWEST_TOKENS}")
    return problems


def _tool_problems(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools", [])
    if not isinstance(tools, list):
        return ["tools: not a list"]
    problems = []
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            problems.append(f"tools[{number}]: not of type function")
            continue
        if not _is_name(tool.get("name")):
            problems.append(f"tools[{number}]: illegal name {tool.get('name')!r}")
        if not isinstance(tool.get("parameters"), dict | None):
            problems.append(f"tools[{number}]: parameters is not an object")
    names = [tool["name"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    if len(set(names)) != len(names):
        problems.append("tools: a name is defined twice")
    elif names != sorted(names):
        problems.append("tools: not sorted by name")
    return problems + _choice_problems(body.get("tool_choice"), names)


def _choice_problems(choice: object, names: list[str]) -> list[str]:
    if choice == "required" and not names:
        return ["tool_choice: 'required' needs tools"]
    if isinstance(choice, dict) and choice.get("name") not in names:
        return [f"tool_choice: {choice.get('name')!r} not found in tools"]
    return []


def _option_problems(body: dict[str, Any]) -> list[str]:
    problems = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        problems.append("model: missing")
    include = body.get("include")
    if isinstance(include, list) and _ENCRYPTED in include and body.get("store") is not False:
        problems.append(f"include: {_ENCRYPTED} is only given with store: false")
    problems += [f"{name}: not found: nothing is stored" for name in _STORED if body.get(name) is not None]
    problems += [f"{name}: unknown parameter" for name in body if name not in _KNOWN and name not in _STORED]
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if (
        isinstance(form, dict)
        and form.get("type") == "json_schema"
        and not (_is_name(form.get("name")) and isinstance(form.get("schema"), dict))
    ):
        problems.append("text.format: json_schema needs a name and a schema")
    return problems


def _kind(item: object) -> str:
    if not isinstance(item, dict):
        return ""
    kind = item.get("type", "message" if "role" in item else "")
    return kind if isinstance(kind, str) else ""


def _role(item: object) -> str:
    role = item.get("role") if isinstance(item, dict) and _kind(item) == "message" else None
    return role if isinstance(role, str) else ""


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_blank(content: object) -> bool:
    if not isinstance(content, list):
        return not str(content or "").strip()
    texts = [part.get("text", part.get("refusal", "")) for part in content if isinstance(part, dict) and part.get("type") not in _GIVEN]
    given = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "input_text"]
    others = any(isinstance(part, dict) and part.get("type") in _GIVEN and part["type"] != "input_text" for part in content)
    return not others and not any(str(text or "").strip() for text in texts + given)
