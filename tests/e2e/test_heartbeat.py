"""A stream is never silent: a first byte at once, then comments, between whole events, whatever the turn waits for."""

import asyncio
from itertools import pairwise

import httpx

from app.simulator.server import Simulator
from tests.e2e.harness import Client
from tests.e2e.scenes import now, opened

HEARTBEAT_S = 0.25
QUIET_S = 1.3
GRACE_S = 0.4
"""What a loaded machine may be late."""


async def read_timed(response: httpx.Response, begun: float) -> list[tuple[float, bytes]]:
    """Every block of the stream with the seconds since the request was sent."""
    blocks: list[tuple[float, bytes]] = []
    buffer = b""
    async for chunk in response.aiter_raw():
        buffer += chunk
        *whole, buffer = buffer.split(b"\n\n")
        blocks += [(now() - begun, block) for block in whole]
    assert buffer == b""
    return blocks


async def assert_lively(client: Client, session: str, text: str, on_busy: str = "reject") -> None:
    begun = now()
    body = {"input": text, "on_busy": on_busy}
    async with client.http.stream("POST", f"/sessions/{session}/turns", json=body) as response:
        blocks = await read_timed(response, begun)
    times = [0.0, *(at for at, _ in blocks)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert blocks[0][0] < GRACE_S, f"{text}: the first byte came late"
    assert max(gaps) < HEARTBEAT_S + GRACE_S, f"{text}: silent for {max(gaps)} s"
    comments = [block for _, block in blocks if block.startswith(b":")]
    assert len(comments) >= 3, text
    assert all(b"\n" not in comment for comment in comments)
    ids = [int(block.split(b"\n", 1)[0].removeprefix(b"id: ")) for _, block in blocks if block.startswith(b"id: ")]
    assert ids == list(range(1, len(ids) + 1)), "lost or doubled around a heartbeat"
    assert b"event: turn.completed" in blocks[-1][1]


async def test_no_wait_is_silent(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, heartbeat_s=HEARTBEAT_S) as (_, client):
        quiet_ms = round(QUIET_S * 1000)
        busy, *sessions = [await client.session() for _ in range(5)]
        async with client.turn(busy, f"[[sim headers_ms={quiet_ms} tokens=2]]") as running:
            await running.until("iteration.started")
            await asyncio.gather(
                assert_lively(client, sessions[0], f"[[sim headers_ms={quiet_ms} tokens=5]] no answer yet"),
                assert_lively(client, sessions[1], f"[[sim first_ms={quiet_ms} tokens=5]] no token yet"),
                assert_lively(client, sessions[2], f'[[sim tool=slow args={{"seconds":{QUIET_S}}} tokens=5]] a slow tool'),
                assert_lively(client, busy, "[[sim tokens=5]] in the queue", on_busy="enqueue"),
            )


async def test_a_second_reader_of_a_quiet_turn_gets_heartbeats_too(database_url: str, provider: Simulator) -> None:
    async with (
        opened(database_url, provider, heartbeat_s=HEARTBEAT_S) as (_, client),
        opened(database_url, provider, heartbeat_s=HEARTBEAT_S) as (_, far),
    ):
        session = await client.session()
        async with client.turn(session, "[[sim first_ms=900 tokens=3]]") as own:
            turn_id = (await own.until("turn.started")).data["turn_id"]
            async with client.events(turn_id, 2) as near, far.events(turn_id, 2) as remote:
                await asyncio.gather(near.read_to_end(), remote.read_to_end())
            assert near.comments >= 2
            assert remote.comments >= 2
            assert [frame.raw for frame in near.frames] == [frame.raw for frame in remote.frames]
