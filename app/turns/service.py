"""What callers can do with turns: start, read, follow, interrupt. The API's one door to the turn server."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from app.domain.errors import ConflictError, InvalidRequestError, NotFoundError, QuotaExceededError, UnavailableError
from app.domain.events import Event, FrameEncoder, IterationStarted, TurnQueued, TurnStarted
from app.domain.ids import MessageId, SessionId, TenantId, TurnId, make_id
from app.domain.model import RouteRef
from app.domain.openings import Busy, NewTurn, NoSession, Opening, OpenTurn, Queued, QueueFull, Replayed, StatelessCall, TooManyOpen
from app.domain.quotas import QuotaState
from app.domain.sessions import Page
from app.domain.tenants import Purpose, Tenant
from app.domain.turns import SEQ_GAP, EventRow, InterruptReason, OnBusy, OnDisconnect, RowKind, TurnKind, TurnRequest, TurnState, TurnView
from app.ports import Clock, ModelClients, TurnStore
from app.turns.answers import Answered, CallResult, TurnAnswers
from app.turns.counters import Counters
from app.turns.quotas import Quotas, too_many_open, within
from app.turns.server import TurnServer

LOOK_BACK = 100
"""Newest turns of a session among which the running one is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A turn that a POST made or found again."""

    turn_id: TurnId
    replayed: bool
    quotas: tuple[QuotaState, ...] = ()
    """How the tenant's quotas stand, if it has any and a turn was made."""


class Turns:
    """Turns of all tenants, as callers see them."""

    def __init__(self, server: TurnServer, store: TurnStore, models: ModelClients, clock: Clock, *, quotas: Quotas) -> None:
        self._server = server
        self._quotas = quotas
        self._store = store
        self._models = models
        self._clock = clock

    @property
    def draining(self) -> bool:
        """Whether this process is leaving and takes no new turns."""
        return self._server.departure.draining

    @property
    def counters(self) -> Counters:
        """Counts for ``/metrics``."""
        return self._server.counters

    async def start(
        self,
        tenant: Tenant,
        session_id: SessionId | None,
        request: TurnRequest,
        *,
        idempotency_key: str | None,
        fingerprint: bytes,
        stateless: StatelessCall | None = None,
    ) -> Started:
        """Start, queue, or find again a turn. Without a session it is a stateless call, whose conversation is in ``stateless``.

        Raises NotFoundError (session), QuotaExceededError, ConflictError (``turn_in_progress``, ``queue_full``, ``idempotency_mismatch``),
        UnavailableError (``draining``, ``at_capacity``, ``storage_unavailable``), InvalidRequestError (the tenant has no chain).
        """
        if self.draining:
            raise UnavailableError("draining", "This replica is shutting down; another one takes the request.", retry_after_s=1)
        primary = await self._primary(tenant, session_id, request.model)
        request = within(request, tokens=tenant.settings.max_tokens_per_turn, cost_usd=tenant.settings.max_cost_usd_per_turn)
        ask = _Ask(tenant, session_id, request, idempotency_key, fingerprint, primary, stateless)
        if not tenant.settings.limits_turns:
            return self._answer(await self._begin(ask), tenant)
        try:
            return await self._start_within(ask)
        except QuotaExceededError as error:
            self.counters.quota_refusals.update(state.policy.value for state in error.violated)
            raise

    async def find_again(
        self, tenant: Tenant, session_id: SessionId | None, request: TurnRequest, *, idempotency_key: str | None, fingerprint: bytes
    ) -> Started | None:
        """The turn that was started under this key; ``None`` when there is none. Raises ConflictError (``idempotency_mismatch``)."""
        primary = await self._primary(tenant, session_id, request.model)
        opening = await self._replayed(_Ask(tenant, session_id, request, idempotency_key, fingerprint, primary, None))
        return None if opening is None else self._answer(opening, tenant)

    async def _start_within(self, ask: "_Ask") -> Started:
        """Start a turn if its tenant's quotas have room for it; what a repeated key names is found again all the same."""
        try:
            admission = await self._quotas.admit(ask.tenant)
        except QuotaExceededError:
            replayed = await self._replayed(ask)
            if replayed is None:
                raise
            return self._answer(replayed, ask.tenant)
        ask = replace(ask, request=within(ask.request, tokens=admission.tokens_left, cost_usd=admission.cost_usd_left))
        try:
            opening = await self._begin(ask)
        except UnavailableError as error:
            if error.code == "at_capacity":  # else the turn may have been written although no answer came: then its place is taken
                await self._quotas.give_back(admission)
            raise
        if not isinstance(opening, OpenTurn | Queued):
            await self._quotas.give_back(admission)
            return self._answer(opening, ask.tenant)
        return replace(self._answer(opening, ask.tenant), quotas=admission.states)

    async def _begin(self, ask: "_Ask") -> Opening:
        """Open the turn at once where there is room, else queue it if the caller waits."""
        request = ask.request
        if self._server.free:
            opening = await self._open(ask, queue=None)
            if isinstance(opening, Busy) and request.on_busy is not OnBusy.REJECT:
                opening = await self._enqueue(ask, opening.turn_id)
        elif request.background or request.on_busy is not OnBusy.REJECT:
            opening = await self._open(ask, queue="at_capacity")
            if isinstance(opening, Queued) and request.on_busy is OnBusy.INTERRUPT:
                await self._supersede(ask)
        else:
            replayed = await self._replayed(ask)
            if replayed is None:
                raise UnavailableError("at_capacity", "This replica runs as many turns as it may.", retry_after_s=2)
            return replayed
        return opening

    async def _replayed(self, ask: "_Ask") -> Opening | None:
        """The turn that the idempotency key names already: it is found again whatever there is no room for."""
        return None if ask.idempotency_key is None else await self._store.replayed(self._new_turn(ask, None))

    async def get(self, tenant_id: TenantId, turn_id: TurnId) -> TurnView:
        """One turn. Raises NotFoundError."""
        view = await self._store.get(tenant_id, turn_id)
        if view is None:
            raise NotFoundError
        return view

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[TurnView]:
        """Turns of a session, newest first."""
        return await self._store.list_for_session(tenant_id, session_id, limit, before)

    async def follow(self, tenant_id: TenantId, turn_id: TurnId, after: int) -> AsyncGenerator[bytes, None]:
        """Frames behind ``after``. Raises NotFoundError, or InvalidRequestError for a cursor that the turn never gave out."""
        view = await self.get(tenant_id, turn_id)
        live = self._server.log.live(turn_id)
        newest = live.last_seq if live else view.last_seq + (0 if view.state.terminal else SEQ_GAP)
        if after < 0 or after > max(newest, view.last_seq):
            raise InvalidRequestError("The cursor is not one of this turn's event ids.", pointer="/after")
        watched = view.request.on_disconnect is OnDisconnect.CANCEL and not view.state.terminal
        if watched:
            await self._server.log.watch(turn_id)
        return self._server.follow(turn_id, after, watched=watched)

    def follow_started(self, turn_id: TurnId) -> AsyncGenerator[bytes, None]:
        """All frames of a turn that the caller has just started."""
        return self._server.follow(turn_id, 0)

    async def answer(
        self, tenant_id: TenantId, turn_id: TurnId, results: Sequence[CallResult], *, idempotency_key: str | None, fingerprint: bytes
    ) -> Answered:
        """Give answers to calls of a turn that waits for them.

        Raises NotFoundError, ConflictError (``turn_not_waiting``, ``idempotency_mismatch``), InvalidRequestError for a result that fits no
        waiting call, UnavailableError (``draining``, ``storage_unavailable``).
        """
        if self.draining:
            raise UnavailableError("draining", "This replica is shutting down; another one takes the request.", retry_after_s=1)
        answers = TurnAnswers(self._store, tenant_id, turn_id, key=idempotency_key, fingerprint=fingerprint)
        answered = await answers.give(results)
        if not answered.replayed and answered.complete:
            self._server.log.announce(turn_id)
            self._server.look_for_turns()
        return answered

    def follow_answered(self, turn_id: TurnId, answered: Answered) -> AsyncGenerator[bytes, None]:
        """The rest of the stream: all frames behind those that were there before the answers."""
        return self._server.follow(turn_id, answered.after)

    async def interrupt(self, tenant_id: TenantId, turn_id: TurnId, reason: InterruptReason = InterruptReason.REQUESTED) -> TurnView:
        """Interrupt a turn and return it as it then stands: terminal, or still stopping. Idempotent. Raises NotFoundError."""
        view = await self._store.request_cancel(tenant_id, turn_id, reason)
        while view is not None and not await self._stop(view, reason):
            view = await self._store.request_cancel(tenant_id, turn_id, reason)
        return await self.get(tenant_id, turn_id)

    async def _stop(self, view: TurnView, reason: InterruptReason) -> bool:
        """Stop a turn that is marked so; false when it has to be looked at again: somebody took it up, or let it go, in the same moment."""
        if view.state is TurnState.QUEUED:
            return await self._server.close_queued(view, reason)
        if view.state.terminal or not self._server.interrupt(view.id, reason):
            return True
        return not await self._server.active.ended(view.id, 1.0)

    def client_left(self, tenant_id: TenantId, turn_id: TurnId) -> None:
        """The connection of a POST with ``on_disconnect: cancel`` is gone: its turn is interrupted as soon as nobody else reads it."""
        self._server.abandon(tenant_id, turn_id)

    async def _enqueue(self, ask: "_Ask", running: TurnId) -> Opening:
        opening = await self._open(ask, queue="session_busy")
        if ask.request.on_busy is OnBusy.INTERRUPT and isinstance(opening, Queued):
            await self.interrupt(ask.tenant.id, running, InterruptReason.SUPERSEDED)
        return opening

    async def _open(self, ask: "_Ask", *, queue: str | None) -> Opening:
        return await self._server.open(self._new_turn(ask, queue), ask.tenant)

    def _new_turn(self, ask: "_Ask", queue: str | None) -> NewTurn:
        now_ms = self._clock.unix_ms()
        turn_id = TurnId(make_id("turn", now_ms, secrets.token_bytes(10)))
        events = _first_events(ask, queue)
        encoder = FrameEncoder(turn_id)
        frames = b"".join(encoder.frame(1 + index, event) for index, event in enumerate(events))
        settings = ask.tenant.settings
        return NewTurn(
            id=turn_id,
            tenant_id=ask.tenant.id,
            session_id=ask.session_id,
            request=ask.request,
            owner=self._server.lease.replica if queue is None else None,
            message_id=MessageId(make_id("msg", now_ms, secrets.token_bytes(10))),
            rows=(EventRow(1, len(events), RowKind.FACTS, frames),),
            max_queued=settings.max_queued_turns,
            idempotency_key=ask.idempotency_key,
            fingerprint=ask.fingerprint,
            created_at_ms=now_ms,
            stateless=ask.stateless,
            answer_ids=tuple(MessageId(make_id("msg", now_ms, secrets.token_bytes(10))) for _ in ask.request.answers),
            max_open=settings.max_concurrent_turns,
        )

    async def _supersede(self, ask: "_Ask") -> None:
        """Interrupt the turn that holds the session, if one does."""
        if ask.session_id is None:
            return
        page = await self._store.list_for_session(ask.tenant.id, ask.session_id, LOOK_BACK, None)
        for view in page.data:
            if view.started_at_ms is not None and not view.state.terminal:
                await self.interrupt(ask.tenant.id, view.id, InterruptReason.SUPERSEDED)

    async def _primary(self, tenant: Tenant, session_id: SessionId | None, model: str | None) -> RouteRef:
        """The route that the turn asks first, for its first event. Only a chain of several routes leaves the session a choice."""
        if model is None and session_id is not None and len(tenant.chains.get(Purpose.CHAT, ())) > 1:
            model = await self._store.session_model(tenant.id, session_id)
        return self._models.for_chat(tenant, model).primary

    def _answer(self, opening: Opening, tenant: Tenant) -> Started:
        match opening:
            case OpenTurn():
                return Started(turn_id=opening.fence.turn_id, replayed=False)
            case Queued(turn_id=turn_id):
                return Started(turn_id=turn_id, replayed=False)
            case Replayed(turn_id=turn_id, same_body=True):
                return Started(turn_id=turn_id, replayed=True)
            case Replayed():
                raise ConflictError("idempotency_mismatch", "The Idempotency-Key was used before with another body.")
            case Busy(turn_id=turn_id):
                raise ConflictError("turn_in_progress", "The session has a running turn.", turn_id=turn_id)
            case QueueFull():
                raise ConflictError("queue_full", "The session has as many waiting turns as it may.")
            case TooManyOpen():
                raise too_many_open(tenant.settings)
            case NoSession():
                raise NotFoundError


def _first_events(ask: "_Ask", queue: str | None) -> tuple[Event, ...]:
    if queue is not None:
        return (TurnQueued(session_id=ask.session_id, reason=queue),)
    started = TurnStarted(session_id=ask.session_id, route=ask.primary)
    if ask.request.kind is TurnKind.COMPACTION:
        return (started,)
    return (started, IterationStarted(iteration=1, max_iterations=ask.request.max_iterations))


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a POST asks for."""

    tenant: Tenant
    session_id: SessionId | None
    request: TurnRequest
    idempotency_key: str | None
    fingerprint: bytes
    primary: RouteRef
    """The route that is asked first."""
    stateless: StatelessCall | None
