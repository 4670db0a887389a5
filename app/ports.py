"""What the inside needs from the outside. Each Protocol lists what it may raise; everything else is a fault.

Storage faults (database away) are :class:`app.domain.errors.UnavailableError` with code ``storage_unavailable`` in every store port.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Protocol

from app.domain.compaction import Room
from app.domain.delivery import Booked, Booking, Cooldown, CooldownReport, Limit, WindowUse
from app.domain.guardrails import ToolTraits
from app.domain.ids import KeyId, ReplicaId, SessionId, TenantId, TurnId
from app.domain.memory import Memory
from app.domain.messages import StoredMessage, ToolCall, ToolSpec
from app.domain.model import ModelChunk, ModelRequest, RouteRef, Usage
from app.domain.openings import NewTurn, Opening, OpenTurn, Replayed
from app.domain.quotas import DayUse, UsageLine
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.domain.sessions import NewSession, Page, Session, SessionChange
from app.domain.summaries import Summary
from app.domain.tenant_tools import EditTools, WebhookToolSpec
from app.domain.tenants import KeyInfo, Principal, Purpose, Tenant, TenantChange, TenantInfo, TenantSpec
from app.domain.tools import ToolContext, ToolOutcome
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


class Clock(Protocol):
    """Time. Tests put a hand-driven one in its place."""

    def now(self) -> datetime:
        """The wall clock, aware, UTC."""

    def unix_ms(self) -> int:
        """The wall clock in unix milliseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back and count on while the process is stopped."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; cancellable."""


class ModelClient(Protocol):
    """Something that answers model calls: one route, or a chain of them."""

    @property
    def primary(self) -> RouteRef:
        """The route that is asked first."""

    @property
    def room(self) -> Room:
        """The context window of that route."""

    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        """What ``usage`` costs on one of its routes; ``None`` when it has no prices, or the route is not one of them."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        """Yield batches of chunks (what arrived together comes together); the last chunk is one ``ModelReply``.

        Raises ContextOverflowError or ModelUnavailableError after the last ``AttemptFailed``. Closing the iterator, or cancelling
        the task that reads it, closes the provider's socket at once.
        """


class ModelClients(Protocol):
    """The model clients of all tenants."""

    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        """The tenant's ``chat`` chain, beginning at the route named ``model`` when one is given.

        Raises InvalidRequestError when the chain has no such model, or the tenant no chain.
        """

    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        """The tenant's chain for ``purpose``, its ``chat`` chain when it has none. Raises InvalidRequestError when it has neither."""


class Toolbox(Protocol):
    """The tools that the turns of one tenant can call."""

    def toolset_names(self) -> tuple[str, ...]:
        """Every toolset that a session may enable."""

    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        """The tools of these toolsets, sorted by name.

        Raises InvalidRequestError for an unknown toolset, UnavailableError (``toolset_unavailable``) for one whose tools are listed by a
        server that does not answer.
        """

    def traits(self) -> Mapping[str, ToolTraits]:
        """What guardrails have to know of tools, by name; a tool that is left out has no special traits."""
        return {}

    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Never raises for what the tool or the model did; cancellation passes through."""


class Toolboxes(Protocol):
    """The toolboxes of all tenants."""

    def for_tenant(self, tenant: Tenant) -> Toolbox:
        """The tenant's toolbox: the tools of the process, and the tenant's own. No I/O."""


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


class ReplicaStore(Protocol):
    """The replicas' heartbeats, on the database's clock."""

    async def beat(self, replica: ReplicaId, ttl_s: float) -> int:
        """Say that ``replica`` lives for another ``ttl_s``; returns until when, in microseconds of the database's clock."""

    async def leave(self, replica: ReplicaId) -> None:
        """Take the replica off the list: it has nothing left to own."""

    async def others_alive(self, replica: ReplicaId) -> bool:
        """Whether another replica is alive."""


class MessageStore(Protocol):
    """Messages of sessions."""

    async def working_set(self, session_id: SessionId) -> list[StoredMessage]:
        """The messages that the model is shown, in order; those of the running turn included."""

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after_seq: int) -> Page[StoredMessage] | None:
        """The transcript, archived rows included, notes left out; ``None`` when the session is unknown to the tenant."""


class SessionStore(Protocol):
    """Sessions."""

    async def create(self, session: NewSession) -> tuple[Session, bool]:
        """Write a session with its imported messages; a known idempotency key returns its session and ``True``.

        Raises ConflictError (``idempotency_mismatch``) when the key was used with another body.
        """

    async def get(self, tenant_id: TenantId, session_id: SessionId) -> Session | None:
        """One session, ``None`` when unknown to the tenant or deleted."""

    async def page(self, tenant_id: TenantId, limit: int, before: str | None, user: str | None) -> Page[Session]:
        """Sessions, newest first; ``before`` is a session id."""

    async def change(self, tenant_id: TenantId, session_id: SessionId, change: SessionChange) -> Session | None:
        """Apply a change; ``None`` when unknown, or no longer of the end user that the change is for (``if_user``)."""

    async def delete(self, tenant_id: TenantId, session_id: SessionId) -> bool:
        """Delete a session with all that belongs to it; false when unknown.

        Raises ConflictError (``turn_in_progress``) while a turn runs.
        """


class TodoStore(Protocol):
    """A session's todo list: one JSON document."""

    async def read(self, session_id: SessionId) -> bytes | None:
        """The list as written last."""

    async def write(self, session_id: SessionId, items: bytes) -> None:
        """Replace the list."""


class HealthStore(Protocol):
    """The health of model targets, shared by all replicas, on the database's clock. Holds rows only of what failed lately."""

    async def read(self) -> list[Cooldown]:
        """Everything that is cooling down or on probation."""

    async def report(self, report: CooldownReport) -> Cooldown:
        """Add a failure. A running cool-down is never made shorter by it, but by a promise: the provider itself named that time."""

    async def clear(self, keys: Sequence[str]) -> None:
        """These answered: forget their failures. A running cool-down that a provider asked for stays."""

    async def reset(self, keys: Sequence[str]) -> None:
        """Somebody says that these are well again: forget them, running cool-downs included."""

    async def claim_probe(self, key: str, for_s: float) -> bool:
        """Whether the caller may try what is on probation; for ``for_s`` seconds nobody else may. True when nothing is known of it."""

    async def leave_probe(self, keys: Sequence[str]) -> None:
        """What was claimed is not tried after all: the next one may."""

    async def prune(self, age_s: float) -> int:
        """Forget what has been quiet for ``age_s`` seconds; returns the rows removed."""


class RateWindowStore(Protocol):
    """Calls and tokens of the last 60 seconds per limit, shared by all replicas, on the database's clock."""

    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        """Take the earliest moment at which one call of ``tokens`` keeps all ``limits``, never before that of an earlier booking.

        One atomic statement. Refused, and nothing booked, when that moment is more than ``patience_s`` away.
        """

    async def give_back(self, booking: Booked) -> None:
        """The call was not made."""

    async def settle(self, booking: Booked, tokens: int) -> None:
        """The call used ``tokens`` in place of those booked."""

    async def use(self, keys: Sequence[str]) -> dict[str, WindowUse]:
        """What is used of these limits; those without a row are left out."""

    async def prune(self) -> int:
        """Delete windows that hold nothing; returns the rows removed."""


class UsageStore(Protocol):
    """What tenants have used, by the database's clock; days are UTC."""

    async def today(self, tenant_id: TenantId) -> DayUse:
        """What the tenant's turns used today.

        From its first call on for a tenant, the end of a turn adds to the day's sums, and each of its commits that is asked to
        (:attr:`app.domain.turns.Commit.counts`); that call takes the day so far from the stored turns that have ended.
        """

    async def report(self, tenant: str | None, first: date, last: date) -> list[UsageLine]:
        """Use per tenant, day and route from ``first`` to ``last``, from the turns that are stored; of one tenant by name, or of all."""


class TenantStore(Protocol):
    """Tenants, keys, providers, chains. Literal credentials are encrypted before they are written.

    Raises InvalidRequestError for a configuration that cannot work (unknown provider name in a chain, a literal credential without a
    secret key, …).
    """

    async def authenticate(self, key_hash: bytes) -> Principal | None:
        """Who owns the key with this SHA-256; ``None`` when unknown or disabled."""

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        """A tenant, resolved; ``None`` when unknown or disabled."""

    async def apply(self, spec: TenantSpec, *, generate_key: bool, create_only: bool = False) -> tuple[TenantInfo, str | None]:
        """Create the tenant or make it match ``spec``; idempotent. Returns a generated key, shown this once, if it made one.

        Keys are only added. A key is generated when the tenant would have none at all. Raises ConflictError (``tenant_exists``)
        with ``create_only``, ConflictError (``key_taken``) when a key of ``spec`` belongs to another tenant.
        """

    async def change(self, name: str, change: TenantChange) -> TenantInfo | None:
        """Replace parts of a tenant; idempotent; ``None`` when unknown."""

    async def change_tools(self, name: str, edit: EditTools) -> TenantInfo | None:
        """Replace a tenant's tools by what ``edit`` makes of them, with no other change in between; ``None`` when unknown.

        ``edit`` gets them as they are read back. What it raises passes through, and nothing is changed.
        """

    async def infos(self) -> list[TenantInfo]:
        """All tenants, by name."""

    async def page(self, limit: int, after: str | None) -> Page[TenantInfo]:
        """Tenants by name, behind the name ``after``."""

    async def info(self, name: str) -> TenantInfo | None:
        """One tenant."""

    async def set_disabled(self, name: str, disabled: bool) -> bool:
        """Disable or enable a tenant; false when unknown."""

    async def add_key(self, tenant_name: str, name: str) -> tuple[KeyInfo, str] | None:
        """Make a key; returns it with its secret, shown this once; ``None`` when the tenant is unknown."""

    async def rotate_key(self, key_id: KeyId) -> tuple[KeyInfo, str] | None:
        """Make a key in place of another, which is disabled; ``None`` when unknown.

        Raises ConflictError (``key_disabled``) when that one is disabled already: a repeated call must not make a second key.
        """

    async def disable_key(self, key_id: KeyId) -> bool:
        """Disable a key; false when unknown."""


class ToolRules(Protocol):
    """Judges the tools of tenants that only who runs tools can judge."""

    def check(self, tools: Sequence[WebhookToolSpec]) -> None:
        """Raises InvalidRequestError, its pointer beginning with ``/tools``, for a schema that cannot be used or a name that is taken."""


class Wakeups(Protocol):
    """Notifications between replicas: only ever a hint, polling alone is enough."""

    def announce(self, topic: str, turn_ids: Iterable[TurnId] = ()) -> None:
        """Tell every replica, soon and coalesced; never blocks, never raises."""

    def subscribe(self, topic: str, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with a turn id (or an empty string) for each announcement under ``topic``."""


class MemoryStore(Protocol):
    """What models keep of a tenant's end users. Sessions without an end user share one memory of the tenant."""

    async def of_user(self, tenant_id: TenantId, user: str | None) -> Memory:
        """The memory of an end user; an empty one when nothing was ever kept."""

    async def of_session(self, tenant_id: TenantId, session_id: SessionId) -> tuple[str | None, Memory]:
        """The end user of a session with their memory. Raises NotFoundError when the session is unknown to the tenant."""

    async def replace(self, tenant_id: TenantId, user: str | None, memory: Memory) -> bool:
        """Write ``memory``, made of the one with its ``revision``; false, and nothing is written, when somebody else wrote since."""


class SearchStore(Protocol):
    """A tenant's conversations, archived messages included, as one of its sessions may read them. Notes of the gateway are left out.

    Nothing is found for a reader whose session is unknown to its tenant.
    """

    async def discover(self, reader: Reader, query: str, within: SessionId | None, limit: int) -> list[SearchHit]:
        """Messages that hold every word of ``query``, newest first; where there are none, those with most of its words.

        One message of each session, or all those of the session ``within``; of the reader's own session only archived ones. What was
        written within the last second may be missing.
        """

    async def excerpt(self, reader: Reader, session_id: SessionId, first: int, last: int) -> SessionExcerpt | None:
        """The ``first`` and the ``last`` messages of a session; ``None`` when the reader may not read it."""

    async def around(self, reader: Reader, session_id: SessionId, seq: int, reach: int) -> SessionExcerpt | None:
        """The message at ``seq`` with ``reach`` messages on either side; ``None`` when the reader may not read the session."""

    async def recent(self, reader: Reader, limit: int) -> list[SessionExcerpt]:
        """The newest other sessions, each with its first message."""


class SummaryStore(Protocol):
    """Summaries of sessions, read. They are written in the commit of the turn that makes them."""

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, before: str | None) -> Page[Summary] | None:
        """Summaries, newest first; ``before`` is a summary's id. ``None`` when the session is unknown to the tenant."""


class ArchiveStore(Protocol):
    """What compactions took out of the context."""

    async def prune(self, age_s: float) -> int:
        """Delete archived messages and replaced summaries that are older than ``age_s`` seconds, some at a time; returns how many."""
