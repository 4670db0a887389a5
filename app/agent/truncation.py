"""What follows a reply that was cut at its output limit. Pure.

::

    what was cut            │ step
    ────────────────────────┼──────────────────────────────────────────────────────────────────────────
    text                    │ Continue: the model goes on where it stopped; at most 3 times
    a tool call, or nothing │ Retry: the same request with twice the output limit, up to the route's
    but reasoning           │ largest; at most 3 times; the call is never run
    beyond that             │ GiveUp: the turn fails as truncated, with the text so far
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from app.domain.messages import Message, MessageKind, Role
from app.domain.model import ModelReply
from app.domain.turns import MachineState

MAX_CONTINUATIONS: Final = 3
MAX_RETRIES: Final = 3
CONTINUE_TEXT: Final = (
    "[Your answer was cut off at the output limit. Continue exactly where it stopped. Repeat nothing and explain nothing.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Show the model its own text and ask it to go on. ``messages`` are for the model alone."""

    messages: tuple[Message, Message]


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the same request again with a larger output limit; what was shown of this reply is void."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Enough."""


AfterCut: TypeAlias = Continue | Retry | GiveUp


def after_cut(state: MachineState, reply: ModelReply) -> AfterCut:
    """Decide what follows a reply cut by length."""
    if reply.text.strip() and not reply.calls_cut:
        if state.continuations >= MAX_CONTINUATIONS:
            return GiveUp()
        return Continue(messages=(part(reply), Message(role=Role.USER, content=CONTINUE_TEXT, kind=MessageKind.NOTE)))
    if state.retries >= MAX_RETRIES or not reply.may_grow:
        return GiveUp()
    return Retry()


def part(reply: ModelReply) -> Message:
    """A part of an answer as the model is shown it."""
    return Message(role=Role.ASSISTANT, content=reply.text, reasoning=reply.reasoning or None, replay=reply.replay, kind=MessageKind.NOTE)
