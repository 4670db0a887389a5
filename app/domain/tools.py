"""Tool calls as values: what a tool is told and what comes of it."""

import enum
import re
from typing import Final

import msgspec

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.messages import ToolCall
from app.domain.model import RouteUse

CORE_TOOLSET: Final = "core"
"""The gateway's own tools that need nothing configured."""

CLIENT_TOOLSET: Final = "client"
"""How records name the tools of a turn's client; no session can have it."""

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


class CallStatus(enum.StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    REFUSED = "refused"
    """It was not run."""
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    """Its turn ended before it; its effect is unknown."""


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the model reads as the call's result; never empty. A failure is a value (``is_error``), not an exception.

    ``digest`` is that of the whole output (:func:`app.domain.guardrails.digest_of`), where ``output`` is a cut one, and ``whole`` what is
    kept of it. ``needs_approval``: the call can be run and was not, since nobody has allowed it yet. ``uses`` is what model calls of the
    tool used; it is the turn's. ``status`` says more than ``is_error`` where it is given; ``toolset`` is that of the tool, if it is known.
    """

    output: str
    is_error: bool = False
    digest: str | None = None
    needs_approval: bool = False
    uses: tuple[RouteUse, ...] = ()
    status: CallStatus | None = None
    toolset: str | None = None
    whole: str | None = None

    @property
    def ended_as(self) -> CallStatus:
        """How the call ended."""
        return self.status or (CallStatus.ERROR if self.is_error else CallStatus.OK)


def refused(output: str) -> ToolOutcome:
    """The result of a call that is not run."""
    return ToolOutcome(output=output, is_error=True, status=CallStatus.REFUSED)


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call with what came of it. ``index`` is its position in the answer."""

    index: int
    call: ToolCall
    outcome: ToolOutcome
    duration_ms: int


INTERRUPTED_OUTPUT = "Interrupted before this call finished; its effect is unknown."
"""The result of a call whose turn was stopped or whose process died while it ran."""

MAX_SHOWN_ARGUMENTS: Final = 4_096
"""Characters of a call's arguments, as they are shown, that its record keeps."""
_MAX_SHOWN_NAME: Final = 128


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a call, with its result. ``seq`` is the place of that result among the messages; ids may come again in a turn.

    ``arguments`` are JSON text without secrets, cut. ``whole`` is the output where no message and no event has all of it. Times are unix
    milliseconds; ``started_at_ms`` is ``None`` for a call that was not run here.
    """

    seq: int
    tool_call_id: str
    name: str
    toolset: str | None
    arguments: str
    status: CallStatus
    started_at_ms: int | None
    duration_ms: int
    whole: str | None = None


def record_of(call: ToolCall, *, seq: int, status: CallStatus, shown: str, took: tuple[int | None, int] = (None, 0)) -> CallRecord:
    """The record of a call; ``shown`` are its arguments without secrets, ``took`` is when it began (unix ms) and how long it took (ms)."""
    return CallRecord(
        seq=seq,
        tool_call_id=call.id,
        name=call.name[:_MAX_SHOWN_NAME],
        toolset=None,
        arguments=shown[:MAX_SHOWN_ARGUMENTS],
        status=status,
        started_at_ms=took[0],
        duration_ms=took[1],
    )
