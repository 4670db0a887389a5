"""What one turn's loop carries from step to step: the conversation as it grows, the machine's state, and the turn's limits."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from app.agent import machine
from app.agent.allowance import Share
from app.agent.batch import MAX_CALLS, Rules
from app.agent.budget import Budget, DayAllowance, output_limit, within_day
from app.agent.client_tools import ClientTools, options_of
from app.agent.conversation import Conversation
from app.agent.delegation import Delegation
from app.agent.facts import tools_completed, tools_started
from app.agent.names import rightly_named
from app.agent.pausing import Waits, own_tools
from app.agent.tool_calls import Telling
from app.domain.children import DELEGATE_TOOL
from app.domain.compaction import Room, Thresholds
from app.domain.events import MAX_EVENT_TEXT, Fact, MessageCompleted, message_view
from app.domain.guardrails import GuardrailThresholds
from app.domain.ids import MessageId, make_id
from app.domain.messages import Message, StoredMessage, ToolCall, ToolSpec, content_text
from app.domain.model import ModelOptions, ModelReply, ModelRequest, RouteRef
from app.domain.openings import OpenTurn
from app.domain.secret_arguments import ArgumentMask
from app.domain.tenants import TenantSettings
from app.domain.tools import CallRecord, CallStatus, FinishedCall, ToolContext, record_of
from app.domain.turns import Completed, Failed, MachineState, PressureLevel
from app.ports import ChildTurns, Clock, MemoryStore, ModelClient, TodoStore, Toolbox

logger = logging.getLogger(__name__)

_TOOLS = msgspec.json.Decoder(tuple[ToolSpec, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What a turn's loop takes. ``model`` is the session's chain, ``summariser`` the tenant's for summaries."""

    model: ModelClient
    summariser: ModelClient
    toolbox: Toolbox
    clock: Clock
    settings: TenantSettings
    todos: TodoStore
    memory: MemoryStore
    allowance: DayAllowance | None = None
    """What is left of the tenant's day, where that is limited."""
    share: Share
    children: ChildTurns | None = None
    """``None`` where a turn can have none."""
    calls_at_once: int = MAX_CALLS
    """Tool calls that run together."""


class Run:
    """One turn under way. Mutable; owned by the loop alone."""

    def __init__(
        self,
        turn: OpenTurn,
        working_set: Sequence[StoredMessage],
        *,
        room: Room,
        toolbox: Toolbox,
        clock: Clock,
        thresholds: GuardrailThresholds,
        share: Share,
        allowance: DayAllowance | None = None,
    ) -> None:
        request = turn.request
        self.turn = turn
        self._share = share
        self._state = turn.state
        share.use(turn.state)
        self.delegation: Delegation | None = None
        """How calls are delegated; ``None`` where the turn has no such tool."""
        self.over = False
        self.does_not_fit = False
        """The conversation fits its window no more, whatever leaves it."""
        self.unsummarised: str | None = None
        """Why, when it is only that there is no summary yet."""
        self.uncompacted: Completed | Failed | None = None
        """What a turn that only compacts ends with when nothing came of it."""
        self.client = ClientTools(toolbox, request.client_tools, waits=request.may_wait)
        traits = self.traits = toolbox.traits()
        own = own_tools(_TOOLS.decode(turn.tools), traits, may_wait=request.may_wait)
        self.tools = self.client.offered(own)
        self.conversation = Conversation(
            working_set, turn.kept, system_prompt=turn.system_prompt, room=room, tools_bytes=len(turn.tools) + self.client.size
        )
        self._allowance = allowance
        self._room = room
        self.rules = Rules(
            thresholds=thresholds,
            hard_stop=thresholds.stops(background=request.background),
            traits=traits,
            offered=frozenset(spec.name for spec in self.tools),
            window=room.window,
            waits=Waits(allowed=request.may_wait, client=self.client.names, own=self.client.enabled(own), traits=traits),
            # Where a call of the client ends the turn, its arguments are the answer.
            mask=ArgumentMask(self.tools, traits, whole=frozenset() if request.may_wait else self.client.names),
        )
        self.began_ms: int | None = None
        """When the calls that are under way began."""
        self.context = ToolContext(
            tenant_id=turn.tenant_id,
            session_id=turn.fence.session_id,
            turn_id=turn.fence.turn_id,
            enabled=self.client.enabled(own),
        )
        self._clock = clock
        self._next_seq = turn.next_message_seq
        self._estimated = 0

    @property
    def tellings(self) -> dict[str, Telling]:
        """The calls that the agent answers itself."""
        return {} if self.delegation is None else {DELEGATE_TOOL: self.delegation.answer}

    def children_news(self) -> tuple[Fact, ...]:
        """The ends of children in the background since the last look, counted."""
        delegation = self.delegation
        if delegation is None:
            return ()
        told = [delegation.told(ended) for ended in delegation.children.news()]
        facts = tuple(fact for fact in told if fact is not None)
        self.count_children(facts)
        return facts

    def count_children(self, facts: Sequence[Fact]) -> None:
        """Add what children used whose ends are among ``facts``, which are recorded next."""
        if self.delegation is not None and facts:
            self.state = machine.count_children(self.state, self.delegation.count(facts))

    @property
    def state(self) -> MachineState:
        """The machine's state. What it says of use is told to the turns that share the budget."""
        return self._state

    @state.setter
    def state(self, state: MachineState) -> None:
        self._state = state
        self._share.use(state)

    @property
    def budget(self) -> Budget:
        """What the turn may use in all, as of now: its children use the same, and its tenant's other turns of the same day."""
        budget = self._share.budget
        return budget if self._allowance is None else within_day(budget, self._allowance.share())

    def request(self) -> ModelRequest:
        """What the model is shown next."""
        conversation = self.conversation
        input_tokens = conversation.size()
        options = self._options(input_tokens)
        if self._allowance is not None:
            self._allowance.hold(input_tokens + self._most_output(options))
        if options.output_cap is not None:
            self._share.reserve(input_tokens + options.output_cap)
        self._estimated = conversation.plain_size() if conversation.needs_calibration() else 0
        return ModelRequest(
            system=conversation.system,
            messages=conversation.messages(),
            tools=self.tools,
            first_attempt=self.state.attempts + 1,
            input_tokens=input_tokens,
            options=options,
            summary=conversation.block,
        )

    def count_size(self, reply: ModelReply, thresholds: Thresholds) -> None:
        """Take note of the size that the provider counted; the reply becomes the next row."""
        self.conversation.count_reply(reply, estimated=self._estimated, up_to_seq=self._next_seq, thresholds=thresholds)

    def place(self, message: Message, *, archived: bool = False) -> StoredMessage:
        """Put a message at the end of the conversation, with room for the results of its calls. ``archived``: for the transcript alone."""
        stored = self.stored(self._next_seq, message, archived=archived)
        self._next_seq += 1 + len(message.tool_calls)
        if not archived:
            self.conversation.rows.append(stored)
        return stored

    def stored(self, seq: int, message: Message, *, archived: bool = False) -> StoredMessage:
        """A message at a given place."""
        now_ms = self._clock.unix_ms()
        return StoredMessage(
            id=MessageId(make_id("msg", now_ms, secrets.token_bytes(10))),
            session_id=self.turn.fence.session_id,
            seq=seq,
            turn_id=self.turn.fence.turn_id,
            message=message,
            archived=archived,
            created_at_ms=now_ms,
        )

    def answer(self, base: int, answered: Sequence[tuple[FinishedCall, Message]]) -> tuple[StoredMessage, ...]:
        """Put the results of calls in their places, which begin at ``base``."""
        results = tuple(self.stored(base + done.index, message) for done, message in answered)
        self.conversation.rows.extend(results)
        self.conversation.rows.sort(key=lambda row: row.seq)  # calls finish in any order
        return results

    def told(self, answered: Sequence[FinishedCall], results: Sequence[StoredMessage]) -> tuple[tuple[Fact, ...], tuple[CallRecord, ...]]:
        """Calls with their results, as events and as records."""
        return tools_completed(self.turn.fence.turn_id, answered, results), self._records(answered, results)

    def _records(self, answered: Sequence[FinishedCall], results: Sequence[StoredMessage]) -> tuple[CallRecord, ...]:
        """What is kept of calls, with their results."""
        now_ms = self._clock.unix_ms()
        return tuple(self._record(one, result, now_ms) for one, result in zip(answered, results, strict=True))

    def _record(self, done: FinishedCall, result: StoredMessage, now_ms: int) -> CallRecord:
        outcome, output = done.outcome, content_text(result.message.content)
        cut_in_event = self.turn.fence.session_id is None and len(output) > MAX_EVENT_TEXT  # and there is no message that has it
        unrun = outcome.ended_as is CallStatus.REFUSED and not done.duration_ms
        record = record_of(
            done.call,
            seq=result.seq,
            status=outcome.ended_as,
            shown=self.rules.mask.shown(done.call),
            took=(None if unrun else now_ms - done.duration_ms, done.duration_ms),
        )
        return msgspec.structs.replace(record, toolset=outcome.toolset, whole=outcome.whole or (output if cut_in_event else None))

    def started(self, calls: Sequence[ToolCall]) -> tuple[Fact, ...]:
        """The events of calls that are about to run."""
        self.began_ms = self._clock.unix_ms()
        return tools_started(self.rules.mask.calls(calls))

    def repaired(self, step: machine.AfterReply) -> machine.AfterReply:
        """Calls by a name that is meant for one tool, and for no other, are calls of that tool."""
        if not isinstance(step, machine.RunTools) or all(call.name in self.rules.offered for call in step.calls):
            return step
        calls = tuple(rightly_named(call, self.rules.offered, known=self.traits) for call in step.calls)
        for call, meant in zip(step.calls, calls, strict=True):
            if call is not meant:
                logger.info("a call of %s is taken for one of %s", ascii(call.name[:64]), meant.name)
        return replace(step, calls=calls, message=msgspec.structs.replace(step.message, tool_calls=calls))

    def before_call(self) -> machine.BeforeCall:
        """Whether window and budget have room for the next call."""
        if self.does_not_fit:
            return machine.does_not_fit(self.state, self.budget, self.unsummarised)
        size = self.conversation.size()
        self.state, step = machine.before_call(self.state, self.budget, size, offers_tools=bool(self.tools))
        return step

    def completed(self, stored: StoredMessage, primary: RouteRef, said: str) -> MessageCompleted:
        """The event of a whole message; ``said`` is its text, with the parts that came before."""
        shown = self.rules.mask.calls(stored.message.tool_calls)
        stored = msgspec.structs.replace(stored, message=msgspec.structs.replace(stored.message, content=said, tool_calls=shown))
        return MessageCompleted(
            attempt=self.state.attempts,
            iteration=self.state.iteration,
            route=self.state.route or primary,
            message=message_view(stored, limit=MAX_EVENT_TEXT),
        )

    def _most_output(self, options: ModelOptions) -> int:
        wanted = (options.max_output_tokens or self._room.output_tokens) << options.doublings
        return wanted if options.output_cap is None else min(wanted, options.output_cap)

    def _options(self, input_tokens: int) -> ModelOptions:
        state, offers_tools = self.state, bool(self.tools)
        options = options_of(self.turn.request.options, state.iteration - state.retries)  # a call that was cut is asked for again
        exhausted = state.pressure is PressureLevel.EXHAUSTED
        cap = output_limit(state, self.budget, input_tokens, reserve=offers_tools and not exhausted)
        closing = exhausted and offers_tools
        if cap is None and not closing and not state.retries:
            return options
        return msgspec.structs.replace(
            options, output_cap=cap, doublings=state.retries, tool_choice="none" if closing else options.tool_choice
        )


def run_of(parts: LoopParts, turn: OpenTurn, working_set: Sequence[StoredMessage]) -> Run:
    """A turn as it begins, or goes on, here."""
    run = Run(
        turn,
        working_set,
        room=parts.model.room,
        toolbox=parts.toolbox,
        clock=parts.clock,
        thresholds=parts.settings.guardrails,
        share=parts.share,
        allowance=parts.allowance,
    )
    run.delegation = _delegation_of(run, parts)
    return run


def _delegation_of(run: Run, parts: LoopParts) -> Delegation | None:
    """How ``run`` delegates; ``None`` where it has no tool for it, or no session for its children to stand below."""
    if parts.children is None or DELEGATE_TOOL not in run.context.enabled or run.turn.fence.session_id is None:
        return None
    return Delegation(
        children=parts.children,
        toolbox=parts.toolbox,
        tools=tuple(spec for spec in run.tools if spec.name in run.context.enabled),
        traits=run.traits,
        model=run.turn.request.model or run.turn.model,
        depth=run.turn.request.depth,
        max_depth=parts.settings.max_delegation_depth,
        max_iterations=parts.settings.max_child_iterations,
    )
