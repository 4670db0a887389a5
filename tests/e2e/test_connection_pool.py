"""No connection of the pool is held by what waits: streams, model calls, tools."""

import asyncio
from contextlib import AsyncExitStack

from sqlalchemy import text

from app.simulator.server import Simulator
from app.store.engine import Database
from tests.e2e.scenes import assert_goes_on, first_turn_id, now, opened

IDLE = text(
    "SELECT count(*) FILTER (WHERE state LIKE 'idle in transaction%' AND clock_timestamp() - state_change > interval '1 second') AS stuck, "
    "count(*) FILTER (WHERE pid <> pg_backend_pid()) AS connections FROM pg_stat_activity WHERE datname = current_database()"
)
SILENT = 10
ANSWER_S = 1.0
WAITS = ("[[sim silent]]", "[[sim tool=slow]]")


async def test_many_silent_turns_leave_a_small_pool_free(database_url: str, provider: Simulator, database: Database) -> None:
    async with opened(database_url, provider, db_pool_size=2) as (_, client):
        sessions = [await client.session() for _ in range(SILENT + 1)]
        turns = []
        async with AsyncExitStack() as streams:
            for number, session in enumerate(sessions[:SILENT]):
                stream = await streams.enter_async_context(client.turn(session, WAITS[number % len(WAITS)]))
                turns.append(first_turn_id([await stream.until("iteration.started")]))
            await provider.wait_for_requests(SILENT, 5)
            for _ in range(3):
                begun = now()
                history, state = await asyncio.gather(
                    client.http.get(f"/sessions/{sessions[SILENT]}/messages"), client.http.get(f"/turns/{turns[0]}")
                )
                await assert_goes_on(client, provider, sessions[SILENT])
                assert (history.status_code, state.status_code) == (200, 200)
                assert now() - begun < ANSWER_S
            begun = now()
            stopped = await client.http.delete(f"/turns/{turns[0]}")
            assert stopped.json()["status"] == "interrupted"
            assert now() - begun < ANSWER_S
            assert (await client.http.get("/readyz")).status_code == 200
            (row,) = await database.fetch(IDLE)
            assert row.stuck == 0
            await asyncio.gather(*(client.http.delete(f"/turns/{turn_id}") for turn_id in turns))
