"""Turns of calls without a session are found by their end, to be deleted some time after it.

Revision ID: 0006
Revises: 0005
Kind: expand. One small index of ``turns``, built while it can be read; writers wait for as long.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("ix_turns_stateless", "turns", ["ended_at"], postgresql_where=sa.text("ended_at IS NOT NULL AND session_id IS NULL"))


def downgrade() -> None:
    """Drop it again."""
    op.drop_index("ix_turns_stateless", "turns")
