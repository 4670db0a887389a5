"""A compaction whose replica dies or leaves: the context is the old one or the new one, never something between."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from app.clock import SystemClock
from app.domain.model import ApiMode
from app.simulator.server import Simulator
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from tests.e2e.chains import problems
from tests.e2e.compacting import (
    LONG,
    MARK,
    SUMMARY,
    compacting_on,
    compacting_spec,
    compactions,
    grown,
    key_of,
    says,
    spoken,
    summaries_of,
)
from tests.e2e.harness import Client, Replica, replica
from tests.e2e.prefix import prefix_breaks
from tests.e2e.processes import FAST_LEASE, gateway_process
from tests.e2e.scenes import ended, request_number


@dataclass(frozen=True, slots=True)
class Providers:
    """Of the sessions and of their summaries."""

    chat: Simulator
    summaries: Simulator


@pytest.fixture
async def providers(provider: Simulator) -> AsyncIterator[Providers]:
    summaries = Simulator(strict=True, picky=True)
    await summaries.start()
    try:
        yield Providers(provider, summaries)
    finally:
        await summaries.stop()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """The tenant's client of a gateway process."""
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key_of('compacting')}"}, timeout=30) as http:
        yield Client(http)


async def prepared(database_url: str, providers: Providers) -> None:
    spec = compacting_spec("compacting", ApiMode.CHAT_COMPLETIONS, providers.chat.base_url, providers.summaries.base_url)
    database = Database(database_url, pool_size=2)
    await TenantRepository(database, SystemClock(), Sealer("the tests' secret key"), {}).apply(spec, generate_key=False)
    await database.close()


@pytest.mark.parametrize("manual", [False, True], ids=["before a model call", "on demand"])
async def test_a_killed_process_leaves_the_context_as_it_was(
    database_url: str, providers: Providers, tmp_path: Path, *, manual: bool
) -> None:
    await prepared(database_url, providers)
    async with (
        gateway_process(database_url, tmp_path, FAST_LEASE) as victim,
        replica(database_url, lease_ttl_s=2, lease_beat_s=0.4) as survivor,
        client_of(victim.url) as doomed,
        survivor.client(key_of("compacting")) as client,
    ):
        session = await doomed.session(toolsets=[])
        await grown(doomed, session, turns=11)
        before = await client.messages(session, view="context")
        providers.summaries.play("silent")
        path, body = ("compact", {}) if manual else ("turns", {"input": f"NEWEST {LONG * 2}"})
        turn = (await doomed.http.post(f"/sessions/{session}/{path}", json={"background": True, **body})).json()
        await request_number(providers.summaries, 1)
        victim.signal(signal.SIGKILL)
        done = await ended(client, turn["id"], 15)
        assert (done["status"], done["reason"]) == ("interrupted", "worker_lost")
        after = await client.messages(session, view="context")
        assert after[: len(before)] == before
        assert [message["role"] for message in after[len(before) :]] == ([] if manual else ["user", "assistant"])
        assert await summaries_of(client, session) == []
        providers.summaries.play(*[says(SUMMARY)] * 2)
        frames = await client.run(session, f'{LONG * 2}[[sim text="Still here."]]')
        assert frames[-1].data["output"] == "Still here."
        assert compactions(frames) == ["started gateway", "completed gateway"]
        assert problems(providers.chat, providers.summaries) == []


async def test_a_turn_is_handed_over_right_after_its_compaction(providers: Providers, gateway: Replica, second: Replica) -> None:
    provider, backup = providers.chat, providers.summaries
    async with compacting_on(gateway, provider, backup) as client, second.client(key_of("compacting")) as other:
        session = await client.session(toolsets=[])
        await grown(client, session, turns=11)
        sent = len(provider.requests)
        backup.play(f"{says(SUMMARY)} first_ms=400")
        text = f'NEWEST {LONG * 2}[[sim text="Carried over."]]'
        turn = (await client.http.post(f"/sessions/{session}/turns", json={"input": text, "background": True})).json()
        await request_number(backup, 1)
        drain = asyncio.create_task(gateway.gateway.server.drain(10))
        done = await ended(other, turn["id"], 10)
        await drain
        frames = await other.replay(turn["id"])
        await other.run(session, '[[sim text="Still here."]]')
    assert (done["status"], done["output"]) == ("completed", "Carried over.")
    names = [frame.type for frame in frames]
    assert names.index("compaction.completed") < names.index("turn.queued") < names.index("turn.resumed")
    assert (len(backup.requests), len(provider.requests)) == (1, sent + 2)
    assert MARK in spoken(provider.requests[sent])
    assert prefix_breaks(list(provider.requests)[sent:]) == []
    assert problems(provider, backup) == []


async def test_rows_that_are_broken_already_are_healed(database: Database, gateway: Replica, providers: Providers) -> None:
    """C040: results without calls and calls without results, in what stays and in what leaves."""
    provider, backup = providers.chat, providers.summaries
    backup.play(*[says(SUMMARY)] * 20)
    async with compacting_on(gateway, provider, backup, window=6_000) as client:
        session = await client.session(toolsets=["core"])
        for number in range(6):
            await client.run(session, f'{number} {LONG}[[sim tool=get_time parallel=2 rounds=2 text="Answer {number}."]]')
        whole = await client.messages(session)
        for message in whole[1::5]:
            await database.fetch(text("DELETE FROM messages WHERE id = :id"), {"id": message["id"]})
        backup.play('text="Nothing."', says(SUMMARY))
        seen: list[str] = []
        for number in range(20):
            frames = await client.run(session, f'{number} {LONG}[[sim tool=get_time text="Answer {number}."]]')
            assert frames[-1].type == "turn.completed", frames[-1].data
            seen += compactions(frames)
    assert "completed gateway" in seen
    assert problems(provider, backup) == []
