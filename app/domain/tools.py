"""Tool calls as values: what a tool is told and what comes of it."""

import re
from typing import Final

import msgspec

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.messages import ToolCall
from app.domain.model import RouteUse

CORE_TOOLSET: Final = "core"
"""The gateway's own tools that need nothing configured."""

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What all providers accept as a tool's name."""


MAX_TOOL_POOL: Final = 4_096
"""The most tool calls that one process is let run at once: each may be a thread."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is. ``enabled`` are the tool names of the session's snapshot: anything else is refused.

    ``session_id`` is ``None`` in a stateless call. ``call_id`` is the call's own id, unique within its turn; empty before there is a call.
    ``approved``: somebody has allowed the call.
    """

    tenant_id: TenantId
    session_id: SessionId | None
    turn_id: TurnId
    enabled: frozenset[str]
    call_id: str = ""
    approved: bool = False


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the model reads as the call's result; never empty. A failure is a value (``is_error``), not an exception.

    ``digest`` is that of the whole output (:func:`app.domain.guardrails.digest_of`), where ``output`` is a cut one. ``needs_approval``: the
    call can be run and was not, since nobody has allowed it yet. ``uses`` is what model calls of the tool used; it is the turn's.
    """

    output: str
    is_error: bool = False
    digest: str | None = None
    needs_approval: bool = False
    uses: tuple[RouteUse, ...] = ()


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call with what came of it. ``index`` is its position in the answer."""

    index: int
    call: ToolCall
    outcome: ToolOutcome
    duration_ms: int


INTERRUPTED_OUTPUT = "Interrupted before this call finished; its effect is unknown."
"""The result of a call whose turn was stopped or whose process died while it ran."""
