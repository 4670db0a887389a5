"""Tool calls that wait for somebody: client-side tools, questions of the model, approvals. Part of the machine's state."""

import enum
from typing import Final

import msgspec

from app.domain.messages import Message, Role, ToolCall
from app.domain.tools import INTERRUPTED_OUTPUT, CallStatus

MAX_CHOICES: Final = 4
MAX_QUESTION: Final = 4_000
"""Characters of a question."""
MAX_CHOICE: Final = 500
"""Characters of one choice."""


class WaitingKind(enum.StrEnum):
    """Whom a call waits for."""

    CLIENT_TOOL = "client_tool"
    """The client runs the tool."""
    CLARIFY = "clarify"
    """Somebody answers the model's question."""
    APPROVAL = "approval"
    """Somebody allows the gateway to run the call, or does not."""


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody said. ``approved``: the call is to be run; else ``output`` is its result."""

    output: str = ""
    is_error: bool = False
    approved: bool = False


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits, and its answer once there is one. ``index`` is its position among the reply's calls.

    ``question`` and ``choices`` are those of ``clarify``. ``shown`` are the arguments without secrets, where they have any.
    """

    index: int
    call: ToolCall
    kind: WaitingKind
    question: str | None = None
    choices: tuple[str, ...] = ()
    answer: CallAnswer | None = None
    shown: str | None = None

    @property
    def arguments(self) -> str:
        """The arguments as they are shown."""
        return self.call.arguments if self.shown is None else self.shown

    @property
    def unfinished_as(self) -> CallStatus:
        """How the call counts if its turn ends now."""
        if self.answer is None or self.answer.approved:
            return CallStatus.INTERRUPTED if self.answer or self.kind is not WaitingKind.APPROVAL else CallStatus.REFUSED
        if self.kind is WaitingKind.APPROVAL:
            return CallStatus.REFUSED
        return CallStatus.ERROR if self.answer.is_error else CallStatus.OK


class PausedBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The calls of one reply, all answered but those in ``waiting``: with the stored rows, everything that is needed to go on.

    ``place`` is the seq of the assistant message, ``size`` the number of its calls. ``unreadable`` are the reasons of arguments that are no
    JSON, by call id; ``digests`` those of results that were cut, by position.
    """

    place: int
    size: int
    waiting: tuple[WaitingCall, ...]
    unreadable: dict[str, str] = {}
    digests: dict[int, str] = {}

    @property
    def open(self) -> tuple[WaitingCall, ...]:
        """The calls that have no answer yet."""
        return tuple(one for one in self.waiting if one.answer is None)

    def unfinished(self) -> dict[int, Message]:
        """Results for an end before the calls were concluded, by seq: given answers count, what was not run says so."""
        return {self.place + 1 + one.index: _unfinished(one) for one in self.waiting}


_UNFINISHED: Final = {
    WaitingKind.CLIENT_TOOL: INTERRUPTED_OUTPUT,
    WaitingKind.CLARIFY: "Interrupted before somebody answered.",
    WaitingKind.APPROVAL: "Interrupted before somebody approved it; it was not run.",
}


def _unfinished(waiting: WaitingCall) -> Message:
    answer, call = waiting.answer, waiting.call
    if answer is None:
        text, is_error = _UNFINISHED[waiting.kind], True
    elif answer.approved:
        text, is_error = INTERRUPTED_OUTPUT, True
    else:
        text, is_error = answer.output, answer.is_error
    return Message(role=Role.TOOL, content=text, tool_call_id=call.id, tool_name=call.name, is_error=is_error)
