"""What a search in a tenant's own conversations finds. Times in unix milliseconds."""

import msgspec

from app.domain.ids import SessionId, TenantId
from app.domain.messages import StoredMessage


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """The session on whose behalf is searched: it sees the tenant's sessions of its own end user, without one those that have none."""

    tenant_id: TenantId
    session_id: SessionId


class SessionExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A session with some of its messages, in order; notes of the gateway are no part of either. ``total`` counts all messages."""

    session_id: SessionId
    created_at_ms: int
    updated_at_ms: int
    total: int
    messages: tuple[StoredMessage, ...]


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was found. ``hits`` counts those of its session; ``excerpt`` shows it and its neighbours."""

    seq: int
    hits: int
    excerpt: SessionExcerpt
