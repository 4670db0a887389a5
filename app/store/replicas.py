"""Replicas: who is alive, on the database's clock."""

from sqlalchemy import text

from app.domain.ids import ReplicaId
from app.store.engine import Database, Statement

_BEAT = Statement(
    text("""
INSERT INTO replicas (id, expires_at) VALUES (:id, clock_timestamp() + make_interval(secs => :ttl_s))
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
RETURNING CAST(extract(epoch FROM expires_at) * 1000000 AS bigint) AS expires_at_us
""")
)
_LEAVE = Statement(text("DELETE FROM replicas WHERE id = :id"))
_OTHERS = Statement(text("SELECT EXISTS (SELECT 1 FROM replicas WHERE id <> :id AND expires_at > clock_timestamp()) AS alive"))


class ReplicaRepository:
    """:class:`app.ports.ReplicaStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def beat(self, replica: ReplicaId, ttl_s: float) -> int:
        """Say that ``replica`` lives for another ``ttl_s``; returns until when, in microseconds of the database's clock."""
        return int((await self._database.fetch(_BEAT, {"id": replica, "ttl_s": ttl_s}))[0].expires_at_us)

    async def leave(self, replica: ReplicaId) -> None:
        """Take the replica off the list."""
        await self._database.fetch(_LEAVE, {"id": replica})

    async def others_alive(self, replica: ReplicaId) -> bool:
        """Whether another replica is alive."""
        return bool((await self._database.fetch(_OTHERS, {"id": replica}))[0].alive)
