"""Summaries: what a compaction puts in the place of messages."""

import msgspec

from app.domain.ids import SessionId, TurnId
from app.domain.model import Usage


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the messages ``first_seq`` to ``last_seq``, with those that an earlier summary stood for. One per session is active.

    ``tokens_before`` and ``tokens_after`` are estimates of the context; ``usage`` and ``cost_usd`` what making it took (``None``: no
    prices are known). Times in unix milliseconds.
    """

    id: str
    session_id: SessionId
    turn_id: TurnId | None
    active: bool
    body: str
    first_seq: int
    last_seq: int
    tokens_before: int
    tokens_after: int
    usage: Usage
    cost_usd: float | None
    reason: str
    created_at_ms: int
