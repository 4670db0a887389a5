"""Rows as text for a model that reads about a conversation instead of taking part in it; in pieces that fit its window."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app.context.render import cut_middle
from app.domain.messages import Message, MessageKind, Role, StoredMessage, clean_text, content_text

MESSAGE_BYTES: Final = 6_000
"""The most of one message's text (hermes section 18: 4,000 of its head, 1,500 of its tail)."""
ARGUMENTS_BYTES: Final = 1_500
"""The most of one call's arguments."""
MOST_PIECES: Final = 8
"""Messages are cut shorter before there are more pieces than this; when even short ones are too many, there are more."""

_SHORTEST: Final = 375
_LEAST_BUDGET: Final = 1_000

_encode = msgspec.json.Encoder().encode


def wire_size(text: str) -> int:
    """Bytes of ``text`` as part of a request: quotes, line ends and control characters take more than one."""
    return len(_encode(clean_text(text))) - 2


def entry(message: Message, longest: int = MESSAGE_BYTES) -> str:
    """One message as text, its own text cut to ``longest`` bytes and its arguments to a quarter of that."""
    text = cut_middle(_text(message), longest).strip()
    match message.role:
        case Role.USER:
            who = "NOTE OF THE SYSTEM" if message.kind is MessageKind.NOTE else "USER"
            return f"{who}: {text}"
        case Role.ASSISTANT:
            calls = [f"CALL {call.name} {cut_middle(call.arguments, longest // 4)}" for call in message.tool_calls]
            said = [f"ASSISTANT: {text}"] if text or not calls else []
            return "\n".join([*said, *calls])
        case Role.TOOL:
            failed = " (failed)" if message.is_error else ""
            return f"RESULT of {message.tool_name or 'a tool'}{failed}: {text}"


def pieces(rows: Sequence[StoredMessage], budget: int, *, before: str = "") -> tuple[str, ...]:
    """``rows`` as texts of at most ``budget`` bytes each (:func:`wire_size`), in order.

    ``before`` is a text that comes first, split over pieces at line ends when it is long. Empty when ``budget`` is too small for any
    sensible piece, or when there is nothing to tell.
    """
    if budget < _LEAST_BUDGET:
        return ()
    longest = MESSAGE_BYTES
    while True:
        entries = [*_split(before, budget), *(_fitted(entry(row.message, longest), budget) for row in rows)]
        packed = _packed(entries, budget)
        if len(packed) <= MOST_PIECES or longest <= _SHORTEST:
            return packed
        longest //= 2


def digest(rows: Sequence[StoredMessage], budget: int) -> str:
    """``rows`` as one text of at most ``budget`` bytes: messages are cut shorter, at last the oldest are left out.

    "" when ``budget`` is too small for anything sensible, or when there is nothing to tell.
    """
    if budget < _LEAST_BUDGET:
        return ""
    longest = MESSAGE_BYTES
    while longest > _SHORTEST:
        packed = _packed([_fitted(entry(row.message, longest), budget) for row in rows], budget)
        if len(packed) <= 1:
            return "".join(packed)
        longest //= 2
    return "".join(_packed([_fitted(entry(row.message, longest), budget) for row in rows], budget)[-1:])


def _text(message: Message) -> str:
    text = content_text(message.content)
    if isinstance(message.content, str):
        return text
    others = sum(1 for part in message.content if part.get("type") != "text")
    return f"{text}\n[{others} attachment(s)]" if others else text


def _fitted(text: str, budget: int) -> str:
    """``text``, cut so that it has at most ``budget`` bytes on the wire."""
    fitted, limit = cut_middle(text, budget), budget
    while (size := wire_size(fitted)) > budget:
        limit = min(limit - 1, limit * budget // size)
        fitted = cut_middle(text, limit)
    return fitted


def _split(text: str, budget: int) -> list[str]:
    """``text`` in parts that end at line ends, none over ``budget``."""
    return list(_packed([_fitted(line, budget) for line in text.splitlines()], budget, "\n")) if text.strip() else []


def _packed(entries: Iterable[str], budget: int, separator: str = "\n\n") -> tuple[str, ...]:
    """As many neighbouring entries in one text as fit. Blank ones are left out."""
    packed: list[list[str]] = []
    room = 0
    for text in entries:
        if not text.strip():
            continue
        size = wire_size(text) + wire_size(separator)
        if size > room or not packed:
            packed.append([])
            room = budget + wire_size(separator)
        packed[-1].append(text)
        room -= size
    return tuple(separator.join(texts) for texts in packed)
