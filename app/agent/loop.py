"""The conversation loop: one turn, from its input to its outcome, as one iterator of facts.

A turn's steps: 1 load the session and the input (done by the caller); 2 repair history; 3 take the system prompt; 4 go on from the
stored machine state; 5 start the iteration; 6 the interruptible model call; 7 judge the reply; 8 run tool calls; 9 record, and the
next iteration or the end. An interrupt is the cancellation of the task that pulls: it reaches whatever the loop is waiting for.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from app.agent import machine
from app.agent.batch import Batch, Conclusion, result_message
from app.agent.compactor import Compactor, CompactorParts
from app.agent.facts import End, LoopFact, Pause, Record, budget_warning
from app.agent.model_call import ModelCall
from app.agent.run import LoopParts, Run, run_of
from app.agent.tool_calls import run_tool_calls
from app.domain.errors import ContextOverflowError
from app.domain.events import AttemptReset, Fact, IterationStarted
from app.domain.messages import StoredMessage, ToolCall
from app.domain.openings import OpenTurn
from app.domain.tenants import thresholds_of
from app.domain.tools import FinishedCall, ToolContext
from app.domain.turns import MachineState, PressureLevel, TurnKind
from app.domain.waiting import PausedBatch


class AgentLoop:
    """Runs one turn. Knows models, a toolbox and a clock, and nothing of how turns are stored or streamed."""

    def __init__(self, parts: LoopParts) -> None:
        self._run: Run | None = None
        self._call: ModelCall | None = None
        self._model = parts.model
        self._toolbox = parts.toolbox
        self._clock = parts.clock
        self._parts = parts
        self._guardrails = parts.settings.guardrails
        self._thresholds = thresholds_of(parts.settings)
        self._compactor = Compactor(
            CompactorParts(
                model=parts.model,
                summariser=parts.summariser,
                clock=parts.clock,
                thresholds=self._thresholds,
                todos=parts.todos,
                memory=parts.memory,
            )
        )

    def interrupted_state(self, shown_chars: int) -> MachineState | None:
        """The state as of now: it counts model calls that no fact has told yet. ``None`` before the start.

        The open attempt counts by estimate, when it has shown ``shown_chars`` characters.
        """
        if self._call is not None:
            return self._call.interrupted_state(shown_chars)
        return None if self._run is None else self._run.state

    @property
    def under_way(self) -> Run | None:
        """The turn as it stands, once it has begun here."""
        return self._run

    def run(self, turn: OpenTurn, working_set: Sequence[StoredMessage]) -> AsyncGenerator[LoopFact, None]:
        """Yield the turn's facts, its End or a Pause as the last. ``working_set``: the session's messages, the turn's input included."""
        run = self._run = run_of(self._parts, turn, working_set)
        return self._chat(run) if turn.request.kind is TurnKind.CHAT else self._compaction(run)

    async def _compaction(self, run: Run) -> AsyncGenerator[LoopFact, None]:
        """A turn that only compacts."""
        async with aclosing(self._compactor.on_demand(run)) as facts:
            async for fact in facts:
                yield fact
        yield self._end(run, machine.after_compaction(run.uncompacted, run.conversation.summary))

    async def _chat(self, run: Run) -> AsyncGenerator[LoopFact, None]:
        turn_starts = not run.turn.resumed
        if run.state.paused is not None:
            async with aclosing(self._go_on(run, run.state.paused)) as facts:
                async for fact in facts:
                    yield fact
        while not run.over:
            async with aclosing(self._compactor.before_call(run, turn_starts=turn_starts)) as facts:
                async for fact in facts:
                    yield fact
            turn_starts = False
            if told := run.children_news():
                yield Record(events=told, messages=(), state=run.state)
            before = run.before_call()
            if isinstance(before, machine.Finish):
                yield self._end(run, before)
                return
            if before.told is not None:
                yield Record(events=(budget_warning(before.told, run.state, run.budget),), messages=(), state=run.state)
            async with aclosing(self._iterate(run)) as facts:
                async for fact in facts:
                    yield fact

    async def _iterate(self, run: Run) -> AsyncGenerator[LoopFact, None]:
        """Steps 6 to 9."""
        async with aclosing(ModelCall(self._model, run.request(), run.state)) as call:
            self._call = call
            while (shown := await call.next()) is not None:
                yield shown
        self._call = None
        run.state = call.state
        if isinstance(call.failure, ContextOverflowError):
            async with aclosing(self._compactor.after_refusal(run, call.failure.window)) as facts:
                async for fact in facts:
                    yield fact
            if not run.does_not_fit:
                return
        step = self._judge(run, call)
        match step:
            case machine.Finish():
                yield self._end(run, step)
            case machine.CallAgain():
                yield self._again(run, step)
            case machine.RunTools():
                unshown = () if step.unshown is None else (run.place(step.unshown, archived=True),)
                stored = run.place(step.message)
                batch = Batch(step, run.state, run.rules, place=stored.seq)
                yield self._intent(run, step, (*unshown, stored), batch.to_run)
                async with aclosing(self._run_tools(run, batch, run.context)) as facts:
                    async for fact in facts:
                        yield fact

    def _judge(self, run: Run, call: ModelCall) -> machine.AfterReply:
        """Step 7."""
        if call.failure is not None:
            return machine.after_failure(run.state, call.failure, run.budget)
        if call.reply is None:
            raise RuntimeError("a model stream ended without its reply")
        run.count_size(call.reply, self._thresholds)
        may_continue = run.turn.request.options.max_output_tokens is None
        state = msgspec.structs.replace(machine.count_reply(run.state, call.reply), overflows=0)
        run.state, step = machine.after_reply(state, call.reply, run.budget, may_continue=may_continue)
        return run.client.judge(run.repaired(step))

    def _again(self, run: Run, step: machine.CallAgain) -> Record:
        """The reply was cut: what the model is shown of it, and the next iteration."""
        messages = tuple(run.place(message) for message in step.messages)
        events: list[Fact] = []
        if step.void:
            events.append(AttemptReset(attempt=run.state.attempts))
        if step.told is not None:
            events.append(budget_warning(step.told, run.state, run.budget))
        events.extend(self._begin(run))
        return Record(events=tuple(events), messages=messages, state=run.state, boundary=True, context=run.conversation.changed())

    def _intent(self, run: Run, step: machine.RunTools, messages: tuple[StoredMessage, ...], begin: Sequence[ToolCall]) -> Record:
        """The assistant message with its calls, stored before the first of them begins; places for the results stay free behind it."""
        events: tuple[Fact, ...] = (run.completed(messages[-1], self._model.primary, step.said), *run.started(begin))
        return Record(events=events, messages=messages, state=run.state, context=run.conversation.changed())

    async def _go_on(self, run: Run, paused: PausedBatch) -> AsyncGenerator[LoopFact, None]:
        """The calls that waited have their answers: the approved ones are run, and all conclude as one batch."""
        batch = Batch.resumed(paused, run.conversation.rows, run.state, run.rules)
        if batch.approved:
            yield Record(events=run.started(batch.approved), messages=(), state=run.state)
        async with aclosing(self._run_tools(run, batch, msgspec.structs.replace(run.context, approved=True))) as facts:
            async for fact in facts:
                yield fact

    async def _run_tools(self, run: Run, batch: Batch, context: ToolContext) -> AsyncGenerator[LoopFact, None]:
        """Steps 8 and 9: each result is recorded when it is there, at its call's place; the last one with what follows it.

        Where calls wait for somebody, the turn pauses once all others are answered.
        """
        calls = run_tool_calls(
            batch.calls,
            batch.refusals,
            run.client,
            context,
            clock=self._clock,
            elsewhere=batch.elsewhere,
            at_once=batch.at_once(self._parts.calls_at_once),
            tellings=run.tellings,
        )
        async with aclosing(calls) as finished:
            async for told, ended in finished:
                run.count_children(told)
                if told:
                    yield Record(events=tuple(told), messages=(), state=run.state)
                run.state = machine.count_tools(run.state, ended)
                done = batch.add(ended)
                if not ended:
                    continue
                if batch.complete:
                    yield self._conclude(run, batch.base, done, batch.conclude(run.state, run.budget))
                elif done:
                    results = run.answer(batch.base, [(one, result_message(one)) for one in done])
                    events, records = run.told(done, results)
                    yield Record(events=events, messages=results, state=run.state, calls=records)
        paused = batch.paused()
        if paused is not None:
            run.over = True
            run.state = msgspec.structs.replace(run.state, paused=paused)
            yield Pause(state=run.state)

    def _conclude(self, run: Run, base: int, done: Sequence[FinishedCall], conclusion: Conclusion) -> LoopFact:
        run.state = conclusion.state
        results = run.answer(base, conclusion.results(done))
        told, records = run.told(done, results)
        events = (*told, *conclusion.events)
        match conclusion.step:
            case machine.Finish() as step:
                return replace(self._end(run, step, events, results), calls=records)
            case machine.CallModel():
                return Record(events=(*events, *self._begin(run)), messages=results, state=run.state, boundary=True, calls=records)

    def _begin(self, run: Run) -> tuple[Fact, ...]:
        """The event of the next iteration; the closing call is none."""
        if run.state.pressure is PressureLevel.EXHAUSTED:
            return ()
        return (IterationStarted(iteration=run.state.iteration, max_iterations=run.budget.iterations),)

    def _end(self, run: Run, step: machine.Finish, events: tuple[Fact, ...] = (), messages: tuple[StoredMessage, ...] = ()) -> End:
        if step.part is not None:
            messages = (*messages, run.place(step.part))
        if step.unshown is not None:
            messages = (*messages, run.place(step.unshown, archived=True))
        if step.message is not None:
            stored = run.place(step.message, archived=step.part is not None or step.forget)
            messages = (*messages, stored)
            events = (*events, run.completed(stored, self._model.primary, step.outcome.output))
        run.over = True
        if step.forget:
            run.conversation.forget()
        return End(
            events=events,
            messages=messages,
            state=run.state,
            outcome=step.outcome,
            forget=step.forget,
            context=run.conversation.changed(),
        )
