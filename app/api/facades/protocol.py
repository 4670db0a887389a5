"""What a protocol is to the rest of the facades, and what every answer of it has in common."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.api.facades.narration import Piece
from app.api.openai_errors import CallError
from app.domain.ids import TurnId, made_at_ms
from app.domain.model import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who an answer is. ``suffix`` is the part of the turn's id that makes it unique; ``created`` in unix seconds."""

    suffix: str
    created: int

    @classmethod
    def of(cls, turn_id: TurnId) -> "Identity":
        """The identity of a turn's answer: the same whenever and wherever it is asked for."""
        return cls(suffix=turn_id.removeprefix("turn_"), created=made_at_ms(turn_id) // 1000)


class Form(Protocol):
    """One answer in the making: fed with the pieces of a turn, it gives the stream's bytes and, at the end, the whole."""

    failure: CallError | None
    """Set when the turn ended with an error, or the answer cannot go on."""
    over: bool
    """Nothing follows what was fed."""

    def begin(self, model: str) -> bytes:
        """The stream's beginning; called once, before the first piece."""

    def feed(self, piece: Piece) -> bytes:
        """What a piece adds to the stream."""

    def fail(self, error: CallError) -> bytes:
        """End the stream with an error."""

    def whole(self) -> dict[str, Any]:
        """The answer as one JSON object, once it is over without a failure."""


def with_cost(counts: dict[str, Any], cost_usd: float | None) -> dict[str, Any]:
    """Usage with what it cost, where the tenant's routes have prices; OpenAI's clients pass over a member that they do not know."""
    return counts if cost_usd is None else counts | {"cost_usd": cost_usd}


def total_tokens(usage: Usage) -> int:
    """All tokens of a turn."""
    return usage.input_tokens + usage.output_tokens
