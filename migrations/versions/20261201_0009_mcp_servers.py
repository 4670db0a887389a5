"""MCP servers of tenants.

Revision ID: 0009
Revises: 0008
Kind: expand. One new table, of which replicas of the version before know nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "mcp_servers",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=False, comment="JSON of what is no secret"),
        sa.Column("credential_env", sa.Text(), comment="name of the environment variable that holds the credential"),
        sa.Column("credential_sealed", sa.LargeBinary(), comment="the credential, encrypted"),
        sa.Column("headers_sealed", sa.LargeBinary(), comment="JSON of extra headers, encrypted: they may hold credentials"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_mcp_servers_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_mcp_servers"),
    )


def downgrade() -> None:
    """Drop it again."""
    op.drop_table("mcp_servers")
