"""Limits and health of model targets, stateless calls, daily use of tenants.

Revision ID: 0002
Revises: 0001
Kind: expand. New tables, new columns without defaults, one NOT NULL dropped: each takes its lock for a moment only, and replicas of
the version before go on working. Downgrading deletes the stateless calls.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and columns."""
    _create_limits()
    op.create_table(
        "tenant_usage",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False, comment="UTC"),
        sa.Column("tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("cost_usd", sa.Double(), nullable=False, server_default=sa.text("0")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], ondelete="CASCADE", name="fk_tenant_usage_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "day", name="pk_tenant_usage"),
    )
    op.add_column("routes", sa.Column("rpm", sa.Integer(), comment="requests per minute of this model; NULL is no limit"))
    op.add_column("routes", sa.Column("tpm", sa.Integer(), comment="tokens per minute of this model; NULL is no limit"))
    op.add_column("turns", sa.Column("history", sa.LargeBinary(), comment="of a stateless call: JSON list of Message, its input included"))
    op.alter_column("turns", "session_id", nullable=True, comment="NULL for a stateless call")
    op.create_table(
        "stateless_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False, comment="idempotency key, with the path that it is for"),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], ondelete="CASCADE", name="fk_stateless_keys_turn_id"),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_stateless_keys"),
    )
    op.create_index("ix_stateless_keys_turn_id", "stateless_keys", ["turn_id"])


def downgrade() -> None:
    """Drop them again."""
    op.drop_table("stateless_keys")
    op.execute("DELETE FROM turns WHERE session_id IS NULL")
    op.alter_column("turns", "session_id", nullable=False, comment=None)
    op.drop_column("turns", "history")
    op.drop_column("routes", "tpm")
    op.drop_column("routes", "rpm")
    for table in ("tenant_usage", "cooldowns", "rate_windows"):
        op.drop_table(table)


def _create_limits() -> None:
    op.create_table(
        "rate_windows",
        sa.Column("key", sa.Text(), nullable=False, comment="what is limited; holds no credential"),
        sa.Column("seconds", ARRAY(sa.BigInteger()), nullable=False, comment="unix seconds with calls made or booked, ascending"),
        sa.Column("calls", ARRAY(sa.Integer()), nullable=False, comment="made or booked, per second"),
        sa.Column("tokens", ARRAY(sa.BigInteger()), nullable=False, comment="used or booked, per second"),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.PrimaryKeyConstraint("key", name="pk_rate_windows"),
    )
    op.create_table(
        "cooldowns",
        sa.Column("key", sa.Text(), nullable=False, comment="what failed; holds no credential"),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="of the last failure"),
        sa.Column("until_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("promised", sa.Boolean(), nullable=False, comment="the provider named the time itself"),
        sa.Column("failures", sa.Integer(), nullable=False, comment="in a row"),
        sa.Column("probe_until", sa.DateTime(timezone=True), comment="somebody tries it"),
        sa.Column("recent", JSONB(), nullable=False, comment="list of FailureNote, newest first"),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.PrimaryKeyConstraint("key", name="pk_cooldowns"),
    )
