"""Tenants of a check, written straight to the database."""

from collections.abc import Sequence

from app.clock import SystemClock
from app.domain.tenants import TenantSpec
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository


async def write_tenants(database_url: str, secret_key: str, specs: Sequence[TenantSpec]) -> None:
    """Create tenants; their credentials are sealed with `secret_key`."""
    database = Database(database_url, pool_size=2)
    try:
        repository = TenantRepository(database, SystemClock(), Sealer(secret_key), {})
        for spec in specs:
            await repository.apply(spec, generate_key=False)
    finally:
        await database.close()
