"""Memory, summaries, the search index, and what a session keeps of its context.

Revision ID: 0003
Revises: 0002
Kind: expand. New tables, new columns without defaults; the new indexes of ``sessions`` and ``messages`` are built while both can be read,
and writers wait for as long. Every message there is goes to the queue of the search index: until a replica of this version has worked
it off, older conversations are not found.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, TSVECTOR

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SESSION_COLUMNS = ("memory", "summary", "context")


def upgrade() -> None:
    """Add the tables and columns."""
    op.add_column("sessions", sa.Column("memory", sa.Text(), comment="the snapshot of memory behind its system prompt; NULL for none"))
    op.add_column("sessions", sa.Column("summary", sa.Text(), comment="the active summary's body; NULL for none"))
    op.add_column("sessions", sa.Column("context", sa.LargeBinary(), comment="JSON of ContextState; NULL before the first model call"))
    op.create_index("ix_sessions_tenant_id_end_user_id", "sessions", ["tenant_id", "end_user", "id"])
    op.create_index("ix_messages_context", "messages", ["session_id", "seq"], postgresql_where=sa.text("NOT archived"))
    op.create_index("ix_messages_archived", "messages", ["created_at"], postgresql_where=sa.text("archived"))
    op.create_table(
        "memory",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=False, comment="empty: of all sessions without an end user"),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("user_profile", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False, comment="rises with every write"),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_memory_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "end_user", name="pk_memory"),
    )
    _create_summaries()
    _create_search()


def downgrade() -> None:
    """Drop them again."""
    for table in ("search_queue", "message_search", "summaries", "memory"):
        op.drop_table(table)
    op.drop_index("ix_messages_archived", "messages")
    op.drop_index("ix_messages_context", "messages")
    op.drop_index("ix_sessions_tenant_id_end_user_id", "sessions")
    for column in _SESSION_COLUMNS:
        op.drop_column("sessions", column)


def _create_summaries() -> None:
    op.create_table(
        "summaries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), comment="the turn that made it"),
        sa.Column("active", sa.Boolean(), nullable=False, comment="it is what the model is shown"),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("tokens_before", sa.Integer(), nullable=False, comment="of the context, by estimate"),
        sa.Column("tokens_after", sa.Integer(), nullable=False, comment="of the context, by estimate"),
        sa.Column("usage", sa.LargeBinary(), nullable=False, comment="JSON of Usage: of making it"),
        sa.Column("cost_usd", sa.Double(), comment="of making it; NULL when no prices are known"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE", name="fk_summaries_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_summaries"),
    )
    op.create_index("ix_summaries_session_id_id", "summaries", ["session_id", "id"])
    op.create_index("uq_summaries_active", "summaries", ["session_id"], unique=True, postgresql_where=sa.text("active"))
    op.create_index("ix_summaries_inactive", "summaries", ["created_at"], postgresql_where=sa.text("NOT active"))


def _create_search() -> None:
    op.create_table(
        "message_search",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("terms", TSVECTOR(), nullable=False, comment="what the message is found by, and its tenant's id"),
        sa.ForeignKeyConstraint(
            ["session_id", "seq"], ["messages.session_id", "messages.seq"], ondelete="CASCADE", name="fk_message_search_session_id_seq"
        ),
        sa.PrimaryKeyConstraint("session_id", "seq", name="pk_message_search"),
    )
    op.create_index("ix_message_search_terms", "message_search", ["terms"], postgresql_using="gin")
    op.create_table(
        "search_queue",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seqs", ARRAY(sa.BigInteger()), nullable=False),
    )
    op.execute("INSERT INTO search_queue (session_id, seqs) SELECT session_id, ARRAY[seq] FROM messages WHERE NOT note ORDER BY 1, 2")
