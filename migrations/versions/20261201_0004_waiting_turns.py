"""Turns that wait for somebody.

Revision ID: 0004
Revises: 0003
Kind: expand. A column without a default, a table, and three partial indexes. ``uq_turns_session_holder`` stands before
``uq_turns_session_slot``, which it contains, goes: a session never has two turns at a time, also for replicas of the version before. Those
know neither of the two new states: they never take a turn up that waits or goes on, cannot show it (500), and take its session for gone
(404), until they are replaced.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, the table and the indexes; the wider slot takes the place of the old one."""
    op.add_column("turns", sa.Column("expires_at", sa.DateTime(timezone=True), comment="it waits for somebody until then"))
    op.create_index(
        "uq_turns_session_holder",
        "turns",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('running', 'requires_action', 'resuming')"),
    )
    op.drop_index("uq_turns_session_slot", "turns")
    op.create_index("ix_turns_waiting", "turns", ["expires_at"], postgresql_where=sa.text("state = 'requires_action'"))
    op.create_index("ix_turns_resuming", "turns", ["ordinal"], postgresql_where=sa.text("state = 'resuming'"))
    op.create_table(
        "turn_answers",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False, comment="idempotency key of answers for a waiting turn"),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("after_seq", sa.BigInteger(), nullable=False, comment="the turn's last event before them"),
        sa.Column("complete", sa.Boolean(), nullable=False, comment="the turn went on with them"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], ondelete="CASCADE", name="fk_turn_answers_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", "key", name="pk_turn_answers"),
    )


def downgrade() -> None:
    """Drop them again. Turns that wait are left to nobody: end them first."""
    op.drop_table("turn_answers")
    op.drop_index("ix_turns_resuming", "turns")
    op.drop_index("ix_turns_waiting", "turns")
    op.create_index("uq_turns_session_slot", "turns", ["session_id"], unique=True, postgresql_where=sa.text("state = 'running'"))
    op.drop_index("uq_turns_session_holder", "turns")
    op.drop_column("turns", "expires_at")
