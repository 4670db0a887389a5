"""Compaction as part of a turn: old rows leave the context, a summary takes their place.

Its steps: decide what leaves, let the model write durable facts to its memory, ask for the summary, judge it, and yield everything as one
fact whose commit changes all or nothing. A summary that cannot be had changes nothing; where the context does not fit then, it is cut
hard, and where that cannot help either the turn ends with ``context_exhausted``.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from app.agent import budget as budgets
from app.agent import machine
from app.agent.conversation import Conversation
from app.agent.facts import LoopFact, Record, Show
from app.agent.model_call import ModelCall
from app.agent.run import Run
from app.context import compaction, prompt, summary, tokens
from app.context.acceptance import Accepted, Rejected, accept
from app.context.carry import flush_request, is_todo_note, todo_note
from app.context.compaction import Sizing
from app.context.cut import Cut, Scale
from app.context.render import row_tokens
from app.domain.compaction import CompactionReason, CompactionResult, ResultClip, Room, Thresholds
from app.domain.conversation_events import CompactionCompleted, CompactionFailed, CompactionStarted
from app.domain.errors import ContextOverflowError, ModelError, UnavailableError
from app.domain.ids import make_id
from app.domain.messages import Message, ToolSpec
from app.domain.model import ModelReply, ModelRequest, Usage
from app.domain.turns import Compaction, Completed, CompletedReason, Failed, FailedReason, MachineState
from app.ports import Clock, MemoryStore, ModelClient, TodoStore

MAX_OVERFLOWS = 2
"""Rounds after refusals as too long, in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorParts:
    """What a compaction takes. ``summariser`` is the ``compression`` chain."""

    model: ModelClient
    summariser: ModelClient
    clock: Clock
    thresholds: Thresholds
    todos: TodoStore
    memory: MemoryStore


class NoSummaryError(Exception):
    """There is no summary; the text says why and is safe to show.

    ``answered``: the model gave an answer, but none that is a summary. ``window``: the request was too long for a window of so many tokens.
    """

    def __init__(self, detail: str, *, answered: bool = False, window: int | None = None) -> None:
        super().__init__(detail)
        self.answered = answered
        self.window = window


class Compactor:
    """Compacts the conversation of one run when that is due."""

    def __init__(self, parts: CompactorParts) -> None:
        self._parts = parts

    async def before_call(self, run: Run, *, turn_starts: bool) -> AsyncGenerator[LoopFact, None]:
        """Compact before a model call if its request has become too large for its window; sets ``run.does_not_fit`` when nothing helps."""
        conversation = run.conversation
        room = conversation.room
        size = conversation.size()
        reason = compaction.due(size, room, self._parts.thresholds, turn_starts=turn_starts, mark=conversation.state.mark)
        if reason is None:
            return
        if compaction.may_compact(conversation.state.fruitless, reason, self._parts.clock.unix_ms()):
            async with aclosing(self._compact(run, reason, room)) as facts:
                async for fact in facts:
                    yield fact
        size = conversation.size()
        latched = conversation.state.fruitless.latched and size >= room.threshold(self._parts.thresholds.gateway)
        if latched or size > room.most:
            shortened = await self._shorten(run, CompactionReason.GATEWAY, room)
            if shortened is not None:
                yield shortened

    async def after_refusal(self, run: Run, window: int | None) -> AsyncGenerator[LoopFact, None]:
        """Compact after a provider refused the request as too long; sets ``run.does_not_fit`` when it can be made no shorter."""
        run.state = msgspec.structs.replace(run.state, overflows=run.state.overflows + 1)
        if run.state.overflows > MAX_OVERFLOWS:
            run.does_not_fit = True
            return
        conversation = run.conversation
        room = conversation.refused(window)
        before = _shown(conversation)
        if compaction.may_compact(conversation.state.fruitless, CompactionReason.OVERFLOW, self._parts.clock.unix_ms()):
            async with aclosing(self._compact(run, CompactionReason.OVERFLOW, room)) as facts:
                async for fact in facts:
                    yield fact
        if _shown(conversation) == before or conversation.size() > room.most:
            shortened = await self._shorten(run, CompactionReason.OVERFLOW, room)
            if shortened is not None:
                yield shortened

    async def on_demand(self, run: Run) -> AsyncGenerator[LoopFact, None]:
        """Compact because a caller asked for it; sets ``run.uncompacted`` when nothing comes of it."""
        async with aclosing(self._compact(run, CompactionReason.MANUAL, run.conversation.room)) as facts:
            async for fact in facts:
                yield fact

    async def _compact(self, run: Run, reason: CompactionReason, room: Room) -> AsyncGenerator[LoopFact, None]:
        conversation = run.conversation
        sizing = conversation.sizing(room, self._parts.thresholds)
        attempt = max(1, run.state.overflows)
        cut = compaction.plan_compaction(reason, conversation.rows, sizing, attempt=attempt)
        if cut is None:
            conversation.fruitless(reason)
            run.uncompacted = Completed(reason=CompletedReason.NOTHING_TO_COMPACT, output=conversation.summary)
            return
        if not self._is_affordable(run, cut, sizing):
            run.uncompacted = Completed(reason=CompletedReason.BUDGET_EXHAUSTED, output=conversation.summary)
            return
        before = conversation.size()
        started = CompactionStarted(reason=reason, tokens_before=before)
        yield Record(events=(started,), messages=(), state=run.state)
        spent = run.state
        memory = await self._flush(run, cut)
        try:
            text = await self._summarise(run, cut, room)
        except NoSummaryError as error:
            why = FailedReason.INVALID_RESPONSE if error.answered else FailedReason.PROVIDER_UNAVAILABLE
            run.uncompacted = Failed(reason=why, detail=str(error), retryable=True)
            conversation.failed(self._parts.clock.unix_ms())
            failed = CompactionFailed(reason=reason, message=str(error))
            yield Record(events=(failed,), messages=(), state=run.state, context=conversation.changed())
            return
        yield await self._changed(run, _Change(reason=reason, cut=cut, before=before, summary=text, memory=memory, spent=spent))

    def _is_affordable(self, run: Run, cut: Cut, sizing: Sizing) -> bool:
        """Whether what is left of the turn's budget pays for the calls of a compaction and for one behind it.

        Where it does not, what has to be shorter is cut hard, which costs nothing.
        """
        able = self._parts.summariser.room
        calls = 1 if _memory_tool(run.tools) is None else 2
        keep = Scale(view=sizing.view, ratio=sizing.ratio).tokens(cut.keep)
        behind = sizing.fixed_tokens + keep + summary.longest_summary(sizing.room)
        return budgets.affords(run.state, run.budget, calls * (run.conversation.size() + able.output_tokens) + behind)

    async def _changed(self, run: Run, change: "_Change") -> Record:
        """The fact of a compaction, with everything that it changes."""
        conversation = run.conversation
        snapshot = await self._snapshot(run, conversation.memory)
        clips = conversation.view.clipped(change.cut.clip).clips
        archived = tuple(sorted(row.seq for row in change.cut.archive))
        note, outdated = await self._open_todos(run, change.cut)
        result = CompactionResult(
            reason=change.reason,
            archived_seqs=archived,
            outdated_seqs=outdated,
            summary=change.summary,
            clips=clips,
            tokens_before=change.before,
            tokens_after=0,
        )
        conversation.apply(result, memory=snapshot)
        placed = () if note is None else (run.place(note),)
        result = _sized(run, result)
        summary_id = make_id("sum", self._parts.clock.unix_ms(), secrets.token_bytes(10))
        usage, cost_usd = machine.used_since(change.spent, run.state)
        completed = CompactionCompleted(
            reason=change.reason,
            summary_id=summary_id,
            archived_messages=len(archived),
            tokens_before=change.before,
            tokens_after=result.tokens_after,
            memory=change.memory,
            usage=usage,
            cost_usd=cost_usd,
        )
        return Record(
            events=(completed,),
            messages=placed,
            state=run.state,
            boundary=change.reason is not CompactionReason.MANUAL,  # a turn that only compacts would do so again
            context=conversation.changed() or conversation.state,
            compaction=Compaction(id=summary_id, result=result, memory=snapshot, usage=usage, cost_usd=cost_usd),
        )

    async def _shorten(self, run: Run, reason: CompactionReason, room: Room) -> Record | None:
        """Cut hard what does not fit, but not as long as a summary of it may be had a little later."""
        fruitless = run.conversation.state.fruitless
        if fruitless.failures and not fruitless.hopeless:
            run.does_not_fit = True
            run.unsummarised = "the model that writes summaries failed; try again in a minute."
            return None
        return await self._trim(run, reason, room)

    async def _trim(self, run: Run, reason: CompactionReason, room: Room) -> Record | None:
        conversation = run.conversation
        sizing = conversation.sizing(room, self._parts.thresholds)
        kept = tokens.estimate(conversation.block, (), tools_bytes=0)
        cut = compaction.plan_trim(conversation.rows, sizing, summary_tokens=kept)
        if cut is None or (not cut.archive and cut.clip is None):
            run.does_not_fit = cut is None or reason is CompactionReason.OVERFLOW
            return None
        before = conversation.size()
        clips = conversation.view.clipped(cut.clip).clips
        archived = tuple(sorted(row.seq for row in cut.archive))
        note, outdated = await self._open_todos(run, cut)
        result = CompactionResult(
            reason=reason, archived_seqs=archived, outdated_seqs=outdated, summary=None, clips=clips, tokens_before=before, tokens_after=0
        )
        memory = conversation.memory
        conversation.apply(result, memory=memory)
        fits = note is not None and conversation.size() + tokens.estimate("", (note,), tools_bytes=0) <= room.most
        placed = (run.place(note),) if note is not None and fits else ()
        result = _sized(run, result)
        completed = CompactionCompleted(
            reason=reason,
            summary_id=None,
            archived_messages=len(archived),
            tokens_before=before,
            tokens_after=result.tokens_after,
            memory="off",
            usage=Usage(),
            cost_usd=None,
        )
        summary_id = make_id("sum", self._parts.clock.unix_ms(), secrets.token_bytes(10))
        return Record(
            events=(completed,),
            messages=placed,
            state=run.state,
            context=conversation.changed() or conversation.state,
            compaction=Compaction(id=summary_id, result=result, memory=memory, usage=Usage(), cost_usd=None),
        )

    async def _summarise(self, run: Run, cut: Cut, room: Room) -> str:
        """The new summary. Where the route that can be had has a smaller window than the one it was made for, once more in smaller pieces.

        Raises NoSummaryError.
        """
        able = self._parts.summariser.room
        try:
            return await self._written(run, cut, room, able)
        except NoSummaryError as error:
            if error.window is None or error.window >= able.window:
                raise
            return await self._in_pieces(run, cut, room, Room(error.window, able.output_tokens))

    async def _written(self, run: Run, cut: Cut, room: Room, able: Room) -> str:
        conversation, parts = run.conversation, self._parts
        content = _content_tokens(run, cut)
        limit = summary.summary_limit(content, room, able)
        own = parts.summariser.primary == parts.model.primary
        if not own or not summary.fits_own_request(conversation.size(), able, limit):
            return await self._in_pieces(run, cut, room, able)
        request = summary.own_request(run.request(), limit, parts.model.primary.api_mode)
        return self._judged(await self._ask(run, parts.model, request), content, limit)

    async def _in_pieces(self, run: Run, cut: Cut, room: Room, able: Room) -> str:
        parts = self._parts
        content = _content_tokens(run, cut)
        limit = summary.summary_limit(content, room, able)
        ratio = compaction.ratio_of(run.conversation.state.mark)
        known = run.conversation.summary
        pieces = summary.transcript_pieces(cut.archive, known, room=able, limit=limit, ratio=ratio)
        if not pieces:
            raise NoSummaryError("The window of the model that summarises is too small.")
        for number, piece in enumerate(pieces, 1):
            request = summary.piece_request(piece, known, part=number, parts=len(pieces), limit=limit, first_attempt=run.state.attempts + 1)
            known = self._judged(await self._ask(run, parts.summariser, request), content, limit)
        return known

    def _judged(self, reply: ModelReply, content: int, limit: int) -> str:
        verdict = accept(reply.text, reply.finish, content_tokens=content, limit=limit)
        match verdict:
            case Accepted(text=text):
                return text
            case Rejected(fault=fault):
                raise NoSummaryError(f"The model's summary was not usable: {fault.value}.", answered=True)

    async def _ask(self, run: Run, model: ModelClient, request: ModelRequest) -> ModelReply:
        """One auxiliary call: its text is shown to nobody, its use is the turn's. Raises NoSummaryError."""
        try:
            return await _answer(run, model, request)
        except ModelError as error:
            window = error.window if isinstance(error, ContextOverflowError) else None
            raise NoSummaryError(error.detail, window=window) from error

    async def _flush(self, run: Run, cut: Cut) -> str:
        """Let the model write durable facts of what leaves to its memory. Its failure is told and stops nothing."""
        spec = _memory_tool(run.tools)
        if spec is None or run.context.session_id is None or spec.name not in run.context.enabled or not cut.archive:
            return "off"
        parts = self._parts
        ratio = compaction.ratio_of(run.conversation.state.mark)
        request = flush_request(cut.archive, spec, room=parts.summariser.room, ratio=ratio, first_attempt=run.state.attempts + 1)
        if request is None:
            return "off"
        try:
            reply = await self._ask(run, parts.summariser, request)
        except NoSummaryError:
            return "failed"
        calls = [call for call in reply.tool_calls if call.name == spec.name and call.id not in reply.bad_arguments]
        outcomes = [await run.client.call(call, run.context) for call in calls]
        if not outcomes:
            return "nothing"
        return "failed" if all(outcome.is_error for outcome in outcomes) else "kept"

    async def _snapshot(self, run: Run, present: str | None) -> str | None:
        """A new snapshot of memory for the prompt, which the compaction changes anyway."""
        session_id = run.context.session_id
        if session_id is None or _memory_tool(run.tools) is None:
            return present
        try:
            _, memory = await self._parts.memory.of_session(run.context.tenant_id, session_id)
        except UnavailableError:
            return present  # what was shown before is as good; the next compaction takes a new one
        return prompt.memory_snapshot(memory)

    async def _open_todos(self, run: Run, cut: Cut) -> tuple[Message | None, tuple[int, ...]]:
        """The open items of the todo list as a note, and the places of earlier notes of them among the rows that stay."""
        session_id = run.context.session_id
        if session_id is None or not cut.archive:
            return None, ()
        try:
            items = await self._parts.todos.read(session_id)
        except UnavailableError:
            return None, ()  # the model can read its list by the tool
        outdated = tuple(row.seq for row in cut.keep if is_todo_note(row.message))
        return todo_note(items, run.conversation.room.window), outdated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a compaction has found out, before it is put together."""

    reason: CompactionReason
    cut: Cut
    before: int
    summary: str
    memory: str
    spent: MachineState


def _shown(conversation: Conversation) -> tuple[tuple[int, ...], tuple[ResultClip, ...]]:
    """What a compaction can change of the rows."""
    return tuple(row.seq for row in conversation.rows), conversation.state.clips


def _sized(run: Run, result: CompactionResult) -> CompactionResult:
    """``result`` with the size that it leads to; what the last call counted says nothing of the next one any more."""
    after = run.conversation.size()
    run.state = msgspec.structs.replace(run.state, last_call_tokens=after)
    return msgspec.structs.replace(result, tokens_after=after)


async def _answer(run: Run, model: ModelClient, request: ModelRequest) -> ModelReply:
    """The reply of a call whose deltas nobody sees; what it used is counted, that of an interrupted attempt too. Raises ModelError."""
    call, chars = ModelCall(model, request, run.state), 0
    try:
        async with aclosing(call):
            while (fact := await call.next()) is not None:
                chars = chars + sum(len(delta.text) for delta in fact.deltas) if isinstance(fact, Show) else 0
    finally:
        run.state = machine.count_auxiliary(run.state, call.interrupted_state(chars))
    if call.failure is not None:
        raise call.failure
    if call.reply is None:
        raise RuntimeError("a model stream ended without its reply")
    return call.reply


def _content_tokens(run: Run, cut: Cut) -> int:
    """Tokens of what the new summary stands for, the summary before it included."""
    rows = sum(row_tokens(row, run.conversation.view) for row in cut.archive)
    return rows + tokens.estimate(run.conversation.summary, (), tools_bytes=0)


def _memory_tool(specs: Sequence[ToolSpec]) -> ToolSpec | None:
    return next((spec for spec in specs if spec.name == prompt.MEMORY_TOOL), None)
