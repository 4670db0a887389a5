"""Child turns and boards.

Revision ID: 0008
Revises: 0006
Kind: expand. Columns without defaults, a table, a partial index. Replicas of the version before list hidden sessions like others, and may
end a lost parent before its children.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, the index and the table."""
    op.add_column("sessions", sa.Column("parent_session_id", sa.Text(), comment="a child turn's session: in no list, goes with its parent"))
    op.create_foreign_key("fk_sessions_parent_session_id", "sessions", "sessions", ["parent_session_id"], ["id"], ondelete="CASCADE")
    op.create_index("ix_sessions_parent", "sessions", ["parent_session_id"], postgresql_where=sa.text("parent_session_id IS NOT NULL"))
    op.add_column("turns", sa.Column("parent_turn_id", sa.Text(), comment="the turn that started it and outlives it"))
    op.create_index(
        "ix_turns_open_children",
        "turns",
        ["parent_turn_id"],
        postgresql_where=sa.text("parent_turn_id IS NOT NULL AND ended_at IS NULL"),
    )
    op.create_table(
        "kanban_cards",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), comment="the turn that made it"),
        sa.Column("child_turn_id", sa.Text(), comment="the child turn that works on it"),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE", name="fk_kanban_cards_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_kanban_cards"),
    )
    op.create_index("ix_kanban_cards_session_id_id", "kanban_cards", ["session_id", "id"])


def downgrade() -> None:
    """Drop them again."""
    op.drop_table("kanban_cards")
    op.drop_index("ix_turns_open_children", "turns")
    op.drop_column("turns", "parent_turn_id")
    op.drop_index("ix_sessions_parent", "sessions")
    op.drop_constraint("fk_sessions_parent_session_id", "sessions", type_="foreignkey")
    op.drop_column("sessions", "parent_session_id")
