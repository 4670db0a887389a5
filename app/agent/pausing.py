"""Which calls of a reply wait for somebody, and how a turn goes on from their answers. Pure.

::

    call                                              │ waits as
    ──────────────────────────────────────────────────┼────────────────────────────────────────
    a tool of the client                              │ client_tool: its result
    an interactive tool (``clarify``) with a question │ clarify: an answer
    a tool that needs an approval                     │ approval: it is run, or answered "denied"

Only in turns that may wait; what is answered unrun for another reason never waits. That a call needs an approval is said by its tool, when
it is called without one: traits alone may not be known yet, and nobody is asked to allow a call that cannot be run.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

from app.agent.machine import RunTools
from app.domain.guardrails import NO_TRAITS, ToolTraits
from app.domain.messages import Message, Role, StoredMessage, ToolCall, ToolSpec
from app.domain.tools import CLIENT_TOOLSET, CORE_TOOLSET, CallStatus, FinishedCall, ToolOutcome
from app.domain.waiting import MAX_CHOICE, MAX_CHOICES, MAX_QUESTION, CallAnswer, PausedBatch, WaitingCall, WaitingKind

_Choice: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CHOICE)]


class _Question(msgspec.Struct):
    question: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_QUESTION)]
    choices: Annotated[tuple[_Choice, ...], msgspec.Meta(max_length=MAX_CHOICES)] = ()


_question = msgspec.json.Decoder(_Question)
_TOOLSETS = {WaitingKind.CLIENT_TOOL: CLIENT_TOOLSET, WaitingKind.CLARIFY: CORE_TOOLSET}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Whom the calls of a turn may wait for. ``client`` and ``own`` are the names of the client's tools and of the gateway's."""

    allowed: bool = False
    client: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    traits: Mapping[str, ToolTraits] = field(default_factory=dict)

    def of(self, calls: Sequence[ToolCall], refused: Collection[int]) -> tuple[WaitingCall, ...]:
        """The calls that wait. ``refused`` are the positions of those that are answered unrun."""
        if not self.allowed:
            return ()
        found = (self._waiting(index, call) for index, call in enumerate(calls) if index not in refused)
        return tuple(waiting for waiting in found if waiting is not None)

    def asks_first(self, call: ToolCall) -> bool:
        """Whether a call is known not to be run at once, though it does not wait yet."""
        return self.allowed and self._traits(call).approval

    def in_order(self, calls: Sequence[ToolCall]) -> bool:
        """Whether calls must be run one after the other: somebody is asked beside them."""
        return any(self._traits(call).interactive for call in calls)

    def _waiting(self, index: int, call: ToolCall) -> WaitingCall | None:
        if call.name in self.client:
            return WaitingCall(index=index, call=call, kind=WaitingKind.CLIENT_TOOL)
        return _asking(index, call) if self._traits(call).interactive else None

    def _traits(self, call: ToolCall) -> ToolTraits:
        return self.traits.get(call.name, NO_TRAITS) if call.name in self.own else NO_TRAITS


def own_tools(specs: tuple[ToolSpec, ...], traits: Mapping[str, ToolTraits], *, may_wait: bool) -> tuple[ToolSpec, ...]:
    """The gateway's tools that a turn is offered: where nobody can be waited for, none that needs somebody."""
    if may_wait:
        return specs
    return tuple(spec for spec in specs if not (known := traits.get(spec.name, NO_TRAITS)).interactive and not known.approval)


def _asking(index: int, call: ToolCall) -> WaitingCall | None:
    """The question of a call; ``None`` when it has none that can be shown: the tool itself then says what is wrong."""
    try:
        asked = _question.decode(call.arguments)
    except msgspec.MsgspecError:
        return None
    if not asked.question.strip():
        return None
    return WaitingCall(index=index, call=call, kind=WaitingKind.CLARIFY, question=asked.question, choices=asked.choices)


def approval_of(done: FinishedCall) -> WaitingCall:
    """A call that waits for an approval."""
    return WaitingCall(index=done.index, call=done.call, kind=WaitingKind.APPROVAL)


def refusals_of(waiting: Sequence[WaitingCall]) -> dict[int, ToolOutcome]:
    """The results that somebody gave, by position; approved calls are to be run."""
    kinds = {one.index: one.kind for one in waiting}
    given = ((one.index, one.answer) for one in waiting if one.answer is not None)
    return {index: _given(kinds[index], answer) for index, answer in given if not answer.approved}


def _given(kind: WaitingKind, answer: CallAnswer) -> ToolOutcome:
    status = CallStatus.REFUSED if kind is WaitingKind.APPROVAL else None
    return ToolOutcome(output=answer.output, is_error=answer.is_error, status=status, toolset=_TOOLSETS.get(kind))


def step_of(paused: PausedBatch, rows: Sequence[StoredMessage]) -> RunTools:
    """The step that was paused, from its stored message. Raises RuntimeError when that is gone."""
    message = next((row.message for row in rows if row.seq == paused.place), None)
    if message is None or len(message.tool_calls) != paused.size:
        raise RuntimeError("the message of a paused turn is not in its session")
    return RunTools(message=message, calls=message.tool_calls, bad_arguments=paused.unreadable)


def finished_before(paused: PausedBatch, step: RunTools, rows: Sequence[StoredMessage]) -> tuple[FinishedCall, ...]:
    """The calls that were answered before the pause, from their stored results."""
    results = {row.seq: row.message for row in rows if row.message.role is Role.TOOL}
    places = ((index, results.get(paused.place + 1 + index)) for index in range(paused.size))
    return tuple(
        FinishedCall(index=index, call=step.calls[index], outcome=_outcome(result, paused.digests.get(index)), duration_ms=0)
        for index, result in places
        if result is not None
    )


def _outcome(result: Message, digest: str | None) -> ToolOutcome:
    output = result.content if isinstance(result.content, str) else ""
    return ToolOutcome(output=output, is_error=result.is_error, digest=digest)
