"""The first schema.

Revision ID: 0001
Revises: nothing
Kind: expand, into an empty database. Takes no lock that anybody could wait for: there is nothing yet to read. Downgrading deletes
everything.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = ("tenants", "api_keys", "providers", "routes", "sessions", "messages", "todos", "turns", "turn_events", "replicas")
"""In the order of creation: what is referred to comes first."""


def upgrade() -> None:
    """Create all tables."""
    _create_tenants()
    _create_sessions()
    _create_turns()


def downgrade() -> None:
    """Drop all tables, with their indexes and all that is in them."""
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create_tenants() -> None:
    """Who may call, and what a tenant configures."""
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default=sa.text("1"), nullable=False, comment="rises with every change"),
        sa.Column("settings", sa.LargeBinary(), nullable=False, comment="JSON of TenantSettings"),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the key"),
        sa.Column("hint", sa.Text(), nullable=False, comment="its last four characters"),
        sa.Column("disabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "providers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("api_mode", sa.Text(), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("api_key_env", sa.Text(), nullable=True, comment="name of the environment variable that holds the credential"),
        sa.Column("api_key_sealed", sa.LargeBinary(), nullable=True, comment="the credential, encrypted"),
        sa.Column("headers_sealed", sa.LargeBinary(), nullable=True, comment="JSON of extra headers, encrypted: they may hold credentials"),
        sa.Column("rpm", sa.Integer(), nullable=True, comment="requests per minute; NULL is no limit"),
        sa.Column("tpm", sa.Integer(), nullable=True, comment="tokens per minute; NULL is no limit"),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_providers_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_providers")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_providers_tenant_id_name")),
    )
    op.create_table(
        "routes",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("context_window", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("max_output_tokens", sa.Integer(), nullable=False),
        sa.Column("connect_timeout_s", sa.Double(), nullable=False),
        sa.Column("first_token_timeout_s", sa.Double(), nullable=False),
        sa.Column("stale_timeout_s", sa.Double(), nullable=False),
        sa.Column("max_attempts", sa.SmallInteger(), nullable=False),
        sa.Column("patience_s", sa.Double(), nullable=False, comment="longest wait for rpm and tpm"),
        sa.Column("prices", sa.LargeBinary(), nullable=True, comment="JSON of Prices"),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_routes_provider_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_routes_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant_id", "purpose", "position", name=op.f("pk_routes")),
    )


def _create_sessions() -> None:
    """Conversations and what is kept with them."""
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("system_prompt", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("toolsets", sa.LargeBinary(), nullable=False, comment="JSON list of names"),
        sa.Column("tools", sa.LargeBinary(), nullable=False, comment="canonical JSON list of ToolSpec: the session's snapshot"),
        sa.Column("end_user", sa.Text(), nullable=True),
        sa.Column("keep_interrupted_text", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("metadata", sa.LargeBinary(), nullable=False, comment="JSON object of strings"),
        sa.Column("next_seq", sa.BigInteger(), server_default=sa.text("1"), nullable=False, comment="of its messages"),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_sessions_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_tenant_id_id", "sessions", ["tenant_id", "id"], unique=False)
    op.create_index(
        "uq_sessions_idempotency",
        "sessions",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "messages",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=True, comment="the turn that wrote it; NULL for imported ones"),
        sa.Column("note", sa.Boolean(), server_default=sa.text("false"), nullable=False, comment="kind = note: not in the transcript"),
        sa.Column("archived", sa.Boolean(), server_default=sa.text("false"), nullable=False, comment="no longer in the working set"),
        sa.Column("body", sa.LargeBinary(), nullable=False, comment="JSON of Message"),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_messages_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "seq", name=op.f("pk_messages")),
    )
    op.create_table(
        "todos",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("items", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_todos_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_todos")),
    )


def _create_turns() -> None:
    """The queue of turns, their events, and the replicas that run them."""
    op.create_table(
        "turns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), server_default=sa.text("1"), nullable=False, comment="0 jumps the session's queue"),
        sa.Column("ordinal", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="the queue's order"),
        sa.Column("owner", sa.Text(), nullable=True, comment="replica that runs it"),
        sa.Column("generation", sa.Integer(), server_default=sa.text("0"), nullable=False, comment="rises with every owner"),
        sa.Column("cancel_reason", sa.Text(), nullable=True, comment="somebody wants it stopped"),
        sa.Column(
            "watched_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="read on another replica; it matters to turns that end with their readers",
        ),
        sa.Column("request", sa.LargeBinary(), nullable=False, comment="JSON of TurnRequest"),
        sa.Column("message_id", sa.Text(), nullable=False, comment="of its user message"),
        sa.Column("input_message", sa.LargeBinary(), nullable=False, comment="JSON of its user message"),
        sa.Column("machine", sa.LargeBinary(), nullable=False, comment="JSON of MachineState"),
        sa.Column("last_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment="its last stored event"),
        sa.Column("reason", sa.Text(), nullable=True, comment="of its terminal state"),
        sa.Column("outcome", sa.LargeBinary(), nullable=True, comment="JSON data of its terminal event"),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deltas_pruned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_turns_session_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_turns_tenant_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
    )
    op.create_index(
        "ix_turns_cancelled", "turns", ["owner"], unique=False, postgresql_where=sa.text("state = 'running' AND cancel_reason IS NOT NULL")
    )
    op.create_index(
        "ix_turns_queue", "turns", ["session_id", "rank", "ordinal"], unique=False, postgresql_where=sa.text("state = 'queued'")
    )
    op.create_index("ix_turns_running", "turns", ["owner"], unique=False, postgresql_where=sa.text("state = 'running'"))
    op.create_index("ix_turns_session_id_id", "turns", ["session_id", "id"], unique=False)
    op.create_index(
        "ix_turns_unpruned", "turns", ["ended_at"], unique=False, postgresql_where=sa.text("ended_at IS NOT NULL AND NOT deltas_pruned")
    )
    op.create_index(
        "uq_turns_idempotency",
        "turns",
        ["session_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_index("uq_turns_session_slot", "turns", ["session_id"], unique=True, postgresql_where=sa.text("state = 'running'"))
    # A turn is updated often while it runs: room in its page keeps those updates off the indexes.
    op.execute("ALTER TABLE turns SET (fillfactor = 80)")
    op.create_table(
        "turn_events",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False, comment="RowKind"),
        sa.Column("frames", sa.LargeBinary(), nullable=False, comment="ready SSE frames"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_turn_events_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "first_seq", name=op.f("pk_turn_events")),
    )
    # Frames are sent as they are read: compressing them costs more than it saves.
    op.execute("ALTER TABLE turn_events ALTER COLUMN frames SET STORAGE EXTERNAL")
    op.create_table(
        "replicas",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replicas")),
    )
