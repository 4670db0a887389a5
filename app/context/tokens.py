"""How many tokens a request is, by estimate: pure, and cheap enough for every model call.

A token is taken as four bytes of UTF-8, which is a little high for English and about right for other scripts; an image counts as 1,500.
"""

from collections.abc import Sequence

from app.domain.messages import Content, Message

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1_500
MESSAGE_TOKENS = 4
"""What a message costs beside its text."""


def estimate(system: str, messages: Sequence[Message], *, tools_bytes: int) -> int:
    """Tokens that the model has to read. ``tools_bytes`` is the size of the tool definitions as JSON."""
    size = _size(system) + tools_bytes
    images = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            size += _size(content)
        else:
            text_size, pictures = _parts(content)
            size += text_size
            images += pictures
        for call in message.tool_calls:
            size += _size(call.name) + _size(call.arguments)
    return -(-size // BYTES_PER_TOKEN) + images * IMAGE_TOKENS + len(messages) * MESSAGE_TOKENS


def _parts(content: Content) -> tuple[int, int]:
    size = images = 0
    for part in content:
        if isinstance(part, dict) and part.get("type") == "text":
            size += _size(str(part.get("text", "")))
        else:
            images += 1
    return size, images


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
