"""What one turn's loop carries from step to step: the conversation as it grows, the machine's state, and the turn's limits."""

import secrets
from collections.abc import Sequence

import msgspec

from app.agent import machine
from app.agent.batch import Rules
from app.agent.budget import Allowance, Budget, output_limit, within_day
from app.agent.client_tools import ClientTools, options_of
from app.agent.conversation import Conversation
from app.agent.pausing import Waits, own_tools
from app.domain.compaction import Room, Thresholds
from app.domain.events import MAX_EVENT_TEXT, MessageCompleted, message_view
from app.domain.guardrails import GuardrailThresholds
from app.domain.ids import MessageId, make_id
from app.domain.messages import Message, StoredMessage, ToolSpec
from app.domain.model import ModelOptions, ModelReply, ModelRequest, RouteRef
from app.domain.openings import OpenTurn
from app.domain.tools import FinishedCall, ToolContext
from app.domain.turns import Completed, Failed, PressureLevel
from app.ports import Clock, Toolbox

_TOOLS = msgspec.json.Decoder(tuple[ToolSpec, ...])


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
        allowance: Allowance | None = None,
    ) -> None:
        request = turn.request
        self.turn = turn
        self.state = turn.state
        self.over = False
        self.does_not_fit = False
        """The conversation fits its window no more, whatever leaves it."""
        self.unsummarised: str | None = None
        """Why, when it is only that there is no summary yet."""
        self.uncompacted: Completed | Failed | None = None
        """What a turn that only compacts ends with when nothing came of it."""
        self.client = ClientTools(toolbox, request.client_tools, waits=request.may_wait)
        traits = toolbox.traits()
        own = own_tools(_TOOLS.decode(turn.tools), traits, may_wait=request.may_wait)
        self.tools = self.client.offered(own)
        self.conversation = Conversation(
            working_set, turn.kept, system_prompt=turn.system_prompt, room=room, tools_bytes=len(turn.tools) + self.client.size
        )
        self._budget = Budget(iterations=request.max_iterations, tokens=request.max_tokens, cost_usd=request.max_cost_usd)
        self._allowance = allowance
        self._room = room
        self.rules = Rules(
            thresholds=thresholds,
            hard_stop=thresholds.stops(background=request.background),
            traits=traits,
            offered=frozenset(spec.name for spec in self.tools),
            waits=Waits(allowed=request.may_wait, client=self.client.names, own=self.client.enabled(own), traits=traits),
        )
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
    def budget(self) -> Budget:
        """What the turn may use: its own limits, lowered to what is left of its tenant's day now."""
        return self._budget if self._allowance is None else within_day(self._budget, self._allowance.share())

    def request(self) -> ModelRequest:
        """What the model is shown next."""
        conversation = self.conversation
        input_tokens = conversation.size()
        options = self._options(input_tokens)
        if self._allowance is not None:
            self._allowance.hold(input_tokens + self._most_output(options))
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

    def before_call(self) -> machine.BeforeCall:
        """Whether window and budget have room for the next call."""
        if self.does_not_fit:
            return machine.does_not_fit(self.state, self.budget, self.unsummarised)
        size = self.conversation.size()
        self.state, step = machine.before_call(self.state, self.budget, size, offers_tools=bool(self.tools))
        return step

    def completed(self, stored: StoredMessage, primary: RouteRef, said: str) -> MessageCompleted:
        """The event of a whole message; ``said`` is its text, with the parts that came before."""
        stored = msgspec.structs.replace(stored, message=msgspec.structs.replace(stored.message, content=said))
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
