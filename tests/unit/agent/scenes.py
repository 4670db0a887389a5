"""Turns over a model that says what a test wants: played to their end, with everything that came of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from app.agent.allowance import Allowance, Share
from app.agent.budget import Budget, DayAllowance
from app.agent.facts import End, LoopFact, Record
from app.agent.loop import AgentLoop
from app.agent.run import LoopParts
from app.clock import SystemClock
from app.context import history
from app.context.render import View, shown
from app.domain.compaction import Room
from app.domain.errors import ModelError
from app.domain.events import Fact
from app.domain.guardrails import GuardrailThresholds, ToolTraits
from app.domain.ids import MessageId, ProviderId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.messages import Message, Role, StoredMessage, ToolCall, ToolSpec
from app.domain.model import NO_OPTIONS, ApiMode, FinishReason, ModelChunk, ModelReply, ModelRequest, RouteRef, Usage
from app.domain.openings import NOTHING_KEPT, OpenTurn
from app.domain.tenants import Provider, Route, TenantSettings
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.turns import Compaction, CompletedReason, Fence, MachineState, TurnRequest
from app.ports import ModelClient, Toolbox
from app.providers.modes.anthropic_messages import encoder as messages_mode
from app.providers.modes.chat_completions import encoder as chat_mode
from app.providers.modes.responses import encoder as responses_mode
from app.simulator.chat_rules import chat_problems
from app.simulator.messages_rules import messages_problems
from app.simulator.responses_rules import responses_problems
from tests.fakes.memories import InMemoryMemories
from tests.fakes.scripted_model import PRIMARY, ROOM
from tests.fakes.sessions import InMemorySessions
from tests.fakes.tooling.todo_store import MemoryTodoStore

SESSION = SessionId("sess_1")
TURN = TurnId("turn_1")
INPUT_SEQ = 7
SPECS = tuple(ToolSpec(name=name, description="Works.", parameters={"type": "object"}) for name in ("lookup", "poll", "save"))
TRAITS = {"lookup": ToolTraits(read_only=True), "poll": ToolTraits(read_only=True, polling=True)}
NO_GUARDRAILS: Final = GuardrailThresholds(hard_stop=False)

Said: TypeAlias = ModelReply | ModelError | asyncio.Event
"""What one call brings: a reply (its attempt is put right), an error, or silence."""


def says(
    text: str = "",
    *calls: ToolCall,
    finish: FinishReason | None = None,
    used: tuple[int, int] = (10, 2),
    cost_usd: float | None = None,
    calls_cut: bool = False,
    may_grow: bool = True,
    bad: dict[str, str] | None = None,
    reasoning: str = "",
) -> ModelReply:
    """A reply; ``used`` are tokens in and out."""
    return ModelReply(
        attempt=1,
        route=PRIMARY,
        text=text,
        reasoning=reasoning,
        tool_calls=calls,
        bad_arguments=bad or {},
        finish=finish or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP),
        usage=Usage(input_tokens=used[0], output_tokens=used[1]),
        cost_usd=cost_usd,
        calls_cut=calls_cut,
        may_grow=may_grow,
    )


def cut(text: str, **more: Any) -> ModelReply:
    """A text that was cut at the output limit."""
    return says(text, finish=FinishReason.LENGTH, **more)


def cut_call(text: str = "", **more: Any) -> ModelReply:
    """A reply that was cut in the middle of a call."""
    return says(text, finish=FinishReason.LENGTH, calls_cut=True, **more)


def asks(*names: str, q: object = "a", text: str = "") -> ModelReply:
    """A reply with calls of these tools, each with an id of its own."""
    return says(text, *(ToolCall(f"{name}-{index}-{q}", name, json.dumps({"q": q})) for index, name in enumerate(names)))


def share_of(turn: OpenTurn) -> Share:
    """A turn's own budget, which it shares with nobody."""
    request = turn.request
    return Allowance(Budget(iterations=request.max_iterations, tokens=request.max_tokens, cost_usd=request.max_cost_usd)).root()


class TalkingModel(ModelClient):
    """Says one thing after the other, the last one for ever. ``requests`` are what it was asked."""

    def __init__(self, *said: Said, room: Room = ROOM, route: RouteRef = PRIMARY) -> None:
        self._said = said
        self._room = room
        self._route = route
        self.requests: list[ModelRequest] = []
        self.waiting = asyncio.Event()
        """Set once it is silent."""

    @property
    @override
    def primary(self) -> RouteRef:
        return self._route

    @property
    @override
    def room(self) -> Room:
        return self._room

    @override
    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        return None

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        said = self._said[min(len(self.requests), len(self._said) - 1)]
        self.requests.append(request)
        match said:
            case ModelError():
                raise said
            case asyncio.Event():
                self.waiting.set()
                await said.wait()
            case ModelReply():
                yield (msgspec.structs.replace(said, attempt=request.first_attempt),)


class Workbench(Toolbox):
    """Answers every call by ``work``: a text, or an error of this text."""

    def __init__(self, work: Callable[[ToolCall], str | Exception] = lambda call: f"{call.id} done") -> None:
        self._work = work
        self.ran: list[str] = []

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return ()

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        return SPECS

    @override
    def traits(self) -> Mapping[str, ToolTraits]:
        return TRAITS

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        self.ran.append(call.name)
        done = self._work(call)
        return ToolOutcome(output=str(done), is_error=isinstance(done, Exception))


@dataclass(kw_only=True)
class Played:
    """A turn that was played to its end."""

    model: TalkingModel
    facts: list[LoopFact]
    before: list[StoredMessage]

    @property
    def end(self) -> End:
        """The end, of which there is one."""
        (end,) = (fact for fact in self.facts if isinstance(fact, End))
        assert self.facts[-1] is end
        return end

    @property
    def events(self) -> list[Fact]:
        """Every event in order."""
        return [event for fact in self.facts if isinstance(fact, Record | End) for event in fact.events]

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def rows(self) -> list[StoredMessage]:
        """The session's rows as they are stored in the end, in order; what is forgotten is archived."""
        added = [message for fact in self.facts if isinstance(fact, Record | End) for message in fact.messages]
        rows = [*self.before, *added]
        gone = {seq for change in self.compactions for seq in change.result.leaving_seqs}
        if self.end.forget:
            last = {message.seq for message in self.end.messages}
            gone |= {row.seq for row in rows if row.turn_id == TURN and row.seq not in last}
        rows = [msgspec.structs.replace(row, archived=True) if row.seq in gone else row for row in rows]
        return sorted(rows, key=lambda row: row.seq)

    @property
    def compactions(self) -> list[Compaction]:
        """What was changed by compactions."""
        return [fact.compaction for fact in self.facts if isinstance(fact, Record) and fact.compaction is not None]

    @property
    def context(self) -> tuple[Message, ...]:
        """What the model is shown in the next turn, as stored."""
        return tuple(row.message for row in self.rows if not row.archived)

    @property
    def transcript(self) -> list[tuple[Role, Any]]:
        """What people are shown."""
        return [(row.message.role, row.message.content) for row in self.rows if row.message.kind == "said"]

    @property
    def results(self) -> list[str]:
        """The results of the turn's calls in order."""
        return [str(row.message.content) for row in self.rows if row.message.role is Role.TOOL]

    @property
    def following(self) -> ModelRequest:
        """The first request of the next turn, in its messages; an end without an answer is closed as the runner does it."""
        note = None if self.end.forget else history.closing_note(self.end.outcome, keep_text=False)
        view = View(self.model.room.window)
        context = [shown(row, view) for row in self.rows if not row.archived]
        closed = (*context, *([] if note is None else [note]), Message(role=Role.USER, content="And now?"))
        options = msgspec.structs.replace(self.model.requests[-1].options, tool_choice=None) if self.model.requests else NO_OPTIONS
        last = self.model.requests[-1] if self.model.requests else ModelRequest(system="", messages=(), tools=SPECS, first_attempt=1)
        return msgspec.structs.replace(last, messages=history.repair(closed), options=options)

    def check(self) -> None:
        """Each request begins with all of the one before, and so will that of the next turn; no provider refuses any of them."""
        requests = [*self.model.requests, self.following]
        for earlier, later in pairwise(requests if not self.end.forget else requests[:-1]):
            assert later.messages[: len(earlier.messages)] == earlier.messages or self.compactions
        if self.end.outcome.reason is not CompletedReason.TOOL_CALLS:
            assert history.unanswered((row.seq, row.message) for row in self.rows if not row.archived) == []
        assert [problem for request in requests for problem in wire_problems(request)] == []


def opening() -> list[StoredMessage]:
    """The rows before the loop begins: an earlier exchange and the turn's input."""
    earlier = [Message(role=Role.USER, content="hi"), Message(role=Role.ASSISTANT, content="Hello.")]
    rows = [*enumerate(earlier, 1), (INPUT_SEQ, Message(role=Role.USER, content="go"))]
    return [
        StoredMessage(
            id=MessageId(f"msg_{seq}"),
            session_id=SESSION,
            seq=seq,
            turn_id=TURN if seq == INPUT_SEQ else None,
            message=message,
            archived=False,
            created_at_ms=0,
        )
        for seq, message in rows
    ]


@dataclass(kw_only=True)
class Scene:
    """A turn to be played. ``work`` answers calls."""

    max_iterations: int = 90
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    background: bool = False
    may_wait: bool = False
    max_output_tokens: int | None = None
    tool_choice: str | None = None
    guardrails: GuardrailThresholds = NO_GUARDRAILS
    tools: tuple[ToolSpec, ...] = SPECS
    client_tools: tuple[ToolSpec, ...] = ()
    state: MachineState = field(default_factory=MachineState)
    rows: list[StoredMessage] = field(default_factory=opening)
    bench: Workbench = field(default_factory=Workbench)
    summariser: ModelClient | None = None
    allowance: DayAllowance | None = None
    room: Room = ROOM

    def begin(self, model: TalkingModel) -> AsyncGenerator[LoopFact, None]:
        """The turn's facts."""
        request = TurnRequest(
            input="go",
            max_iterations=self.max_iterations,
            max_tokens=self.max_tokens,
            max_cost_usd=self.max_cost_usd,
            background=self.background,
            client_tools=self.client_tools,
            may_wait=self.may_wait,
        )
        options = msgspec.structs.replace(request.options, max_output_tokens=self.max_output_tokens, tool_choice=self.tool_choice)
        turn = OpenTurn(
            fence=Fence(turn_id=TURN, session_id=SESSION, owner=ReplicaId("rep_1"), generation=1),
            tenant_id=TenantId("ten_1"),
            request=msgspec.structs.replace(request, options=options),
            state=self.state,
            last_seq=2,
            next_message_seq=max(row.seq + 1 + len(row.message.tool_calls) for row in self.rows),
            system_prompt="Be kind.",
            tools=msgspec.json.encode(self.tools),
            model=None,
            kept=NOTHING_KEPT,
            keep_interrupted_text=False,
            cancel_reason=None,
            resumed=False,
        )
        clock = SystemClock()
        parts = LoopParts(
            model=model,
            summariser=self.summariser or model,
            toolbox=self.bench,
            clock=clock,
            settings=TenantSettings(guardrails=self.guardrails),
            todos=MemoryTodoStore(),
            memory=InMemoryMemories(InMemorySessions(clock)),
            allowance=self.allowance,
            share=share_of(turn),
        )
        return AgentLoop(parts).run(turn, self.rows)

    async def play(self, *said: Said) -> Played:
        """Play it to its end and check what must always hold."""
        model = TalkingModel(*said, room=self.room)
        facts = [fact async for fact in self.begin(model)]
        played = Played(model=model, facts=facts, before=opening())
        played.check()
        return played


def wire_problems(request: ModelRequest) -> list[str]:
    """What strict and picky providers of the three API modes have against a request."""
    checks = (
        (ApiMode.CHAT_COMPLETIONS, chat_mode.encode_request, chat_problems),
        (ApiMode.RESPONSES, responses_mode.encode_request, responses_problems),
        (ApiMode.ANTHROPIC_MESSAGES, messages_mode.encode_request, messages_problems),
    )
    problems: list[str] = []
    for mode, encode, rules in checks:
        provider = Provider(id=ProviderId("prov_1"), name="p1", base_url="http://sim/v1", api_mode=mode, api_key="sk-test", headers={})
        body = json.loads(encode(Route(provider=provider, model="m-test"), request))
        problems += [f"{mode.value}: {problem}" for problem in rules(body, picky=True)]
    return problems
