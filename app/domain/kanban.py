"""Cards of a session's board: its child turns, and what its model notes there."""

import enum
from typing import Final

import msgspec

from app.domain.ids import SessionId, TurnId

MAX_TITLE: Final = 200
MAX_OWNER: Final = 100
MAX_CARD_RESULT: Final = 8_000
MAX_CARDS: Final = 256
"""Cards of one board."""


class CardState(enum.StrEnum):
    """Where a card stands. ``failed`` and ``cancelled`` are ends, as ``done`` is."""

    TODO = "todo"
    RUNNING = "running"
    BLOCKED = "blocked"
    REVIEW = "review"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nobody works on it any more."""
        return self in (CardState.DONE, CardState.FAILED, CardState.CANCELLED)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card. ``turn_id`` is the turn that made it, ``child_turn_id`` the child that works on it. Times in unix milliseconds."""

    id: str
    session_id: SessionId
    turn_id: TurnId | None
    child_turn_id: TurnId | None
    title: str
    state: CardState
    owner: str
    result: str
    created_at_ms: int
    started_at_ms: int | None
    ended_at_ms: int | None
    updated_at_ms: int


class NewCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card to put on a board."""

    id: str
    session_id: SessionId
    turn_id: TurnId
    title: str
    state: CardState = CardState.TODO
    owner: str = ""
    child_turn_id: TurnId | None = None


class CardChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is to change of a card; ``None`` leaves it as it is."""

    title: str | None = None
    state: CardState | None = None
    owner: str | None = None
    result: str | None = None
