"""Heartbeats in memory: :class:`app.ports.ReplicaStore`."""

from typing_extensions import override

from app.domain.errors import UnavailableError
from app.domain.ids import ReplicaId
from app.ports import Clock, ReplicaStore


def away() -> UnavailableError:
    """What every store raises while the database is away."""
    return UnavailableError("storage_unavailable", "The database cannot be reached right now.")


class InMemoryReplicas(ReplicaStore):
    """Heartbeats; ``away`` makes every call fail like a database that is gone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.expires_at: dict[ReplicaId, float] = {}
        self.away = False

    def is_alive(self, replica: ReplicaId | None) -> bool:
        """Whether a replica has beaten lately."""
        return replica is not None and self.expires_at.get(replica, float("-inf")) > self._clock.monotonic()

    @override
    async def beat(self, replica: ReplicaId, ttl_s: float) -> int:
        self._check()
        self.expires_at[replica] = self._clock.monotonic() + ttl_s
        return self.stamp(replica)

    def stamp(self, replica: ReplicaId) -> int:
        """What the replica's last beat returned."""
        return round(self.expires_at.get(replica, 0.0) * 1e6)

    @override
    async def leave(self, replica: ReplicaId) -> None:
        self._check()
        self.expires_at.pop(replica, None)

    @override
    async def others_alive(self, replica: ReplicaId) -> bool:
        self._check()
        return any(other != replica and self.is_alive(other) for other in self.expires_at)

    def _check(self) -> None:
        if self.away:
            raise away()
