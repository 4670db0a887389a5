"""Sessions: one conversation of a tenant."""

from typing import Generic, TypeVar

import msgspec

from app.domain.ids import SessionId, TenantId
from app.domain.messages import Message


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session to create. ``tools`` is the canonical JSON snapshot of its tool definitions, ``messages`` an imported, repaired history."""

    id: SessionId
    tenant_id: TenantId
    system_prompt: str
    model: str | None
    toolsets: tuple[str, ...]
    tools: bytes
    user: str | None
    keep_interrupted_text: bool
    metadata: dict[str, str]
    messages: tuple[tuple[str, Message], ...]
    """Pairs of message id and message."""
    idempotency_key: str | None
    fingerprint: bytes
    memory: str | None = None
    """The snapshot of memory that its prompt ends with; ``None`` for none."""
    parent_session_id: SessionId | None = None
    """It is the session of a child turn: in no list, and goes with its parent's."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as stored; times in unix milliseconds. ``active_turn_id`` is the turn that runs now."""

    id: SessionId
    tenant_id: TenantId
    system_prompt: str
    model: str | None
    toolsets: tuple[str, ...]
    user: str | None
    keep_interrupted_text: bool
    metadata: dict[str, str]
    active_turn_id: str | None
    created_at_ms: int
    updated_at_ms: int


class SessionChange(msgspec.Struct, frozen=True, kw_only=True):
    """What PATCH may change; ``UNSET`` leaves it alone. ``tools`` is set together with ``toolsets``.

    ``memory`` is the snapshot behind the prompt. It was read for an end user: with ``if_user`` the change is only for a session that
    still is that user's.
    """

    system_prompt: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    toolsets: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    tools: bytes | msgspec.UnsetType = msgspec.UNSET
    user: str | msgspec.UnsetType | None = msgspec.UNSET
    keep_interrupted_text: bool | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    memory: str | msgspec.UnsetType | None = msgspec.UNSET
    if_user: str | msgspec.UnsetType | None = msgspec.UNSET


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a listing; ``next_cursor`` is set when there is more."""

    data: tuple[T, ...]
    next_cursor: str | None

    @property
    def has_more(self) -> bool:
        """Whether another page follows."""
        return self.next_cursor is not None
