"""Turns and their events, the replicas that run them, and what they used."""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Protocol

from app.domain.ids import ReplicaId, SessionId, TenantId, TurnId
from app.domain.openings import NewTurn, Opening, OpenTurn, Replayed
from app.domain.quotas import DayUse, UsageLine
from app.domain.sessions import Page
from app.domain.tools import CallRecord
from app.domain.turns import (
    Commit,
    Committed,
    DeltaBatch,
    EventRow,
    GivenAnswer,
    InterruptReason,
    PruneAges,
    TurnAnswer,
    TurnView,
    Unwatched,
)


class TurnStore(Protocol):
    """Turns and their events. Every write of a running turn is fenced."""

    async def open(self, turn: NewTurn) -> Opening:
        """Write a turn with its first events and, when it starts at once, its user message; one atomic statement."""

    async def replayed(self, turn: NewTurn) -> Replayed | None:
        """The turn that the idempotency key of ``turn`` made before; ``None`` when there is none, or ``turn`` has no key."""

    async def session_model(self, tenant_id: TenantId, session_id: SessionId) -> str | None:
        """The model that a session asks for; ``None`` when it asks for none or is unknown to the tenant."""

    async def claim(self, owner: ReplicaId, limit: int) -> list[OpenTurn]:
        """Take up to ``limit`` turns that can be run: those that waited for somebody and wait no more, then queued ones whose session is
        free, oldest first; user messages of new ones are written.
        """

    async def commit(self, commit: Commit) -> Committed:
        """Apply one step. Idempotent. Raises LeaseLostError when the fence no longer holds.

        A turn that pauses (``waits_until_ms``) keeps its session; one that is to be stopped does not wait, it is there for the next claim.
        """

    async def answer(self, answer: TurnAnswer) -> bool:
        """Store answers for a turn that waits; complete ones let it be claimed. False, and nothing is stored, when it does not wait or has
        other answers since ``previous_seq``.
        """

    async def given_answer(self, turn_id: TurnId, key: str) -> GivenAnswer | None:
        """The answers that came under this idempotency key."""

    async def expire(self, limit: int) -> list[TurnView]:
        """Let turns wait no more whose time is over; they are marked as to be stopped (``expired``) and returned as they then stand."""

    async def append_deltas(self, batches: Sequence[DeltaBatch]) -> set[TurnId]:
        """Store deltas of several turns in one statement; returns the turns whose fence held."""

    async def owned(self, owner: ReplicaId, turns: Sequence[TurnId]) -> set[TurnId]:
        """Those of ``turns`` that ``owner`` still owns."""

    async def cancel_requests(self, owner: ReplicaId) -> dict[TurnId, InterruptReason]:
        """Running turns of ``owner`` that somebody wants stopped."""

    async def request_cancel(self, tenant_id: TenantId, turn_id: TurnId, reason: InterruptReason) -> TurnView | None:
        """Mark a turn that has not ended as to be stopped and return it as it then stands; ``None`` when unknown to the tenant.

        One that waits for somebody waits no more: it reads as queued.
        """

    async def take_over(self, owner: ReplicaId, known: Sequence[TurnId], limit: int, *, beat: int) -> list[OpenTurn]:
        """Become the owner, in a new generation, of running turns that nobody runs.

        Those are the turns whose replica has not beaten for a TTL (database clock), and those of ``owner`` that it does not know a TTL
        after their start. ``beat`` is what the last beat of ``owner`` returned. Nothing is taken when that was not the last one, or when
        it is older than half a TTL: the database then stood still in between, and the beats of the others may wait behind this call.
        """

    async def cancel_unwatched(self, turn_id: TurnId, reason: InterruptReason) -> Unwatched:
        """Mark a turn as to be stopped unless a follower on another replica said lately that it reads it."""

    async def watch(self, turns: Sequence[TurnId], for_s: float) -> None:
        """Say that somebody here reads these turns, which run elsewhere and end when nobody does."""

    async def get(self, tenant_id: TenantId, turn_id: TurnId) -> TurnView | None:
        """One turn, ``None`` when unknown to the tenant."""

    async def list_for_session(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[TurnView]:
        """Turns of a session, newest first."""

    async def read_events(self, cursors: Sequence[tuple[TurnId, int]]) -> dict[tuple[TurnId, int], tuple[list[EventRow], bool]]:
        """For each (turn, after): the next stored rows behind ``after`` (bounded), and whether the turn is over, or waits, at ``after``."""

    async def prune(self, ages: PruneAges) -> int:
        """Delete deltas of long ended turns and old stateless turns, forget old idempotency keys; returns the deltas and turns removed.

        A stateless turn stays as long as its idempotency key can still name it.
        """


class CallStore(Protocol):
    """Records of tool calls (:class:`app.domain.tools.CallRecord`), written with :attr:`app.domain.turns.Commit.tool_calls`."""

    async def newest(self, tenant_id: TenantId, turn_id: TurnId, limit: int) -> list[CallRecord]:
        """The last calls of a turn that have results, in the order of their places, without outputs; none of an unknown turn."""

    async def output(self, tenant_id: TenantId, turn_id: TurnId, tool_call_id: str, seq: int | None) -> str | None:
        """As much as is kept of a call's result; ``seq`` is its place, where an id came again (else the newest is meant).

        ``None`` when the call is unknown to the tenant, or nothing is kept of it any more.
        """


class ReplicaStore(Protocol):
    """The replicas' heartbeats, on the database's clock."""

    async def beat(self, replica: ReplicaId, ttl_s: float) -> int:
        """Say that ``replica`` lives for another ``ttl_s``; returns until when, in microseconds of the database's clock."""

    async def leave(self, replica: ReplicaId) -> None:
        """Take the replica off the list: it has nothing left to own."""

    async def others_alive(self, replica: ReplicaId) -> bool:
        """Whether another replica is alive."""


class Wakeups(Protocol):
    """Notifications between replicas: only ever a hint, polling alone is enough."""

    def announce(self, topic: str, turn_ids: Iterable[TurnId] = ()) -> None:
        """Tell every replica, soon and coalesced; never blocks, never raises."""

    def subscribe(self, topic: str, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with a turn id (or an empty string) for each announcement under ``topic``."""


class UsageStore(Protocol):
    """What tenants have used, by the database's clock; days are UTC."""

    async def today(self, tenant_id: TenantId) -> DayUse:
        """What the tenant's turns used today.

        From its first call on for a tenant, the end of a turn adds to the day's sums, and each of its commits that is asked to
        (:attr:`app.domain.turns.Commit.counts`); that call takes the day so far from the stored turns that have ended.
        """

    async def report(self, tenant: str | None, first: date, last: date) -> list[UsageLine]:
        """Use per tenant, day and route from ``first`` to ``last``, from the turns that are stored; of one tenant by name, or of all."""
