"""The conversation loop: one turn, from its input to its outcome, as one iterator of facts.

A turn's steps: 1 load the session and the input (done by the caller); 2 repair history; 3 take the system prompt; 4 go on from the
stored machine state; 5 start the iteration; 6 the interruptible model call; 7 judge the reply; 8 run tool calls; 9 record, and the
next iteration or the end. An interrupt is the cancellation of the task that pulls: it reaches whatever the loop is waiting for.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from app.agent import machine
from app.agent.client_tools import ClientTools, options_of
from app.agent.facts import End, LoopFact, Record, tool_completed, tool_result
from app.agent.model_call import ModelCall
from app.agent.tool_calls import run_tool_calls
from app.context import history, tokens
from app.domain.events import MAX_EVENT_TEXT, Fact, IterationStarted, MessageCompleted, ToolStarted, message_view
from app.domain.ids import MessageId, make_id
from app.domain.messages import Message, StoredMessage, ToolSpec
from app.domain.model import ModelRequest
from app.domain.tools import ToolContext
from app.domain.turns import MachineState, OpenTurn
from app.ports import Clock, ModelClient, Toolbox

_TOOLS = msgspec.json.Decoder(tuple[ToolSpec, ...])


@dataclass(slots=True)
class _Run:
    """What one turn's loop carries from step to step."""

    turn: OpenTurn
    own_tools: tuple[ToolSpec, ...]
    client: ClientTools
    tools: tuple[ToolSpec, ...]
    state: MachineState
    placed: list[StoredMessage]
    next_seq: int
    over: bool = False


class AgentLoop:
    """Runs one turn. Knows a model, a toolbox and a clock, and nothing of storage or streams."""

    def __init__(self, model: ModelClient, toolbox: Toolbox, clock: Clock) -> None:
        self._model = model
        self._toolbox = toolbox
        self._clock = clock

    async def run(self, turn: OpenTurn, working_set: Sequence[StoredMessage]) -> AsyncGenerator[LoopFact, None]:
        """Yield the turn's facts; the last is its End. ``working_set`` holds the session's messages, the turn's input included."""
        own, client = _TOOLS.decode(turn.tools), ClientTools(self._toolbox, turn.request.client_tools)
        run = _Run(turn, own, client, client.offered(own), turn.state, list(working_set), turn.next_message_seq)
        while not run.over:
            async with aclosing(ModelCall(self._model, self._request(run), run.state)) as call:
                while (fact := await call.next()) is not None:
                    yield fact
            step = self._judge(run, call)
            if isinstance(step, machine.Finish):
                yield self._end(run, step, ())
                continue
            yield self._intent(run, step)
            async with aclosing(self._run_tools(run, step)) as facts:
                async for fact in facts:
                    yield fact

    def _request(self, run: _Run) -> ModelRequest:
        """Steps 2, 3 and 6: what the model is shown."""
        turn = run.turn
        messages = history.repair([stored.message for stored in run.placed])
        return ModelRequest(
            system=turn.system_prompt,
            messages=messages,
            tools=run.tools,
            first_attempt=run.state.attempts + 1,
            input_tokens=tokens.estimate(turn.system_prompt, messages, tools_bytes=len(turn.tools) + run.client.size),
            options=options_of(turn.request.options, run.state.iteration),
        )

    def _judge(self, run: _Run, call: ModelCall) -> machine.AfterReply:
        """Step 7."""
        run.state = call.state
        if call.failure is not None:
            return machine.after_failure(call.failure)
        if call.reply is None:
            raise RuntimeError("a model stream ended without its reply")
        run.state = machine.count_reply(run.state, call.reply)
        return run.client.judge(machine.after_reply(call.reply))

    def _intent(self, run: _Run, step: machine.RunTools) -> Record:
        """The assistant message with its calls, stored before the first of them starts."""
        stored = self._place(run, step.message)
        run.next_seq += len(step.calls)  # the places of the results, so that they can be stored as they come
        started = tuple(ToolStarted(tool_call_id=call.id, name=call.name, arguments=call.arguments[:MAX_EVENT_TEXT]) for call in step.calls)
        return Record(events=(self._message_completed(run, stored), *started), messages=(stored,), state=run.state)

    async def _run_tools(self, run: _Run, step: machine.RunTools) -> AsyncGenerator[LoopFact, None]:
        """Steps 8 and 9: each result is recorded when it is there, at its call's place; the last one with what follows it."""
        base = run.next_seq - len(step.calls)
        turn = run.turn
        context = ToolContext(
            tenant_id=turn.tenant_id,
            session_id=turn.fence.session_id,
            turn_id=turn.fence.turn_id,
            enabled=run.client.enabled(run.own_tools),
        )
        missing = len(step.calls)
        async with aclosing(run_tool_calls(step.calls, step.bad_arguments, run.client, context, clock=self._clock)) as batches:
            async for batch in batches:
                results = tuple(self._stored(run, base + done.index, tool_result(done)) for done in batch)
                run.placed.extend(results)
                missing -= len(batch)
                events: tuple[Fact, ...] = tuple(tool_completed(done) for done in batch)
                if missing:
                    yield Record(events=events, messages=results, state=run.state)
                else:
                    yield self._after_tools(run, events, results)

    def _after_tools(self, run: _Run, events: tuple[Fact, ...], results: tuple[StoredMessage, ...]) -> LoopFact:
        limit = run.turn.request.max_iterations
        run.state, step = machine.after_tools(run.state, limit)
        match step:
            case machine.Finish():
                return self._end(run, step, events, results)
            case machine.CallModel():
                begin = IterationStarted(iteration=run.state.iteration, max_iterations=limit)
                return Record(events=(*events, begin), messages=results, state=run.state, boundary=True)

    def _end(self, run: _Run, step: machine.Finish, events: tuple[Fact, ...], messages: tuple[StoredMessage, ...] = ()) -> End:
        if step.message is not None:
            stored = self._place(run, step.message)
            messages = (*messages, stored)
            events = (*events, self._message_completed(run, stored))
        run.over = True
        return End(events=events, messages=messages, state=run.state, outcome=step.outcome, forget=step.forget)

    def _message_completed(self, run: _Run, stored: StoredMessage) -> MessageCompleted:
        return MessageCompleted(
            attempt=run.state.attempts,
            iteration=run.state.iteration,
            route=run.state.route or self._model.primary,
            message=message_view(stored, limit=MAX_EVENT_TEXT),
        )

    def _place(self, run: _Run, message: Message) -> StoredMessage:
        stored = self._stored(run, run.next_seq, message)
        run.next_seq += 1
        run.placed.append(stored)
        return stored

    def _stored(self, run: _Run, seq: int, message: Message) -> StoredMessage:
        now_ms = self._clock.unix_ms()
        return StoredMessage(
            id=MessageId(make_id("msg", now_ms, secrets.token_bytes(10))),
            session_id=run.turn.fence.session_id,
            seq=seq,
            turn_id=run.turn.fence.turn_id,
            message=message,
            archived=False,
            created_at_ms=now_ms,
        )
