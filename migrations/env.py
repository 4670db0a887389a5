"""Alembic's environment: runs on the connection that the caller gives (see app/store/migrate.py)."""

from alembic import context

from app.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True, transaction_per_migration=True
)
with context.begin_transaction():
    context.run_migrations()
