"""Turns whose runner is interrupted, dies or leaves at a chosen moment, over stores in memory; whoever comes next goes on with them.

A moment is a place where a runner waits for something outside: before and after each commit, in each model call, in each tool call.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
from typing_extensions import override

from app.domain.compaction import Room
from app.domain.errors import LeaseLostError
from app.domain.ids import ReplicaId, SessionId, TurnId
from app.domain.messages import Message, Role, ToolCall, canonical_json
from app.domain.model import MessageDelta, ModelChunk, ModelReply, ModelRequest, RouteRef
from app.domain.openings import NewTurn, OpenTurn
from app.domain.sessions import NewSession
from app.domain.tenants import Purpose, Tenant
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.turns import Commit, Committed, InterruptReason, TurnRequest, TurnState
from app.ports import ModelClient, ModelClients, Toolbox, Toolboxes
from app.turns.children import Children
from app.turns.day_shares import DayShares
from app.turns.runner import RunnerParts, TurnRunner
from tests.fakes.kanban import InMemoryKanban
from tests.fakes.memories import InMemoryMemories
from tests.fakes.scripted_model import PRIMARY
from tests.fakes.tooling.todo_store import MemoryTodoStore
from tests.fakes.turns import InMemoryTurns
from tests.integration.store.builders import an_id
from tests.unit.agent.scenes import SPECS, Said, TalkingModel, Workbench
from tests.unit.turns.stage import TTL_S, A, B, Replica, Stage

Event: TypeAlias = Literal["interrupt", "crash", "leave"]
LONGEST = 60
"""Runners that one turn may have before the test gives up."""


class Fate:
    """What happens at which moment, counted from 1; afterwards ``moments`` says how many there were."""

    def __init__(self, plan: Mapping[int, Event]) -> None:
        self._plan = plan
        self.moments = 0
        self.dead = False
        """The process is gone: nothing that its runner does counts any more."""
        self.leaving = False
        self.runner: TurnRunner | None = None
        self.task: asyncio.Task[None] | None = None

    async def pass_moment(self) -> None:
        """Let happen what is due."""
        self.moments += 1
        match self._plan.get(self.moments):
            case "crash":
                self.dead = True
            case "leave":
                self.leaving = True
            case "interrupt" if self.task is not None and self.runner is not None and not self.dead:
                self.runner.interrupt_reason = InterruptReason.REQUESTED
                self.task.cancel()
                self.task = None  # a runner is interrupted once only
            case _:
                pass
        await asyncio.sleep(0)

    def renew(self) -> None:
        """Another process goes on."""
        self.dead = self.leaving = False
        self.runner = self.task = None


class FatedTurns(InMemoryTurns):
    """Commits of a dead process do not arrive, or their answer does not."""

    fate = Fate({})

    @override
    async def commit(self, commit: Commit) -> Committed:
        await self._pass()
        committed = await super().commit(commit)
        await self._pass()
        return committed

    async def _pass(self) -> None:
        if not self.fate.dead:
            await self.fate.pass_moment()
        if self.fate.dead:
            raise LeaseLostError


class FatedModel(TalkingModel):
    """Shows its text before the reply, with a moment before each of them."""

    def __init__(self, fate: Fate, *said: Said, room: Room, route: RouteRef = PRIMARY) -> None:
        super().__init__(*said, room=room, route=route)
        self._fate = fate

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        await self._fate.pass_moment()
        async for batch in super().stream(request):
            reply = batch[-1]
            if isinstance(reply, ModelReply) and reply.text:
                yield (MessageDelta(request.first_attempt, reply.text),)
                await self._fate.pass_moment()
            yield batch


class FatedBench(Workbench, Toolboxes):
    """A workbench with a moment before and after each call; ``begun`` are the ids of the calls that began."""

    def __init__(self, fate: Fate, work: Callable[[ToolCall], str | Exception] = lambda call: f"{call.id} done") -> None:
        super().__init__(work)
        self.fate = fate
        self.begun: list[str] = []

    @override
    def for_tenant(self, tenant: Tenant) -> Toolbox:
        return self

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        self.begun.append(call.id)
        await self.fate.pass_moment()
        outcome = await super().call(call, context)
        await self.fate.pass_moment()
        return outcome


@dataclass(frozen=True, slots=True)
class Chains(ModelClients):
    """One chain for turns, one for summaries."""

    chat: ModelClient
    summariser: ModelClient

    @override
    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        return self.chat

    @override
    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        return self.summariser


@dataclass(slots=True)
class World:
    """Two replicas over one storage, and a session."""

    stage: Stage = field(default_factory=Stage)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stage = self.stage
        stage.turns = FatedTurns(stage.sessions, stage.replicas, stage.clock, ttl_s=TTL_S)
        self.replicas = {name: stage.replica(name) for name in (A, B)}

    async def session(self, messages: Sequence[Message] = ()) -> SessionId:
        """A session that begins with ``messages``."""
        session_id = SessionId(an_id("sess"))
        await self.stage.sessions.create(
            NewSession(
                id=session_id,
                tenant_id=self.stage.tenant.id,
                system_prompt="Be kind.",
                model=None,
                toolsets=(),
                tools=canonical_json(msgspec.to_builtins(SPECS)).encode(),
                user=None,
                keep_interrupted_text=False,
                metadata={},
                messages=tuple((f"msg_{number}", message) for number, message in enumerate(messages)),
                idempotency_key=None,
                fingerprint=b"",
            )
        )
        return session_id

    async def play(self, session_id: SessionId, request: TurnRequest, chains: ModelClients, tools: FatedBench) -> TurnId:
        """One turn to its end, whoever it takes."""
        turns, fate = self.stage.turns, tools.fate
        assert isinstance(turns, FatedTurns)
        turns.fate = fate
        for replica in self.replicas.values():
            await replica.beat()
        new: NewTurn = msgspec.structs.replace(self.stage.new_turn(session_id), request=request)
        opened = await turns.open(new)
        assert isinstance(opened, OpenTurn)
        turn, at, announced, lost = opened, A, True, False
        for _ in range(LONGEST):
            runner = fate.runner = TurnRunner(self._parts(at, chains, tools), turn, announced=announced)
            if lost:
                await runner.end_lost()
            else:
                task = fate.task = asyncio.create_task(runner.run(self.stage.tenant))
                await task
            row = turns.rows[new.id]
            if row.state.terminal:
                return new.id
            fate.renew()
            at = B if at == A else A
            lost = row.state is TurnState.RUNNING
            (turn,) = await self._taken_over(at) if lost else await turns.claim(at, 1)
            announced = lost
        raise AssertionError("the turn never ended")

    async def _taken_over(self, at: ReplicaId) -> list[OpenTurn]:
        await self.stage.clock.advance(TTL_S + 1)
        await self.replicas[at].beat()
        return await self.stage.turns.take_over(at, [], 10, beat=self.replicas[at].lease.stamp)

    def _parts(self, at: ReplicaId, chains: ModelClients, tools: FatedBench) -> RunnerParts:
        stage, replica = self.stage, self.replicas[at]
        return RunnerParts(
            turns=stage.turns,
            messages=stage.messages,
            tenants=stage.tenants,
            models=chains,
            toolboxes=tools,
            todos=MemoryTodoStore(),
            memory=InMemoryMemories(stage.sessions),
            log=replica.log,
            lease=replica.lease,
            clock=stage.clock,
            counters=replica.counters,
            should_hand_over=lambda: tools.fate.leaving,
            usage=stage.usage,
            shares=DayShares(),
            action_timeout_s=60.0,
            calls_at_once=32,
            children=Children(
                sessions=stage.sessions,
                turns=stage.turns,
                kanban=InMemoryKanban(stage.sessions, stage.clock),
                models=chains,
                clock=stage.clock,
                replica=at,
            ),
        )


def exchanges(count: int) -> tuple[Message, ...]:
    """So many questions with answers, of about 300 tokens each."""
    return tuple(
        Message(role=role, content=f"{role.value} {number} {'w' * 600}") for number in range(count) for role in (Role.USER, Role.ASSISTANT)
    )
