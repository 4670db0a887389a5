"""Strict mode for Chat Completions: what real providers refuse in a request. Pure functions.

Each rule is one that OpenAI's API, or servers compatible with it, answer with status 400.
`picky` adds rules that only some servers have (strict chat templates, Messages-like backends).
"""

import json
import re
from typing import Any

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_PARTS = frozenset({"text", "image_url", "input_audio", "file", "refusal"})


def chat_problems(body: dict[str, Any], *, picky: bool) -> list[str]:
    """List every reason to refuse the request, in order; empty when there is none."""
    messages = body["messages"] if isinstance(body.get("messages"), list) else []
    problems = _history_problems(messages)
    for index, message in enumerate(messages):
        problems.extend(_message_problems(f"messages[{index}]", message))
    if picky:
        problems.extend(_picky_problems(messages))
    return [*problems, *_tool_problems(body), *_option_problems(body)]


def _history_problems(messages: list[Any]) -> list[str]:
    """Check that calls and results pair up: results directly after their assistant message."""
    problems = []
    if not any(_role(message) == "user" for message in messages):
        problems.append("messages: no user message")
    open_calls: list[str] = []
    answered: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if _role(message) == "tool":
            problems.extend(_result_problems(where, message.get("tool_call_id"), open_calls, answered))
            continue
        if open_calls:
            problems.append(f"{where}: comes before the results of tool calls {open_calls}")
        answered = set()
        open_calls = [call["id"] for call in _calls(message) if isinstance(call.get("id"), str) and call["id"]]
    if open_calls:
        problems.append(f"messages[{len(messages) - 1}]: tool calls {open_calls} are unanswered at the end")
    return problems


def _result_problems(where: str, call_id: object, open_calls: list[str], answered: set[str]) -> list[str]:
    if isinstance(call_id, str) and call_id in open_calls:
        open_calls.remove(call_id)
        answered.add(call_id)
        return []
    if isinstance(call_id, str) and call_id in answered:
        return [f"{where}: second result for tool call {call_id!r}"]
    return [f"{where}: tool_call_id {call_id!r} matches no call of the assistant message directly before"]


def _message_problems(where: str, message: object) -> list[str]:
    if not isinstance(message, dict):
        return [f"{where}: is not an object"]
    role = _role(message)
    if role not in _ROLES:
        return [f"{where}: unknown role {message.get('role')!r}"]
    problems = _content_problems(where, message)
    if role == "assistant" and "tool_calls" in message:
        problems.extend(_call_problems(where, message["tool_calls"]))
    elif "tool_calls" in message:
        problems.append(f"{where}: tool_calls in a message of role {role}")
    return problems


def _content_problems(where: str, message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return []
    if content is None:
        may_lack = message["role"] == "assistant" and (message.get("tool_calls") or message.get("refusal"))
        return [] if may_lack else [f"{where}: content is missing"]
    if not isinstance(content, list):
        return [f"{where}: content is neither text nor a list of parts"]
    if not content:
        return [f"{where}: content is an empty list"]
    return [f"{where}: content[{number}] is no valid part" for number, part in enumerate(content) if not _is_part(part)]


def _is_part(part: object) -> bool:
    if not isinstance(part, dict) or part.get("type") not in _PARTS:
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)


def _call_problems(where: str, calls: object) -> list[str]:
    if not isinstance(calls, list) or not calls:
        return [f"{where}: tool_calls is not a list with calls"]
    problems = []
    seen: set[str] = set()
    for number, call in enumerate(calls):
        here = f"{where}: tool_calls[{number}]"
        if not isinstance(call, dict):
            problems.append(f"{here} is not an object")
            continue
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            problems.append(f"{here} has no id")
        elif call_id in seen:
            problems.append(f"{here} repeats the id {call_id!r}")
        else:
            seen.add(call_id)
        problems.extend(_function_problems(here, call))
    return problems


def _function_problems(here: str, call: dict[str, Any]) -> list[str]:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, dict):
        return [f"{here} is not of type function"]
    problems = []
    if not _is_name(function.get("name")):
        problems.append(f"{here} has the illegal name {function.get('name')!r}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        problems.append(f"{here}: arguments is not a string")
    elif not _is_json_object(arguments):
        problems.append(f"{here}: arguments is not a JSON object: {arguments[:40]!r}")
    return problems


def _picky_problems(messages: list[Any]) -> list[str]:
    problems = []
    for index, message in enumerate(messages):
        role = _role(message)
        if index and role in {"user", "assistant"} and _role(messages[index - 1]) == role:
            problems.append(f"messages[{index}]: two {role} messages in a row")
        if role == "assistant" and not _calls(message) and _is_blank(message.get("content")):
            problems.append(f"messages[{index}]: empty assistant message")
    return problems


def _tool_problems(body: dict[str, Any]) -> list[str]:
    tools = body.get("tools")
    if tools is None:
        return ["tool_choice: only allowed with tools"] if body.get("tool_choice") is not None else []
    if not isinstance(tools, list) or not tools:
        return ["tools: not a list with tools"]
    problems = []
    names = []
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            problems.append(f"tools[{number}]: not of type function")
            continue
        names.append(function.get("name"))
        if not _is_name(function.get("name")):
            problems.append(f"tools[{number}]: illegal name {function.get('name')!r}")
        if not isinstance(function.get("parameters", {}), dict):
            problems.append(f"tools[{number}]: parameters is not an object")
    return problems + _order_problems([name for name in names if isinstance(name, str)])


def _order_problems(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        return ["tools: a name is defined twice"]
    return ["tools: not sorted by name"] if names != sorted(names) else []


def _option_problems(body: dict[str, Any]) -> list[str]:
    problems = []
    if not isinstance(body.get("model"), str) or not body["model"]:
        problems.append("model: missing")
    if body.get("stream_options") is not None and body.get("stream") is not True:
        problems.append("stream_options: only allowed with stream")
    return problems


def _role(message: object) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return role if isinstance(role, str) else ""


def _calls(message: object) -> list[dict[str, Any]]:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return []
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_blank(content: object) -> bool:
    if isinstance(content, list):
        return all(not isinstance(part, dict) or (part.get("type") == "text" and not str(part.get("text", "")).strip()) for part in content)
    return not isinstance(content, str) or not content.strip()
