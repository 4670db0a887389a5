"""Records of tool calls.

Revision ID: 0010
Revises: 0009
Kind: expand. A table. Calls of replicas of the version before have no record.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "tool_calls",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="the place of its result among the messages"),
        sa.Column("call_id", sa.Text(), nullable=False, comment="may come again in a turn"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("toolset", sa.Text()),
        sa.Column("arguments", sa.Text(), nullable=False, comment="without secrets, cut"),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), comment="NULL: not run"),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.Text(), comment="where its message has a cut one; NULL again once it is pruned"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], ondelete="CASCADE", name="fk_tool_calls_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", "seq", name="pk_tool_calls"),
    )


def downgrade() -> None:
    """Drop it again."""
    op.drop_table("tool_calls")
