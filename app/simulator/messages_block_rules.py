"""Strict mode for Messages: what Anthropic's API refuses in one block of a message. Pure functions."""

import re
from typing import Any

from app.simulator.signatures import is_signed

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DOCUMENTS = ("application/pdf",)
_ROLES = {
    "text": ("user", "assistant"),
    "image": ("user",),
    "document": ("user",),
    "tool_result": ("user",),
    "tool_use": ("assistant",),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
}
_IN_RESULTS = ("text", "image", "document")


def is_blank(text: object) -> bool:
    """Say whether this is no text, or none that shows."""
    return not isinstance(text, str) or not text.strip()


def is_legal_name(name: object) -> bool:
    """Say whether a tool may be called that."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def block_problems(where: str, block: object, *, role: str, model: str) -> list[str]:
    """List what is wrong with one block of a message of `role`."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str) or role not in _ROLES.get(kind, ()):
        return [f"{where}: a block of type {kind!r} is not allowed in a message of role {role}"]
    match kind:
        case "tool_use":
            return _call_problems(where, block)
        case "tool_result":
            return _result_problems(where, block)
        case "thinking":
            return _thinking_problems(where, block, model)
        case "redacted_thinking":
            return [f"{where}.data: Field required"] if is_blank(block.get("data")) else []
        case _:
            return _shown_problems(where, block)


def _shown_problems(where: str, block: dict[str, Any]) -> list[str]:
    """Check a block that may be in a message or in a tool's result."""
    if block["type"] == "text":
        return [f"{where}: text content blocks must contain non-whitespace text"] if is_blank(block.get("text")) else []
    source = block.get("source")
    if not isinstance(source, dict):
        return [f"{where}.source: Field required"]
    match source.get("type"):
        case "url":
            url = source.get("url")
            is_right = isinstance(url, str) and url.startswith(("http://", "https://"))
            return [] if is_right else [f"{where}.source.url: Only HTTP(S) URLs are supported"]
        case "base64":
            return _base64_problems(where, source, _IMAGES if block["type"] == "image" else _DOCUMENTS)
        case other:
            return [f"{where}.source.type: unexpected {other!r}"]


def _base64_problems(where: str, source: dict[str, Any], media_types: tuple[str, ...]) -> list[str]:
    problems = []
    if source.get("media_type") not in media_types:
        problems.append(f"{where}.source.media_type: unexpected {source.get('media_type')!r}")
    data = source.get("data")
    if not isinstance(data, str) or _BASE64.fullmatch(data) is None:
        problems.append(f"{where}.source.data: invalid base64 data")
    return problems


def _call_problems(where: str, block: dict[str, Any]) -> list[str]:
    problems = []
    call_id = block.get("id")
    if not isinstance(call_id, str) or _ID.fullmatch(call_id) is None:
        problems.append(f"{where}.id: String should match pattern '^[a-zA-Z0-9_-]+$': {call_id!r}")
    if not is_legal_name(block.get("name")):
        problems.append(f"{where}.name: illegal name {block.get('name')!r}")
    if not isinstance(block.get("input"), dict):
        problems.append(f"{where}.input: Input should be an object")
    return problems


def _result_problems(where: str, block: dict[str, Any]) -> list[str]:
    problems = []
    content = block.get("content")
    if not isinstance(block.get("tool_use_id"), str):
        problems.append(f"{where}.tool_use_id: Field required")
    if block.get("is_error") is True and not content:
        problems.append(f"{where}: content cannot be empty if `is_error` is true")
    if isinstance(content, list):
        for number, item in enumerate(content):
            kind = item.get("type") if isinstance(item, dict) else None
            here = f"{where}.content.{number}"
            problems.extend(_shown_problems(here, item) if kind in _IN_RESULTS else [f"{here}: unexpected type {kind!r}"])
    elif content is not None and not isinstance(content, str):
        problems.append(f"{where}.content: neither text nor a list of blocks")
    return problems


def _thinking_problems(where: str, block: dict[str, Any], model: str) -> list[str]:
    if is_blank(block.get("signature")):
        return [f"{where}.signature: Field required"]
    if not is_signed(model, block.get("thinking"), block["signature"]):
        return [f"{where}: Invalid `signature` in `thinking` block"]
    return []
