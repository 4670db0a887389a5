"""An interrupt against everything it can race with: the start, the end, other interrupts, on the owner and elsewhere."""

import asyncio
import random

import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import TERMINAL, Client, Replica

ROUNDS = 25
AT_ONCE = 10


async def interrupted_somewhen(client: Client, other: Client, session_id: str, chance: random.Random) -> list[str]:
    """One turn, interrupted after a random moment on a random replica; the event types of its whole stream."""
    post = client.http.build_request("POST", f"/sessions/{session_id}/turns", json={"input": "[[sim tokens=60 pace_ms=1]]"})
    response = await client.http.send(post, stream=True)
    assert response.status_code == 200, await response.aread()
    turn_id = response.headers["Location"].removeprefix("/turns/")
    await asyncio.sleep(chance.uniform(0.0, 0.1))
    target = chance.choice((client, other))
    deleted = await target.http.delete(f"/turns/{turn_id}")
    assert deleted.status_code in (200, 202), deleted.text
    async with asyncio.timeout(10):
        text = await response.aread()
    await response.aclose()
    types = [line.removeprefix("event: ") for line in text.decode().splitlines() if line.startswith("event: ")]
    assert [frame.type for frame in await other.replay(turn_id)] == types
    return types


@pytest.mark.timeout(120)
async def test_an_interrupt_at_any_moment_leaves_exactly_one_end(
    gateway: Replica, second: Replica, client: Client, provider: Simulator
) -> None:
    chance = random.Random(7)
    sessions = [await client.session() for _ in range(AT_ONCE)]
    ends: list[str] = []
    async with second.client() as other:
        for _ in range(ROUNDS):
            streams = await asyncio.gather(*(interrupted_somewhen(client, other, session, chance) for session in sessions))
            for types in streams:
                assert sum(name in TERMINAL for name in types) == 1
                assert types[-1] in TERMINAL
                ends.append(types[-1])
    assert len(ends) == ROUNDS * AT_ONCE
    assert "turn.interrupted" in ends
    assert not [request.problems for request in provider.requests if request.problems]


async def start_then_interrupt_at_once(client: Client, other: Client, session_id: str, chance: random.Random) -> list[str]:
    """Queue a turn behind a running one, free the slot and interrupt the queued turn in the same moment; its event types."""
    running = await client.http.post(f"/sessions/{session_id}/turns", json={"input": "[[sim first_ms=60000]]", "background": True})
    queued = await client.http.post(
        f"/sessions/{session_id}/turns", json={"input": "[[sim tokens=3]]", "background": True, "on_busy": "enqueue"}
    )
    first, then = running.json()["id"], queued.json()["id"]
    deletes = [client.http.delete(f"/turns/{first}"), other.http.delete(f"/turns/{then}")]
    chance.shuffle(deletes)
    results = await asyncio.gather(*deletes)
    assert {response.status_code for response in results} <= {200, 202}
    async with asyncio.timeout(10):
        return [frame.type for frame in await client.replay(then)]


@pytest.mark.timeout(120)
async def test_an_interrupt_wins_against_the_start_of_a_queued_turn(gateway: Replica, second: Replica, client: Client) -> None:
    chance = random.Random(11)
    sessions = [await client.session() for _ in range(AT_ONCE)]
    async with second.client() as other:
        for _ in range(ROUNDS):
            streams = await asyncio.gather(*(start_then_interrupt_at_once(client, other, session, chance) for session in sessions))
            for types in streams:
                assert types[-1] in ("turn.interrupted", "turn.completed")
                assert sum(name in TERMINAL for name in types) == 1


async def test_interrupts_on_both_replicas_at_once_agree(gateway: Replica, second: Replica, client: Client) -> None:
    session = await client.session()
    async with second.client() as other:
        for _ in range(20):
            async with client.turn(session, "[[sim first_ms=60000]]") as stream:
                started = await stream.until("iteration.started")
                turn_id = started.data["turn_id"]
                await asyncio.gather(*(who.http.delete(f"/turns/{turn_id}") for who in (client, other, client, other)))
                frames = await stream.read_to_end()
            assert [frame.type for frame in frames if frame.type in TERMINAL] == ["turn.interrupted"]
            view = await other.get(turn_id)
            assert (view["status"], view["reason"]) == ("interrupted", "requested")
