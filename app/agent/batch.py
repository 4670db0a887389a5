"""The tool calls of one reply: what is not run, what each result tells the model beside the tool's own words, and what follows. Pure.

Notes (a guardrail's warning, the budget's) stand at the end of a result, never in a message of their own, so the request stays a prefix of
the next one. Results are stored as they come; what is judged of the whole batch is told with the last of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from app.agent import guardrails, machine, pausing
from app.agent.budget import Budget
from app.agent.facts import budget_warning
from app.agent.guardrails import Answered, Halt
from app.agent.names import matches
from app.agent.pausing import Waits
from app.context import tokens
from app.context.render import cap_result
from app.domain.conversation_events import GuardrailHalt, GuardrailWarning
from app.domain.events import Fact
from app.domain.guardrails import GuardrailThresholds, ToolTraits, digest_of
from app.domain.messages import Message, Role, StoredMessage, ToolCall
from app.domain.secret_arguments import ArgumentMask, HideAll
from app.domain.tools import FinishedCall, ToolOutcome, refused
from app.domain.turns import Completed, CompletedReason, MachineState
from app.domain.waiting import PausedBatch, WaitingCall

MAX_CALLS = 256
"""Calls of one answer that are run; the rest is answered unrun."""
INVALID_CALLS = "invalid_tool_calls"
_INVALID_TEXT = "I stopped here: the tools were called wrongly again and again, so none of them was run. The work may be unfinished."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a turn's tool calls are judged by.

    ``offered`` are the names of the tools that the model was shown; ``window`` is that of the model, in tokens: results are cut to it.
    """

    thresholds: GuardrailThresholds
    hard_stop: bool
    traits: Mapping[str, ToolTraits]
    offered: frozenset[str]
    window: int
    waits: Waits = field(default_factory=Waits)
    mask: ArgumentMask = field(default_factory=HideAll)


class Batch:
    """One reply's calls, from their refusals to what follows them. ``place`` is the seq of the reply's message."""

    def __init__(self, step: machine.RunTools, state: MachineState, rules: Rules, *, place: int) -> None:
        self._step = step
        self._rules = rules
        self._blocked = guardrails.before_calls(state.guardrails, step.calls, rules.thresholds, hard_stop=rules.hard_stop)
        self._done: dict[int, FinishedCall] = {}
        self.base = place + 1
        """The place of the first result."""
        self.waiting: tuple[WaitingCall, ...] = ()
        self.waiting = rules.waits.of(step.calls, {*self.refusals, *range(MAX_CALLS, len(step.calls))})

    @classmethod
    def resumed(cls, paused: PausedBatch, rows: Sequence[StoredMessage], state: MachineState, rules: Rules) -> "Batch":
        """A batch whose waiting calls have their answers. Raises RuntimeError when its rows are gone."""
        step = pausing.step_of(paused, rows)
        batch = cls(step, state, rules, place=paused.place)
        batch.waiting = paused.waiting
        batch.add(pausing.finished_before(paused, step, rows))
        return batch

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All of them, in order."""
        return self._step.calls

    @property
    def to_run(self) -> tuple[ToolCall, ...]:
        """The calls that begin now: one that needs an approval begins when it has it."""
        elsewhere, waits = self.elsewhere, self._rules.waits
        return tuple(call for index, call in enumerate(self.calls) if index not in elsewhere and not waits.asks_first(call))

    @property
    def approved(self) -> tuple[ToolCall, ...]:
        """The calls that somebody allowed and that have not been run."""
        allowed = {one.index for one in self.waiting if one.answer is not None and one.answer.approved}
        return tuple(call for index, call in enumerate(self.calls) if index in allowed and index not in self._done)

    @property
    def elsewhere(self) -> frozenset[int]:
        """The positions of calls that are not answered here: they wait, or have their results."""
        return frozenset((*self._done, *(one.index for one in self.waiting if one.answer is None)))

    def at_once(self, most: int) -> int:
        """How many of the calls may run together: one after the other where somebody is asked beside them."""
        return 1 if self._rules.waits.in_order(self.calls) else most

    def paused(self) -> PausedBatch | None:
        """What is kept of it while calls wait; ``None`` when none does."""
        if all(one.answer is not None for one in self.waiting):
            return None
        cut = {index: one.outcome.digest for index, one in self._done.items()}
        return PausedBatch(
            place=self.base - 1,
            size=len(self.calls),
            waiting=tuple(map(self._shown, self.waiting)),
            unreadable=self._step.bad_arguments,
            digests={index: digest for index, digest in cut.items() if digest is not None},
        )

    @property
    def refusals(self) -> dict[int, ToolOutcome]:
        """The calls that are answered unrun, by position."""
        refusals = {index: refused(block.message) for index, block in self._blocked.items()}
        for index, call in enumerate(self._step.calls):
            reason = self._step.bad_arguments.get(call.id)
            if reason is not None:
                text = f"Not run: the arguments are not valid JSON ({reason}). Send the call again with one JSON object as its arguments."
                refusals[index] = refused(text)
            elif call.name not in self._rules.offered and len(named := matches(call.name, self._rules.offered)) > 1:
                refusals[index] = refused(f"There is no tool {call.name[:64]!a}. Did you mean {' or '.join(named)}? Call it by its name.")
        return refusals | pausing.refusals_of(self.waiting)

    def add(self, finished: Sequence[FinishedCall]) -> list[FinishedCall]:
        """Take finished calls; returns them without those that turn out to wait for an approval."""
        waiting = [one for one in finished if one.outcome.needs_approval and self._rules.waits.allowed]
        done = [one for one in finished if one not in waiting]
        self.waiting = tuple(sorted((*self.waiting, *map(pausing.approval_of, waiting)), key=lambda one: one.index))
        self._done.update((one.index, _without_whole(one)) for one in done)
        return done

    def _shown(self, waiting: WaitingCall) -> WaitingCall:
        shown = self._rules.mask.shown(waiting.call)
        return waiting if shown == waiting.call.arguments else msgspec.structs.replace(waiting, shown=shown)

    @property
    def complete(self) -> bool:
        """Whether every call has its result."""
        return len(self._done) == len(self._step.calls)

    def conclude(self, state: MachineState, budget: Budget) -> "Conclusion":
        """Judge the whole batch, and say what follows it."""
        ordered = [self._done[index] for index in range(len(self._step.calls))]
        answered = [self._answered(one) for one in ordered]
        rules = self._rules
        counted, verdict = guardrails.after_calls(state.guardrails, answered, rules.traits, rules.thresholds, hard_stop=rules.hard_stop)
        counted, given_up = guardrails.after_invalid(counted, all_invalid=all(self._is_invalid(one.call) for one in ordered))
        state = msgspec.structs.replace(state, guardrails=counted, paused=None)
        events = self._told(verdict.warnings)
        notes = {index: warning.message for index, warning in verdict.warnings.items()}
        if verdict.halt is not None or given_up:
            return _halted(state, verdict.halt, notes=notes, events=events)
        shown = [Message(role=Role.TOOL, content=cap_result(one.outcome.output, rules.window)) for one in ordered]
        state, step = machine.after_tools(state, budget, result_tokens=tokens.estimate("", shown, tools_bytes=0))
        told = step.told
        if told is not None:
            events = (*events, budget_warning(told, state, budget))
        return Conclusion(state=state, step=step, notes=notes, last_note=told.text if told is not None else "", events=events)

    def _answered(self, one: FinishedCall) -> Answered:
        digest = one.outcome.digest or digest_of(one.outcome.output)
        return Answered(call=one.call, result=digest, is_error=one.outcome.is_error, blocked=one.index in self._blocked)

    def _is_invalid(self, call: ToolCall) -> bool:
        return call.id in self._step.bad_arguments or call.name not in self._rules.offered

    def _told(self, warnings: Mapping[int, guardrails.Warn]) -> tuple[Fact, ...]:
        found: dict[int, guardrails.Warn | guardrails.Blocked] = {**self._blocked, **warnings}
        return tuple(
            GuardrailWarning(tool_call_id=self._step.calls[index].id, code=one.code, count=one.count, message=one.message)
            for index, one in sorted(found.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What follows a batch. ``notes`` go to the results of the calls at these positions, ``last_note`` to the last result."""

    state: MachineState
    step: machine.CallModel | machine.Finish
    notes: Mapping[int, str]
    last_note: str
    events: tuple[Fact, ...]

    def results(self, finished: Sequence[FinishedCall]) -> list[tuple[FinishedCall, Message]]:
        """The messages of the calls that finished last, with every note in its place; notes of earlier results go to the last one."""
        own = {one.index for one in finished}
        late = [note for index, note in sorted(self.notes.items()) if index not in own]
        messages = []
        for one in finished:
            notes = [self.notes[one.index]] if one.index in self.notes else []
            if one is finished[-1]:
                notes += [*late, self.last_note] if self.last_note else late
            messages.append((one, result_message(one, notes)))
        return messages


def _without_whole(done: FinishedCall) -> FinishedCall:
    """What the batch keeps of a call whose result is stored: large outputs are not to wait in memory for slow siblings."""
    if done.outcome.whole is None:
        return done
    return msgspec.structs.replace(done, outcome=msgspec.structs.replace(done.outcome, whole=None))


def result_message(done: FinishedCall, notes: Sequence[str] = ()) -> Message:
    """The message that answers a call."""
    return Message(
        role=Role.TOOL,
        content="\n\n".join((done.outcome.output, *notes)),
        tool_call_id=done.call.id,
        tool_name=done.call.name,
        is_error=done.outcome.is_error,
    )


def _halted(state: MachineState, halt: Halt | None, *, notes: dict[int, str], events: tuple[Fact, ...]) -> Conclusion:
    text = _INVALID_TEXT if halt is None else guardrails.closing_text(halt)
    if halt is None:
        event = GuardrailHalt(code=INVALID_CALLS, count=state.guardrails.invalid_replies, message=text)
    else:
        event = GuardrailHalt(code=halt.code.value, count=halt.count, message=text)
        notes = {**notes, halt.index: halt.message}
    outcome = Completed(reason=CompletedReason.GUARDRAIL_HALT, output=text)
    step = machine.Finish(outcome=outcome, message=Message(role=Role.ASSISTANT, content=text))
    return Conclusion(state=state, step=step, notes=notes, last_note="", events=(*events, event))
