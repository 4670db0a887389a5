"""``delegate_task``: a call that the agent answers itself, by a child turn with a fresh context and a part of its own tools.

What a child may not have: what asks somebody (its parent's client has not asked it anything), the memory of the end user, and, at the
depth limit, delegation. Each call has a result, whatever becomes of the child.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from app.domain.children import (
    DELEGATE_TOOL,
    DELEGATION_TOOLSET,
    MAX_RESULT,
    ChildEnded,
    ChildNews,
    ChildRefused,
    ChildrenUse,
    ChildStarted,
    ChildStatus,
    ChildTask,
)
from app.domain.conversation_events import SubagentCompleted, SubagentStarted
from app.domain.errors import UnavailableError
from app.domain.events import MAX_EVENT_TEXT, Fact
from app.domain.guardrails import NO_TRAITS, ToolTraits
from app.domain.ids import TurnId
from app.domain.messages import ToolCall, ToolSpec
from app.domain.tools import CallStatus, ToolOutcome, refused
from app.ports import ChildTurns, Toolbox

MEMORY_TOOL: Final = "memory"
MAX_TEXT: Final = 50_000
"""Characters of a goal, and of its context."""

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class _Arguments(msgspec.Struct):
    goal: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
    context: _Text = ""
    toolsets: tuple[str, ...] | None = None
    background: bool = False


_arguments = msgspec.json.Decoder(_Arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """What the calls of one turn delegate with. ``tools`` are those of the turn, ``depth`` is the turn's own."""

    children: ChildTurns
    toolbox: Toolbox
    tools: tuple[ToolSpec, ...]
    traits: Mapping[str, ToolTraits]
    model: str | None
    depth: int
    max_depth: int
    max_iterations: int
    _used: dict[TurnId, ChildrenUse] = field(default_factory=dict)
    """What children that have ended used, until it is counted."""

    async def answer(self, call: ToolCall) -> AsyncGenerator[Fact | ToolOutcome, None]:
        """Yield what happens to the call's child, then the call's result. Closing interrupts the child and waits for its end."""
        task = await self._task(call)
        if isinstance(task, ToolOutcome):
            yield _ours(msgspec.structs.replace(task, status=CallStatus.REFUSED))
            return
        async with aclosing(self.children.run(task)) as news:
            async for one in news:
                fact = self.told(one)
                if fact is not None:
                    yield fact
                result = _result(one, task)
                if result is not None:
                    yield _ours(result)
                    return

    def told(self, news: ChildNews) -> Fact | None:
        """The event for what happened to a child; :meth:`count` comes when it is the turn's."""
        if isinstance(news, ChildEnded):
            self._used[news.turn_id] = news.used
        return event_of(news, self.depth)

    def count(self, facts: Sequence[Fact]) -> ChildrenUse:
        """What the children used whose ends are among ``facts``, which are the turn's from now on: each end counts once."""
        ended = [fact.child_turn_id for fact in facts if isinstance(fact, SubagentCompleted)]
        self.children.told(started=[fact.child_turn_id for fact in facts if isinstance(fact, SubagentStarted)], ended=ended)
        return _sum_of(self._used.pop(turn_id) for turn_id in ended)

    async def _task(self, call: ToolCall) -> ChildTask | ToolOutcome:
        try:
            asked = _arguments.decode(call.arguments or "{}")
        except msgspec.MsgspecError as error:
            return _error(f"Not run: the arguments do not fit ({error}).")
        if not asked.goal.strip():
            return _error("Not run: the goal is empty.")
        if self.depth >= self.max_depth:
            return _error("Not run: this agent is at the depth limit and cannot delegate. Do the work yourself.")
        try:
            tools = await self._tools_for(asked.toolsets)
        except UnavailableError as error:
            return _error(f"Not run: {error.detail}")
        if isinstance(tools, ToolOutcome):
            return tools
        return ChildTask(
            tool_call_id=call.id,
            goal=asked.goal.strip(),
            context=asked.context.strip(),
            tools=tools,
            model=self.model,
            depth=self.depth + 1,
            max_iterations=self.max_iterations,
            background=asked.background,
        )

    async def _tools_for(self, toolsets: Sequence[str] | None) -> tuple[ToolSpec, ...] | ToolOutcome:
        """The tools of a child: never one that its parent does not have. Raises UnavailableError when a toolset cannot be listed."""
        names: set[str] | None = None
        if toolsets is not None:
            known = self.toolbox.toolset_names()
            unknown = sorted(set(toolsets).difference(known))
            if unknown:
                return _error(f"Not run: unknown toolsets {', '.join(map(ascii, unknown))[:200]}. There are: {', '.join(known)}.")
            names = {spec.name for spec in await self.toolbox.specs(toolsets)}
        return tuple(spec for spec in self.tools if (names is None or spec.name in names) and not self._is_kept(spec.name))

    def _is_kept(self, name: str) -> bool:
        traits = self.traits.get(name, NO_TRAITS)
        at_limit = name == DELEGATE_TOOL and self.depth + 1 >= self.max_depth
        return traits.interactive or traits.approval or name == MEMORY_TOOL or at_limit


def event_of(news: ChildNews, depth: int) -> Fact | None:
    """The event of the parent, which is at ``depth``, for what happened to a child of it; ``None`` when there is none."""
    match news:
        case ChildStarted():
            return SubagentStarted(
                tool_call_id=news.tool_call_id,
                child_turn_id=news.turn_id,
                child_session_id=news.session_id,
                card_id=news.card_id,
                depth=depth + 1,
            )
        case ChildEnded():
            return SubagentCompleted(
                tool_call_id=news.tool_call_id,
                child_turn_id=news.turn_id,
                card_id=news.card_id,
                status=news.status,
                reason=news.reason,
                output=news.output[:MAX_EVENT_TEXT],
                iterations=news.used.iterations,
                usage=news.used.usage,
                cost_usd=news.used.cost_usd,
            )
        case ChildRefused():
            return None


def told_late(news: Sequence[ChildNews], depth: int) -> tuple[tuple[Fact, ...], ChildrenUse]:
    """The events for what the loop was not told any more, and what these children used."""
    facts = [event_of(one, depth) for one in news]
    return tuple(fact for fact in facts if fact is not None), _sum_of(one.used for one in news if isinstance(one, ChildEnded))


def _sum_of(used: Iterable[ChildrenUse]) -> ChildrenUse:
    total = ChildrenUse()
    for one in used:
        total += one
    return total


def _ours(outcome: ToolOutcome) -> ToolOutcome:
    return msgspec.structs.replace(outcome, toolset=DELEGATION_TOOLSET)


def _result(news: ChildNews, task: ChildTask) -> ToolOutcome | None:
    match news:
        case ChildStarted(card_id=card_id) if task.background:
            text = f"Started in the background as card {card_id}. Look at it with kanban_show (wait_s waits for its end)."
            return ToolOutcome(output=f"{text} It is stopped when you give your final answer.")
        case ChildStarted():
            return None
        case ChildRefused(detail=detail):
            return refused(detail)
        case ChildEnded():
            return _ended(news)


def _ended(ended: ChildEnded) -> ToolOutcome:
    head = f"[sub-agent {ended.status.value}: {ended.reason}, {ended.used.iterations} iterations, turn {ended.turn_id}]"
    said = ended.output if len(ended.output) <= MAX_RESULT else f"{ended.output[:MAX_RESULT]}\n[… cut at {MAX_RESULT:,} characters]"
    text = f"{head}\n{said}" if said.strip() else f"{head}\n(no answer)"
    return ToolOutcome(output=text, is_error=ended.status is not ChildStatus.COMPLETED)


def _error(text: str) -> ToolOutcome:
    return ToolOutcome(output=text, is_error=True)
