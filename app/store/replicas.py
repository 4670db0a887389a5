"""Replicas: who is alive, on the database's clock."""

from sqlalchemy import text

from app.domain.ids import ReplicaId
from app.store.engine import Database, Statement

_BEAT = Statement(
    text("""
INSERT INTO replicas (id, expires_at) VALUES (:id, clock_timestamp() + make_interval(secs => :ttl_s))
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
""")
)
_LEAVE = Statement(text("DELETE FROM replicas WHERE id = :id"))
_OTHERS = Statement(text("SELECT EXISTS (SELECT 1 FROM replicas WHERE id <> :id AND expires_at > clock_timestamp()) AS alive"))


class ReplicaRepository:
    """:class:`app.ports.ReplicaStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, replica: ReplicaId, ttl_s: float) -> None:
        """Say that ``replica`` lives for another ``ttl_s``."""
        await self._database.fetch(_BEAT, {"id": replica, "ttl_s": ttl_s})

    async def leave(self, replica: ReplicaId) -> None:
        """Take the replica off the list."""
        await self._database.fetch(_LEAVE, {"id": replica})

    async def others_alive(self, replica: ReplicaId) -> bool:
        """Whether another replica is alive."""
        return bool((await self._database.fetch(_OTHERS, {"id": replica}))[0].alive)
