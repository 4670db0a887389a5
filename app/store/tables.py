"""The tables. Only repositories in this package and alembic know them.

Bodies that must come back byte for byte (messages, frames, machine state) are ``bytea``; what SQL itself decides on has columns.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp())


tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("disabled", Boolean, nullable=False, server_default=text("false")),
    Column("revision", BigInteger, nullable=False, server_default=text("1"), comment="rises with every change"),
    Column("settings", LargeBinary, nullable=False, comment="JSON of TenantSettings"),
    _created(),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the key"),
    Column("hint", Text, nullable=False, comment="its last four characters"),
    Column("disabled", Boolean, nullable=False, server_default=text("false")),
    _created(),
)

providers = Table(
    "providers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("api_mode", Text, nullable=False),
    Column("base_url", Text, nullable=False),
    Column("api_key_env", Text, comment="name of the environment variable that holds the credential"),
    Column("api_key_sealed", LargeBinary, comment="the credential, encrypted"),
    Column("headers_sealed", LargeBinary, comment="JSON of extra headers, encrypted: they may hold credentials"),
    Column("rpm", Integer, comment="requests per minute; NULL is no limit"),
    Column("tpm", Integer, comment="tokens per minute; NULL is no limit"),
    _created(),
    UniqueConstraint("tenant_id", "name"),
)

routes = Table(
    "routes",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("provider_id", Text, ForeignKey("providers.id", ondelete="CASCADE"), nullable=False),
    Column("model", Text, nullable=False),
    Column("context_window", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("max_output_tokens", Integer, nullable=False),
    Column("connect_timeout_s", Double, nullable=False),
    Column("first_token_timeout_s", Double, nullable=False),
    Column("stale_timeout_s", Double, nullable=False),
    Column("max_attempts", SmallInteger, nullable=False),
    Column("patience_s", Double, nullable=False, comment="longest wait for rpm and tpm"),
    Column("prices", LargeBinary, comment="JSON of Prices"),
    Column("rpm", Integer, comment="requests per minute of this model; NULL is no limit"),
    Column("tpm", Integer, comment="tokens per minute of this model; NULL is no limit"),
    PrimaryKeyConstraint("tenant_id", "purpose", "position"),
)

tools = Table(
    "tools",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False, comment="webhook"),
    Column("config", LargeBinary, nullable=False, comment="JSON of what is no secret"),
    Column("secret_env", Text, comment="name of the environment variable that holds the signing secret"),
    Column("secret_sealed", LargeBinary, comment="the signing secret, encrypted"),
    Column("headers_sealed", LargeBinary, comment="JSON of extra headers, encrypted: they may hold credentials"),
    _created(),
    PrimaryKeyConstraint("tenant_id", "name"),
)

mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("config", LargeBinary, nullable=False, comment="JSON of what is no secret"),
    Column("credential_env", Text, comment="name of the environment variable that holds the credential"),
    Column("credential_sealed", LargeBinary, comment="the credential, encrypted"),
    Column("headers_sealed", LargeBinary, comment="JSON of extra headers, encrypted: they may hold credentials"),
    _created(),
    PrimaryKeyConstraint("tenant_id", "name"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("system_prompt", Text, nullable=False),
    Column("model", Text),
    Column("toolsets", LargeBinary, nullable=False, comment="JSON list of names"),
    Column("tools", LargeBinary, nullable=False, comment="canonical JSON list of ToolSpec: the session's snapshot"),
    Column("end_user", Text),
    Column("keep_interrupted_text", Boolean, nullable=False, server_default=text("false")),
    Column("metadata", LargeBinary, nullable=False, comment="JSON object of strings"),
    Column("next_seq", BigInteger, nullable=False, server_default=text("1"), comment="of its messages"),
    Column("memory", Text, comment="the snapshot of memory behind its system prompt; NULL for none"),
    Column("summary", Text, comment="the active summary's body; NULL for none"),
    Column("context", LargeBinary, comment="JSON of ContextState; NULL before the first model call"),
    Column("idempotency_key", Text),
    Column("fingerprint", LargeBinary),
    Column(
        "parent_session_id",
        Text,
        ForeignKey("sessions.id", ondelete="CASCADE"),
        comment="a child turn's session: in no list, goes with its parent",
    ),
    _created(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_sessions_parent", "parent_session_id", postgresql_where=text("parent_session_id IS NOT NULL")),
    Index("ix_sessions_tenant_id_id", "tenant_id", "id"),
    Index("ix_sessions_tenant_id_end_user_id", "tenant_id", "end_user", "id"),
    Index("uq_sessions_idempotency", "tenant_id", "idempotency_key", unique=True, postgresql_where=text("idempotency_key IS NOT NULL")),
)

messages = Table(
    "messages",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("id", Text, nullable=False),
    Column("turn_id", Text, comment="the turn that wrote it; NULL for imported ones"),
    Column("note", Boolean, nullable=False, server_default=text("false"), comment="kind = note: not in the transcript"),
    Column("archived", Boolean, nullable=False, server_default=text("false"), comment="no longer in the working set"),
    Column("body", LargeBinary, nullable=False, comment="JSON of Message"),
    _created(),
    PrimaryKeyConstraint("session_id", "seq"),
    Index("ix_messages_context", "session_id", "seq", postgresql_where=text("NOT archived")),
    Index("ix_messages_archived", "created_at", postgresql_where=text("archived")),
)

summaries = Table(
    "summaries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Text, comment="the turn that made it"),
    Column("active", Boolean, nullable=False, comment="it is what the model is shown"),
    Column("body", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("tokens_before", Integer, nullable=False, comment="of the context, by estimate"),
    Column("tokens_after", Integer, nullable=False, comment="of the context, by estimate"),
    Column("usage", LargeBinary, nullable=False, comment="JSON of Usage: of making it"),
    Column("cost_usd", Double, comment="of making it; NULL when no prices are known"),
    Column("reason", Text, nullable=False),
    _created(),
    Index("ix_summaries_session_id_id", "session_id", "id"),
    Index("uq_summaries_active", "session_id", unique=True, postgresql_where=text("active")),
    Index("ix_summaries_inactive", "created_at", postgresql_where=text("NOT active")),
)

memory = Table(
    "memory",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("end_user", Text, nullable=False, comment="empty: of all sessions without an end user"),
    Column("notes", Text, nullable=False),
    Column("user_profile", Text, nullable=False),
    Column("revision", BigInteger, nullable=False, comment="rises with every write"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    PrimaryKeyConstraint("tenant_id", "end_user"),
)

message_search = Table(
    "message_search",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("terms", TSVECTOR, nullable=False, comment="what the message is found by, and its tenant's id"),
    PrimaryKeyConstraint("session_id", "seq"),
    ForeignKeyConstraint(["session_id", "seq"], ["messages.session_id", "messages.seq"], ondelete="CASCADE"),
    Index("ix_message_search_terms", "terms", postgresql_using="gin"),
)

search_queue = Table(
    "search_queue",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("seqs", ARRAY(BigInteger), nullable=False),
)
"""Messages that are not in the index yet. No key, no index: writing a row must cost a turn next to nothing."""

turns = Table(
    "turns",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), comment="NULL for a stateless call"),
    Column("history", LargeBinary, comment="of a stateless call: JSON list of Message, its input included"),
    Column("state", Text, nullable=False),
    Column("rank", SmallInteger, nullable=False, server_default=text("1"), comment="0 jumps the session's queue"),
    Column("ordinal", BigInteger, Identity(always=True), nullable=False, comment="the queue's order"),
    Column("owner", Text, comment="replica that runs it"),
    Column("generation", Integer, nullable=False, server_default=text("0"), comment="rises with every owner"),
    Column("cancel_reason", Text, comment="somebody wants it stopped"),
    Column("expires_at", DateTime(timezone=True), comment="it waits for somebody until then"),
    Column("watched_until", DateTime(timezone=True), comment="read on another replica; it matters to turns that end with their readers"),
    Column("request", LargeBinary, nullable=False, comment="JSON of TurnRequest"),
    Column("message_id", Text, nullable=False, comment="of its user message"),
    Column("input_message", LargeBinary, nullable=False, comment="JSON of its user message"),
    Column("machine", LargeBinary, nullable=False, comment="JSON of MachineState"),
    Column("last_seq", BigInteger, nullable=False, server_default=text("0"), comment="its last stored event"),
    Column("reason", Text, comment="of its terminal state"),
    Column("outcome", LargeBinary, comment="JSON data of its terminal event"),
    Column("idempotency_key", Text),
    Column("fingerprint", LargeBinary),
    _created(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("deltas_pruned", Boolean, nullable=False, server_default=text("false")),
    Column("parent_turn_id", Text, comment="the turn that started it and outlives it"),
    Index("ix_turns_open_children", "parent_turn_id", postgresql_where=text("parent_turn_id IS NOT NULL AND ended_at IS NULL")),
    Index(
        "uq_turns_session_holder", "session_id", unique=True, postgresql_where=text("state IN ('running', 'requires_action', 'resuming')")
    ),
    Index("ix_turns_queue", "session_id", "rank", "ordinal", postgresql_where=text("state = 'queued'")),
    Index("ix_turns_waiting", "expires_at", postgresql_where=text("state = 'requires_action'")),
    Index("ix_turns_resuming", "ordinal", postgresql_where=text("state = 'resuming'")),
    Index("ix_turns_running", "owner", postgresql_where=text("state = 'running'")),
    Index("ix_turns_cancelled", "owner", postgresql_where=text("state = 'running' AND cancel_reason IS NOT NULL")),
    Index("ix_turns_session_id_id", "session_id", "id"),
    Index("ix_turns_unpruned", "ended_at", postgresql_where=text("ended_at IS NOT NULL AND NOT deltas_pruned")),
    Index("ix_turns_stateless", "ended_at", postgresql_where=text("ended_at IS NOT NULL AND session_id IS NULL")),
    Index("uq_turns_idempotency", "session_id", "idempotency_key", unique=True, postgresql_where=text("idempotency_key IS NOT NULL")),
)

kanban_cards = Table(
    "kanban_cards",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Text, comment="the turn that made it"),
    Column("child_turn_id", Text, comment="the child turn that works on it"),
    Column("title", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("result", Text, nullable=False),
    _created(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
    Index("ix_kanban_cards_session_id_id", "session_id", "id"),
)

stateless_keys = Table(
    "stateless_keys",
    metadata,
    Column("tenant_id", Text, nullable=False),
    Column("key", Text, nullable=False, comment="idempotency key, with the path that it is for"),
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False, index=True),
    _created(),
    PrimaryKeyConstraint("tenant_id", "key"),
)
"""Of stateless calls: those of sessions are unique by an index of ``turns``, which a call without a session is not in."""

turn_answers = Table(
    "turn_answers",
    metadata,
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("key", Text, nullable=False, comment="idempotency key of answers for a waiting turn"),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("after_seq", BigInteger, nullable=False, comment="the turn's last event before them"),
    Column("complete", Boolean, nullable=False, comment="the turn went on with them"),
    _created(),
    PrimaryKeyConstraint("turn_id", "key"),
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False, comment="the place of its result among the messages"),
    Column("call_id", Text, nullable=False, comment="may come again in a turn"),
    Column("name", Text, nullable=False),
    Column("toolset", Text),
    Column("arguments", Text, nullable=False, comment="without secrets, cut"),
    Column("status", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), comment="NULL: not run"),
    Column("duration_ms", BigInteger, nullable=False),
    Column("output", Text, comment="where its message has a cut one; NULL again once it is pruned"),
    PrimaryKeyConstraint("turn_id", "seq"),
)

turn_events = Table(
    "turn_events",
    metadata,
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False, comment="RowKind"),
    Column("frames", LargeBinary, nullable=False, comment="ready SSE frames"),
    PrimaryKeyConstraint("turn_id", "first_seq"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", Text, primary_key=True),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    _created(),
)

todos = Table(
    "todos",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("items", LargeBinary, nullable=False),
)

rate_windows = Table(
    "rate_windows",
    metadata,
    Column("key", Text, primary_key=True, comment="what is limited; holds no credential"),
    Column("seconds", ARRAY(BigInteger), nullable=False, comment="unix seconds with calls made or booked, ascending"),
    Column("calls", ARRAY(Integer), nullable=False, comment="made or booked, per second"),
    Column("tokens", ARRAY(BigInteger), nullable=False, comment="used or booked, per second"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)

cooldowns = Table(
    "cooldowns",
    metadata,
    Column("key", Text, primary_key=True, comment="what failed; holds no credential"),
    Column("scope", Text, nullable=False),
    Column("reason", Text, nullable=False, comment="of the last failure"),
    Column("until_at", DateTime(timezone=True), nullable=False),
    Column("promised", Boolean, nullable=False, comment="the provider named the time itself"),
    Column("failures", Integer, nullable=False, comment="in a row"),
    Column("probe_until", DateTime(timezone=True), comment="somebody tries it"),
    Column("recent", JSONB, nullable=False, comment="list of FailureNote, newest first"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()),
)

tenant_usage = Table(
    "tenant_usage",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("day", Date, nullable=False, comment="UTC"),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_usd", Double, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("tenant_id", "day"),
)
