"""Content as the blocks of this protocol, encoded: texts, images and documents from OpenAI's content parts."""

import re
from collections.abc import Mapping
from typing import Any, Final

from app.domain.messages import Content, clean_json, clean_text
from app.providers.wire import encode_json

_data_url: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_web_url: Final = re.compile(r"https?://", re.IGNORECASE)
_media_types: Final = {"image/jpg": "image/jpeg"}
"""Names in use that the API refuses, and the right ones."""


def text_block(text: str) -> bytes:
    """One block of text, which must not be blank: the API refuses blank ones."""
    return b'{"type":"text","text":%b}' % encode_json(clean_text(text))


def content_blocks(content: Content) -> list[bytes]:
    """The blocks of a user's or a tool's content, in order. Blank texts are left out."""
    if isinstance(content, str):
        return [text_block(content)] if content.strip() else []
    blocks = (_block(part) for part in content)
    return [_encode(block) for block in blocks if block is not None]


def _encode(block: dict[str, Any]) -> bytes:
    try:
        return encode_json(block)
    except UnicodeError:
        return encode_json(clean_json(block))


def _block(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part.get("type"):
        case "text":
            text = clean_text(str(part.get("text") or ""))
            return {"type": "text", "text": text} if text.strip() else None
        case "image_url":
            source = _image_source(part.get("image_url"))
            return _left_out(part) if source is None else {"type": "image", "source": source}
        case "file":
            return _document(part.get("file")) or _left_out(part)
        case _:
            return _left_out(part)


def _left_out(part: Mapping[str, Any]) -> dict[str, Any]:
    """What the protocol has no block for is named, so that the model can say so."""
    kind = clean_text(str(part.get("type")))[:40]
    return {"type": "text", "text": f"[A part of type {kind} was left out: it cannot be shown here.]"}


def _image_source(image: object) -> dict[str, Any] | None:
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        return None
    return {"type": "url", "url": url} if _web_url.match(url) else _base64_source(url)


def _base64_source(url: str) -> dict[str, Any] | None:
    match = _data_url.match(url)
    if match is None:
        return None
    media_type = match.group(1).lower()
    return {"type": "base64", "media_type": _media_types.get(media_type, media_type), "data": url[match.end() :]}


def _document(file: object) -> dict[str, Any] | None:
    """A PDF; the API takes no other file as base64."""
    data = file.get("file_data") if isinstance(file, dict) else None
    source = _base64_source(data) if isinstance(data, str) else None
    if not isinstance(file, dict) or source is None or source["media_type"] != "application/pdf":
        return None
    name = file.get("filename")
    titled = {"title": clean_text(name)} if isinstance(name, str) and name.strip() else {}
    return {"type": "document", "source": source, **titled}
