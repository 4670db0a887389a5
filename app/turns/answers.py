"""Answers for the calls of a turn that waits: checked against the calls, and stored if the turn still stands as it was read."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError
from app.domain.events import FrameEncoder, TurnQueued
from app.domain.ids import TenantId, TurnId
from app.domain.turns import EventRow, RowKind, TurnAnswer, TurnState, TurnView
from app.domain.waiting import CallAnswer, PausedBatch, WaitingCall, WaitingKind
from app.ports import TurnStore

_TRIES = 5
"""Others may answer other calls of the turn in the same moment, each once."""
NO_OUTPUT = "(no output)"


class Decision(enum.StrEnum):
    """What somebody decided of a call."""

    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What somebody says to one call: exactly one of ``output``, ``error`` and ``decision``; ``reason`` goes with a decision."""

    tool_call_id: str
    output: str | None = None
    error: str | None = None
    decision: Decision | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a request with answers. ``after`` is the turn's last event before it; ``complete``: no answer is missing."""

    view: TurnView
    after: int
    complete: bool
    replayed: bool = False


class TurnAnswers:
    """One request with answers for one turn; ``key`` and ``fingerprint`` are what a repeat is known by."""

    def __init__(self, store: TurnStore, tenant_id: TenantId, turn_id: TurnId, *, key: str | None, fingerprint: bytes) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._turn_id = turn_id
        self._key = key
        self._fingerprint = fingerprint

    async def give(self, results: Sequence[CallResult]) -> Answered:
        """Check and store the answers, or find those again that came under the key.

        Raises NotFoundError, ConflictError (``turn_not_waiting``, ``idempotency_mismatch``), InvalidRequestError, UnavailableError.
        """
        for _ in range(_TRIES):
            view = await self._view()
            replayed = await self._given(view)
            if replayed is not None:
                return replayed
            answer = self._answer(view, results)
            if await self._store.answer(answer):
                return Answered(view=await self._view(), after=view.last_seq, complete=answer.complete)
        raise _not_waiting(self._turn_id)

    async def _view(self) -> TurnView:
        view = await self._store.get(self._tenant_id, self._turn_id)
        if view is None:
            raise NotFoundError
        return view

    async def _given(self, view: TurnView) -> Answered | None:
        given = None if self._key is None else await self._store.given_answer(self._turn_id, self._key)
        if given is None:
            return None
        if given.fingerprint != self._fingerprint:
            raise ConflictError("idempotency_mismatch", "The Idempotency-Key was used before with another body.")
        return Answered(view=view, after=given.after, complete=given.complete, replayed=True)

    def _answer(self, view: TurnView, results: Sequence[CallResult]) -> TurnAnswer:
        paused = view.machine.paused
        if view.state is not TurnState.REQUIRES_ACTION or paused is None:
            raise _not_waiting(self._turn_id)
        paused = with_results(paused, results)
        complete, seq = not paused.open, view.last_seq + 1
        frame = FrameEncoder(view.id).frame(seq, TurnQueued(session_id=view.session_id, reason="answered"))
        return TurnAnswer(
            tenant_id=self._tenant_id,
            turn_id=self._turn_id,
            previous_seq=view.last_seq,
            last_seq=seq,
            state=msgspec.structs.replace(view.machine, paused=paused),
            complete=complete,
            row=EventRow(seq, seq, RowKind.FACTS, frame) if complete else None,
            key=self._key,
            fingerprint=self._fingerprint,
        )


def with_results(paused: PausedBatch, results: Sequence[CallResult]) -> PausedBatch:
    """The batch with these answers. Raises InvalidRequestError, with a pointer into the results, for one that fits no waiting call."""
    waiting = {one.call.id: one for one in paused.waiting}
    given: dict[str, CallAnswer] = {}
    for index, result in enumerate(results):
        place = f"/results/{index}"
        known = waiting.get(result.tool_call_id)
        if known is None:
            raise InvalidRequestError("The turn waits for no call of this id.", pointer=f"{place}/tool_call_id")
        if known.answer is not None or result.tool_call_id in given:
            raise InvalidRequestError("This call has its answer already.", pointer=f"{place}/tool_call_id")
        given[result.tool_call_id] = _checked(known, result, place)
    answered = (msgspec.structs.replace(one, answer=given.get(one.call.id, one.answer)) for one in paused.waiting)
    return msgspec.structs.replace(paused, waiting=tuple(answered))


def _checked(waiting: WaitingCall, result: CallResult, place: str) -> CallAnswer:
    if waiting.kind is WaitingKind.APPROVAL:
        if result.decision is None:
            raise InvalidRequestError('This call waits for a decision: "approve" or "deny".', pointer=place)
        return _decided(result)
    if result.decision is not None:
        raise InvalidRequestError("This call waits for its output, not for a decision.", pointer=f"{place}/decision")
    if result.error is not None:
        return CallAnswer(output=result.error, is_error=True)
    return CallAnswer(output=result.output or NO_OUTPUT)


def _decided(result: CallResult) -> CallAnswer:
    if result.decision is Decision.APPROVE:
        return CallAnswer(approved=True)
    reason = f": {result.reason}" if result.reason else "."
    return CallAnswer(output=f"Not run: denied by the user{reason}", is_error=True)


def _not_waiting(turn_id: TurnId) -> ConflictError:
    return ConflictError("turn_not_waiting", "The turn waits for no answers.", turn_id=turn_id)
