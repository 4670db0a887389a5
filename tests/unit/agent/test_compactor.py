"""A compaction as facts, over scripted models."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from typing_extensions import override

from app.agent.compactor import Compactor, CompactorParts
from app.agent.facts import LoopFact, Record
from app.agent.run import Run
from app.context.carry import todo_note
from app.context.compaction import calibration
from app.domain.compaction import CompactionReason, Fruitless, Room, Thresholds
from app.domain.conversation_events import CompactionCompleted, CompactionFailed, CompactionStarted
from app.domain.errors import ContextOverflowError, ModelUnavailableError, UnavailableError
from app.domain.guardrails import GuardrailThresholds
from app.domain.ids import ReplicaId, SessionId, TenantId, TurnId
from app.domain.memory import Memory
from app.domain.messages import Message, MessageKind, StoredMessage
from app.domain.model import AttemptAccepted, FailureReason, MessageDelta, ReasoningDelta, RouteRef, RouteUse, Usage
from app.domain.openings import Kept, OpenTurn
from app.domain.turns import Completed, CompletedReason, Failed, FailedReason, Fence, MachineState, TurnRequest
from app.ports import MemoryStore, TodoStore
from tests.fakes.clock import HandClock
from tests.fakes.scripted_model import PRIMARY, Script, ScriptedModel, reply
from tests.fakes.tools import InMemoryToolbox
from tests.unit.agent.scenes import share_of
from tests.unit.context.rows import said, stored, user

ROOM = Room(4_000, 400)
TEXT = "## Goal\nThe user counts upwards.\n## Facts\nAll of it."
GONE = UnavailableError("storage_unavailable", "The database is away.", retry_after_s=1)


class Route(ScriptedModel):
    """A scripted model with a name and a window of its own."""

    def __init__(self, name: str, room: Room, *scripts: Script) -> None:
        super().__init__(*scripts)
        self._name = name
        self._room = room

    @property
    @override
    def primary(self) -> RouteRef:
        return RouteRef(provider=self._name, model="m-test")

    @property
    @override
    def room(self) -> Room:
        return self._room


class Stores(TodoStore, MemoryStore):
    """A todo list and a memory that may be away."""

    def __init__(self, todos: bytes | None = None, *, away: bool = False) -> None:
        self._todos = todos
        self._away = away

    @override
    async def read(self, session_id: SessionId) -> bytes | None:
        if self._away:
            raise GONE
        return self._todos

    @override
    async def write(self, session_id: SessionId, items: bytes) -> None:
        self._todos = items

    @override
    async def of_user(self, tenant_id: TenantId, user: str | None) -> Memory:
        return Memory()

    @override
    async def of_session(self, tenant_id: TenantId, session_id: SessionId) -> tuple[str | None, Memory]:
        if self._away:
            raise GONE
        return None, Memory()

    @override
    async def replace(self, tenant_id: TenantId, user: str | None, memory: Memory) -> bool:
        return True


def a_run(messages: Sequence[Message], clock: HandClock, kept: Kept | None = None, *, max_tokens: int | None = None) -> Run:
    rows = stored(messages)
    turn = OpenTurn(
        fence=Fence(turn_id=TurnId("turn_1"), session_id=SessionId("sess_1"), owner=ReplicaId("rep_1"), generation=1),
        tenant_id=TenantId("ten_1"),
        request=TurnRequest(input="go", max_tokens=max_tokens),
        state=MachineState(),
        last_seq=2,
        next_message_seq=len(rows) + 1,
        system_prompt="Be kind.",
        tools=b"[]",
        model=None,
        kept=kept or Kept(),
        keep_interrupted_text=False,
        cancel_reason=None,
        resumed=False,
    )
    return Run(turn, rows, room=ROOM, toolbox=InMemoryToolbox({}), clock=clock, thresholds=GuardrailThresholds(), share=share_of(turn))


def compactor(summariser: Route, clock: HandClock, stores: Stores | None = None) -> Compactor:
    own = stores or Stores()
    model = Route("chat", ROOM)
    return Compactor(CompactorParts(model=model, summariser=summariser, clock=clock, thresholds=Thresholds(), todos=own, memory=own))


def full(turns: int = 13) -> list[Message]:
    """A conversation that is due."""
    return [message for number in range(turns) for message in (user(f"{number} " + "w" * 1_000), said("yes"))] + [user("NEWEST")]


async def facts_of(compactor: Compactor, run: Run) -> list[Record]:
    facts: list[LoopFact] = [fact async for fact in compactor.before_call(run, turn_starts=True)]
    records = [fact for fact in facts if isinstance(fact, Record)]
    assert len(records) == len(facts)
    return records


def wide(*scripts: Script) -> Route:
    return Route("summaries", Room(64_000, 1_000), *scripts)


def failure(reason: FailureReason = FailureReason.SERVER_ERROR) -> ModelUnavailableError:
    return ModelUnavailableError(reason, "It said no.")


async def test_a_conversation_that_fits_is_left_alone() -> None:
    clock = HandClock()
    run = a_run([user("hello")], clock)
    assert await facts_of(compactor(wide(), clock), run) == []
    assert not run.does_not_fit


async def test_everything_that_changes_is_one_fact() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    items = msgspec.json.encode([{"id": "1", "content": "Boil", "status": "pending"}])
    started, completed = await facts_of(compactor(wide([[reply(TEXT)]]), clock, Stores(items)), run)
    (begin,), (end,) = started.events, completed.events
    assert isinstance(begin, CompactionStarted)
    assert isinstance(end, CompactionCompleted)
    assert started.compaction is None
    assert not started.boundary
    change = completed.compaction
    assert change is not None
    assert completed.boundary, "a turn may be handed over here"
    assert completed.context is not None
    assert change.id == end.summary_id
    assert change.result.summary == TEXT
    assert end.archived_messages == len(change.result.archived_seqs)
    assert change.result.archived_seqs == tuple(sorted(change.result.archived_seqs))
    assert begin.tokens_before == end.tokens_before > 3_000 > end.tokens_after == run.conversation.size()
    (note,) = completed.messages
    assert note.message.kind is MessageKind.NOTE
    assert "Boil" in str(note.message.content)
    assert (end.usage, change.usage) == (run.state.usage, run.state.usage)
    assert completed.state.attempts == 1
    assert "NEWEST" in str(run.request().messages[-1].content)


async def test_an_interrupt_during_the_call_changes_nothing() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    before, state = list(run.conversation.rows), run.conversation.state
    summariser = wide([asyncio.Event()])
    facts = compactor(summariser, clock).before_call(run, turn_starts=True)
    await anext(facts)
    task = asyncio.ensure_future(anext(facts))
    await summariser.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await facts.aclose()
    assert summariser.closed == 1
    assert (run.conversation.rows, run.conversation.state, run.state) == (before, state, MachineState())


async def test_what_a_summary_used_until_an_interrupt_is_counted() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    begun: Script = [[AttemptAccepted(1, PRIMARY)], [MessageDelta(1, "The user"), ReasoningDelta(1, "hm")], asyncio.Event()]
    summariser = wide(begun)
    facts = compactor(summariser, clock).before_call(run, turn_starts=True)
    await anext(facts)
    task = asyncio.ensure_future(anext(facts))
    await summariser.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await facts.aclose()
    usage = Usage(input_tokens=summariser.requests[0].input_tokens, output_tokens=3)
    assert run.state == MachineState(attempts=1, usage=usage, routes=(RouteUse(route=PRIMARY, attempts=1, usage=usage),))


async def test_what_a_route_with_a_smaller_window_refuses_is_sent_again_in_pieces() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    refusal = ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "too long", window=3_000)
    summariser = wide([refusal], *[[[reply(TEXT, attempt=number)]] for number in range(9)])
    _, completed = await facts_of(compactor(summariser, clock), run)
    assert completed.compaction is not None
    _, *pieces = summariser.requests
    assert len(pieces) > 1
    assert all(piece.input_tokens + 1_000 <= 3_000 for piece in pieces)


async def test_a_refusal_that_names_no_smaller_window_is_a_failure() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    refusal = ContextOverflowError(FailureReason.CONTEXT_OVERFLOW, "too long", window=None)
    _, failed = await facts_of(compactor(wide([refusal]), clock), run)
    assert isinstance(failed.events[0], CompactionFailed)


async def test_a_failed_summary_cools_down_and_the_second_one_lets_it_be_cut() -> None:
    clock = HandClock()
    run = a_run(full(14), clock)
    rows = list(run.conversation.rows)
    assert run.conversation.size() > ROOM.most
    work = compactor(wide([failure()], [failure()]), clock)
    _, failed = await facts_of(work, run)
    assert failed.context is not None
    assert failed.context.fruitless == Fruitless(failures=1, cool_until_ms=clock.unix_ms() + 60_000)
    assert run.conversation.rows == rows
    assert run.does_not_fit
    assert run.unsummarised is not None
    assert run.uncompacted == Failed(reason=FailedReason.PROVIDER_UNAVAILABLE, detail="It said no.", retryable=True)

    later = a_run(full(14), clock, Kept(context=failed.context))
    assert await facts_of(work, later) == [], "it cools down"
    assert later.does_not_fit

    await clock.advance(60.0)
    last = a_run(full(14), clock, Kept(context=failed.context))
    _, again, trimmed = await facts_of(work, last)
    assert isinstance(again.events[0], CompactionFailed)
    assert trimmed.compaction is not None
    assert trimmed.compaction.result.summary is None
    assert not last.does_not_fit
    assert last.conversation.size() <= ROOM.most


async def test_stores_that_are_away_stop_nothing() -> None:
    clock = HandClock()
    run = a_run(full(), clock, Kept(memory="tea"))
    _, completed = await facts_of(compactor(wide([[reply(TEXT)]]), clock, Stores(away=True)), run)
    assert completed.compaction is not None
    assert completed.compaction.memory == "tea"
    assert completed.messages == ()


async def test_on_demand_it_says_why_nothing_came_of_it() -> None:
    clock = HandClock()
    run = a_run([user("hello")], clock, Kept(summary="old"))
    assert [fact async for fact in compactor(wide(), clock).on_demand(run)] == []
    assert run.uncompacted == Completed(reason=CompletedReason.NOTHING_TO_COMPACT, output="old")

    refused = a_run(full(), clock)
    _, failed = [fact async for fact in compactor(wide([[reply("I'm sorry, no.")]]), clock).on_demand(refused)]
    assert isinstance(failed, Record)
    assert isinstance(refused.uncompacted, Failed)
    assert refused.uncompacted.reason is FailedReason.INVALID_RESPONSE


async def test_on_demand_it_is_not_handed_over() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    _, completed = [fact async for fact in compactor(wide([[reply(TEXT)]]), clock).on_demand(run)]
    assert isinstance(completed, Record)
    assert not completed.boundary
    assert run.uncompacted is None


async def test_refusals_of_one_request_are_answered_twice() -> None:
    clock = HandClock()
    run = a_run([user("a" * 3_000), said("yes"), user("b" * 3_000), said("yes"), user("NEWEST")], clock)
    work = compactor(wide(*[[[reply(TEXT)]]] * 3), clock)
    kinds = []
    for _ in range(3):
        facts = [fact async for fact in work.after_refusal(run, 1_500)]
        kinds.append(len(facts))
        assert run.conversation.size() <= 1_500 or run.does_not_fit
    assert kinds[0] == 2
    assert kinds[-1] == 0
    assert run.does_not_fit
    assert run.state.overflows == 3


async def test_a_third_refusal_in_a_row_is_the_end_whatever_could_still_leave() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    run.state = msgspec.structs.replace(run.state, overflows=2)
    assert [fact async for fact in compactor(wide(), clock).after_refusal(run, 1_500)] == []
    assert run.does_not_fit


def rows_of(run: Run) -> list[StoredMessage]:
    return run.conversation.rows


async def test_the_latch_cuts_at_the_second_threshold_alone() -> None:
    clock = HandClock()
    state = msgspec.structs.replace(Kept().context, fruitless=Fruitless(count=2, preflight=True), mark=calibration(None))
    run = a_run(full(), clock, Kept(context=state))
    (trimmed,) = await facts_of(compactor(wide(), clock), run)
    (event,) = trimmed.events
    assert isinstance(event, CompactionCompleted)
    assert (event.reason, event.summary_id, event.memory) == (CompactionReason.GATEWAY, None, "off")
    assert rows_of(run)[-1].message == user("NEWEST")


def open_items(*contents: str) -> bytes:
    return msgspec.json.encode([{"id": content, "content": content, "status": "pending"} for content in contents])


def notes_of(run: Run) -> list[str]:
    """The texts of the notes that the model is shown."""
    return [str(row.message.content) for row in rows_of(run) if row.message.kind is MessageKind.NOTE]


async def test_the_todo_list_is_shown_once_as_it_is_now() -> None:
    clock = HandClock()
    run = a_run(full(), clock)
    await facts_of(compactor(wide([[reply(TEXT)]]), clock, Stores(open_items("Boil", "Peel"))), run)
    (first,) = notes_of(run)
    assert "Boil" in first
    work = compactor(wide(*[[[reply(TEXT)]]] * 2), clock, Stores(open_items("Peel")))
    run.place(said("yes"))
    run.place(user("AND NOW?"))
    _, again = [fact async for fact in work.on_demand(run)]
    assert isinstance(again, Record)
    assert again.compaction is not None
    (second,) = notes_of(run)
    assert "Boil" not in second
    left = again.compaction.result
    assert not set(left.archived_seqs) & set(left.outdated_seqs)
    assert not {row.seq for row in rows_of(run)} & set(left.leaving_seqs)


async def test_a_note_of_the_todo_list_that_stays_behind_the_cut_is_replaced() -> None:
    clock = HandClock()
    known = todo_note(msgspec.json.encode([{"id": "1", "content": "Old", "status": "pending"}]), ROOM.window)
    assert known is not None
    run = a_run([*full(), known], clock)
    _, completed = await facts_of(compactor(wide([[reply(TEXT)]]), clock, Stores(open_items("New"))), run)
    assert completed.compaction is not None
    assert completed.compaction.result.outdated_seqs == (28,)
    assert completed.compaction.result.last_seq == 25, "the summary does not stand for the note"
    (shown,) = notes_of(run)
    assert "New" in shown


async def test_a_hard_cut_shows_the_todo_list_again() -> None:
    clock = HandClock()
    state = msgspec.structs.replace(Kept().context, fruitless=Fruitless(count=2))
    run = a_run(full(), clock, Kept(context=state))
    (trimmed,) = await facts_of(compactor(wide(), clock, Stores(open_items("Boil"))), run)
    (note,) = trimmed.messages
    assert "Boil" in str(note.message.content)
    assert rows_of(run)[-1] is note
    assert run.conversation.size() <= ROOM.most


async def test_what_the_last_call_used_is_forgotten_with_the_rows() -> None:
    clock = HandClock()
    latched = msgspec.structs.replace(Kept().context, fruitless=Fruitless(count=2))
    for kept in (Kept(), Kept(context=latched)):
        run = a_run(full(), clock, kept)
        run.state = msgspec.structs.replace(run.state, last_call_tokens=3_400)
        *_, completed = await facts_of(compactor(wide([[reply(TEXT)]]), clock), run)
        assert completed.state.last_call_tokens == run.conversation.size() < 3_000


async def test_a_refusal_that_one_row_left_for_is_answered() -> None:
    clock = HandClock()
    run = a_run([user("a" * 3_000), user("NEWEST")], clock)
    work = compactor(wide([[reply(TEXT)]]), clock, Stores(open_items("Boil")))
    facts = [fact async for fact in work.after_refusal(run, 1_500)]
    assert [type(event) for fact in facts if isinstance(fact, Record) for event in fact.events] == [CompactionStarted, CompactionCompleted]
    assert "Boil" in notes_of(run)[0]
    assert not run.does_not_fit


@pytest.mark.parametrize(("max_tokens", "summary"), [(4_300, None), (6_000, TEXT)], ids=["too little", "enough"])
async def test_a_budget_that_cannot_pay_for_a_summary_asks_for_none(max_tokens: int, summary: str | None) -> None:
    """A summary reads about 3,400 tokens, may have 1,000, and the next call follows it; a hard cut costs nothing."""
    clock = HandClock()
    summariser = wide([[reply(TEXT)]])
    run = a_run(full(), clock, max_tokens=max_tokens)
    *_, completed = await facts_of(compactor(summariser, clock), run)
    assert completed.compaction is not None
    assert completed.compaction.result.summary == summary
    assert len(summariser.requests) == (summary is not None)
    assert run.conversation.size() <= ROOM.most
    assert run.conversation.state.fruitless.failures == 0
