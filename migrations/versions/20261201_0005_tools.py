"""Tools of tenants: webhooks.

Revision ID: 0005
Revises: 0004
Kind: expand. One new table, of which replicas of the version before know nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "tools",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="webhook"),
        sa.Column("config", sa.LargeBinary(), nullable=False, comment="JSON of what is no secret"),
        sa.Column("secret_env", sa.Text(), comment="name of the environment variable that holds the signing secret"),
        sa.Column("secret_sealed", sa.LargeBinary(), comment="the signing secret, encrypted"),
        sa.Column("headers_sealed", sa.LargeBinary(), comment="JSON of extra headers, encrypted: they may hold credentials"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_tools_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_tools"),
    )


def downgrade() -> None:
    """Drop it again."""
    op.drop_table("tools")
