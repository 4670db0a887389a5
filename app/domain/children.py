"""Child turns: what a turn asks of one that it starts, and what it is told of it."""

import enum
from typing import Final, TypeAlias

import msgspec

from app.domain.ids import SessionId, TurnId
from app.domain.messages import ToolSpec
from app.domain.model import Usage

DELEGATE_TOOL: Final = "delegate_task"
"""Answered by the agent itself."""
DELEGATION_TOOLSET: Final = "delegation"
MAX_RESULT: Final = 24_000
"""Characters of a child's answer that its parent is given."""


class ChildTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do. ``goal`` and ``context`` are all that it knows of its parent's conversation.

    ``tools`` are shown to its model, ``model`` is asked first (``None``: the chain's first). ``depth`` is 1 for a child of a turn that is
    none. ``max_iterations`` bounds it beside what is left of the tree's budget. In the ``background`` its parent goes on at once.
    """

    tool_call_id: str
    goal: str
    context: str
    tools: tuple[ToolSpec, ...]
    model: str | None
    depth: int
    max_iterations: int
    background: bool


class ChildStatus(enum.StrEnum):
    """How a child ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class ChildrenUse(msgspec.Struct, frozen=True, kw_only=True):
    """What child turns used, those below them included. ``cost_usd`` is ``None`` when no part of it is known."""

    turns: int = 0
    iterations: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None

    def __add__(self, other: "ChildrenUse") -> "ChildrenUse":
        cost = self.cost_usd if other.cost_usd is None else (self.cost_usd or 0.0) + other.cost_usd
        return ChildrenUse(
            turns=self.turns + other.turns,
            iterations=self.iterations + other.iterations,
            usage=self.usage + other.usage,
            cost_usd=cost,
        )


class ChildStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The child runs. ``card_id`` is its card on the parent's board."""

    tool_call_id: str
    turn_id: TurnId
    session_id: SessionId
    card_id: str


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The child has its end. ``output`` is its answer, or what it had of one; ``used`` includes the child itself."""

    tool_call_id: str
    turn_id: TurnId
    card_id: str
    status: ChildStatus
    reason: str
    output: str
    used: ChildrenUse


class ChildRefused(msgspec.Struct, frozen=True, kw_only=True):
    """No child was started; ``detail`` says why, for the model."""

    detail: str


ChildNews: TypeAlias = ChildStarted | ChildEnded | ChildRefused
