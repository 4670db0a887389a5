"""What every :class:`app.ports.ReplicaStore` does."""

from tests.contract.worlds import World
from tests.integration.store.builders import A, B


async def test_a_replica_is_alive_to_others_until_it_leaves(world: World) -> None:
    assert not await world.replicas.others_alive(A)
    await world.replicas.beat(B, 20.0)
    assert await world.replicas.others_alive(A)
    assert not await world.replicas.others_alive(B)
    await world.replicas.leave(B)
    assert not await world.replicas.others_alive(A)


async def test_a_replica_that_does_not_beat_is_dead_after_its_ttl(world: World) -> None:
    await world.replicas.beat(B, 20.0)
    await world.pass_time(15.0)
    await world.replicas.beat(B, 20.0)
    await world.pass_time(19.0)
    assert await world.replicas.others_alive(A)
    await world.pass_time(2.0)
    assert not await world.replicas.others_alive(A)


async def test_leaving_twice_is_harmless(world: World) -> None:
    await world.replicas.leave(A)
    await world.replicas.leave(A)
