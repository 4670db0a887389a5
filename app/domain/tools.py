"""Tool calls as values: what a tool is told and what comes of it."""

import msgspec

from app.domain.ids import SessionId, TenantId, TurnId


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is. ``enabled`` are the tool names of the session's snapshot: anything else is refused.

    ``session_id`` is ``None`` in a stateless call.
    """

    tenant_id: TenantId
    session_id: SessionId | None
    turn_id: TurnId
    enabled: frozenset[str]


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the model reads as the call's result; never empty. A failure is a value (``is_error``), not an exception."""

    output: str
    is_error: bool = False


INTERRUPTED_OUTPUT = "Interrupted before this call finished; its effect is unknown."
"""The result of a call whose turn was stopped or whose process died while it ran."""
