"""A response's input items as a history of ours.

Items are turned into messages of chat completions, whose reading is that of imported histories; errors keep the place of the item.
Reasoning items are accepted and left out: they mean something to the provider alone that made them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.imports import ImportedHistory, read_history
from app.domain.errors import InvalidRequestError

_PLACE = re.compile(r"/messages/(\d+)(?:/tool_calls/(\d+)(?:/function)?)?(.*)", re.DOTALL)
_NAMES = {"/tool_call_id": "/call_id", "/id": "/call_id"}
"""Members of messages and calls, by which items have them under another name."""
_TEXTS = ("input_text", "output_text", "text")


def read_input(value: str | Sequence[Mapping[str, Any]], instructions: str | None) -> ImportedHistory:
    """Read the input of a request. Raises InvalidRequestError with the place of what is wrong."""
    items: Sequence[Mapping[str, Any]] = [{"role": "user", "content": value}] if isinstance(value, str) else value
    messages: list[dict[str, Any]] = []
    origins: list[int] = []
    calls: dict[tuple[int, int], int] = {}
    if instructions:
        messages.append({"role": "system", "content": instructions})
        origins.append(0)
    for index, item in enumerate(items):
        _add(item, messages, f"/input/{index}")
        origins += [index] * (len(messages) - len(origins))
        if item.get("type") == "function_call":
            calls[len(messages) - 1, len(messages[-1]["tool_calls"]) - 1] = index
    try:
        return read_history(messages, lenient=True)
    except InvalidRequestError as error:
        pointer = "/input" if isinstance(value, str) else _pointer(error.pointer, items, origins, calls)
        raise InvalidRequestError(error.detail, pointer=pointer) from error


def _pointer(pointer: str, items: Sequence[Mapping[str, Any]], origins: Sequence[int], calls: Mapping[tuple[int, int], int]) -> str:
    """Where it is in the input that a message, or a call, that was made of it is wrong."""
    found = _PLACE.fullmatch(pointer)
    if found is None:
        return "/input"
    message, call, rest = int(found[1]), found[2], found[3]
    origin = origins[message] if call is None else calls[message, int(call)]
    if items[origin].get("type") == "function_call_output":
        rest = rest.replace("/content", "/output", 1)
    return f"/input/{origin}{_NAMES.get(rest, rest)}"


def _add(item: Mapping[str, Any], messages: list[dict[str, Any]], place: str) -> None:
    match item.get("type", "message"):
        case "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), f"{place}/content")})
        case "function_call":
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output":
            output = _content(item.get("output"), f"{place}/output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        case "reasoning":
            pass
        case _:
            raise InvalidRequestError("This gateway does not support input items of this type.", pointer=f"{place}/type")


def _content(content: object, place: str) -> object:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{place}/{index}") for index, part in enumerate(content)]


def _part(part: object, place: str) -> object:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise InvalidRequestError("Must be an object with a type.", pointer=place)
    if kind in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        return {"type": "file", "file": {key: part[key] for key in ("filename", "file_data") if key in part}}
    raise InvalidRequestError("This gateway takes text, images by URL and files by content here.", pointer=place)
