"""Sessions and what belongs to them."""

from typing import Protocol

from app.domain.ids import SessionId, TenantId
from app.domain.kanban import Card, CardChange, NewCard
from app.domain.memory import Memory
from app.domain.messages import StoredMessage
from app.domain.recall import Reader, SearchHit, SessionExcerpt
from app.domain.sessions import NewSession, Page, Session, SessionChange
from app.domain.summaries import Summary


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


class KanbanStore(Protocol):
    """Boards of sessions: cards in the order in which they were made."""

    async def add(self, card: NewCard) -> Card | None:
        """Put a card on its session's board; ``None`` when that is full or gone."""

    async def change(self, session_id: SessionId, card_id: str, change: CardChange) -> Card | None:
        """Change a card; its times follow its state. ``None`` when the board has no such card."""

    async def card(self, session_id: SessionId, card_id: str) -> Card | None:
        """One card of a board."""

    async def board(self, session_id: SessionId) -> list[Card]:
        """All cards of a board."""

    async def page(self, tenant_id: TenantId, session_id: SessionId, limit: int, after: str | None) -> Page[Card] | None:
        """Cards; ``after`` is a card's id. ``None`` when the session is unknown to the tenant."""


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
