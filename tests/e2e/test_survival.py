import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from app.clock import SystemClock
from app.simulator.server import Simulator
from app.store.embedded import start_embedded
from app.store.engine import Database
from app.store.migrate import upgrade
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from tests.e2e.harness import KEY, tenant
from tests.e2e.processes import FAST_LEASE, GatewayProcess, Reader, create_sessions, frame_id, frame_types, gateway_process, reading


async def acme(database_url: str, base_url: str) -> None:
    database = Database(database_url, pool_size=2)
    repository = TenantRepository(database, SystemClock(), Sealer("the tests' secret key"), {})
    await repository.apply(tenant("acme", KEY, [base_url]), generate_key=False)
    await database.close()


@pytest.fixture
async def ready_url(database_url: str, provider: Simulator) -> str:
    """A database with a tenant whose provider is the strict simulator."""
    await acme(database_url, provider.base_url)
    return database_url


@pytest.fixture
async def pair(ready_url: str, tmp_path: Path) -> AsyncIterator[tuple[GatewayProcess, GatewayProcess]]:
    async with gateway_process(ready_url, tmp_path, FAST_LEASE) as one, gateway_process(ready_url, tmp_path, FAST_LEASE) as two:
        yield one, two


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with reading() as http:
        yield http


async def takes_a_turn(http: aiohttp.ClientSession, url: str, session_id: str) -> None:
    reader = Reader(http)
    await reader.start(url, session_id, '[[sim text="still here"]]')
    assert frame_types(reader.frames)[-1] == "turn.completed"


async def test_two_hundred_turns_on_two_processes_read_alike_by_four_hundred_readers(
    pair: tuple[GatewayProcess, GatewayProcess], http: aiohttp.ClientSession
) -> None:
    urls = [gateway.url for gateway in pair]
    sessions = await create_sessions(http, urls[0], 200)

    async def one_turn(number: int, session_id: str) -> tuple[Reader, Reader]:
        home, away = urls[number % 2], urls[(number + 1) % 2]
        steady, roaming = Reader(http), Reader(http)
        text = "[[sim tokens=60 pace_ms=20 tool=get_time]]"
        posting = asyncio.create_task(steady.start(home, session_id, text))
        while not steady.frames and not posting.done():
            await asyncio.sleep(0.01)
        await roaming.follow([away, home], steady.turn_id, leave=random.Random(number))
        await posting
        return steady, roaming

    for steady, roaming in await asyncio.gather(*(one_turn(number, session_id) for number, session_id in enumerate(sessions))):
        ids = [frame_id(frame) for frame in steady.frames]
        assert ids == list(range(1, len(ids) + 1))
        assert frame_types(steady.frames)[-1] == "turn.completed"
        assert roaming.frames == steady.frames


async def test_a_killed_process_loses_no_turn(
    pair: tuple[GatewayProcess, GatewayProcess], http: aiohttp.ClientSession, provider: Simulator, ready_url: str
) -> None:
    victim, survivor = pair
    texts = (
        "[[sim tokens=500 pace_ms=20]]",
        '[[sim tool=slow args={"seconds":30} parallel=2]]',
        "[[sim first_ms=60000]]",
    )
    sessions = await create_sessions(http, victim.url, 51)
    readers = [Reader(http) for _ in sessions]
    posts = [
        asyncio.create_task(reader.start(victim.url, session_id, texts[number % 3]))
        for number, (reader, session_id) in enumerate(zip(readers, sessions, strict=True))
    ]
    await all_under_way(readers)
    requests_before = len(provider.requests)
    victim.signal(signal.SIGKILL)
    await asyncio.gather(*posts, return_exceptions=True)
    async with asyncio.timeout(30):
        await asyncio.gather(*(reader.follow([survivor.url], reader.turn_id) for reader in readers))
    for reader in readers:
        types = frame_types(reader.frames)
        assert types[-1] == "turn.interrupted"
        assert sum(name in ("turn.completed", "turn.interrupted", "turn.failed") for name in types) == 1
        assert types.count("tool.completed") == types.count("tool.started")
        ids = [frame_id(frame) for frame in reader.frames]
        assert ids == sorted(set(ids))
    assert len(provider.requests) == requests_before, "a lost turn was run again"
    assert not [reader for reader in readers[::3] if b'"output":""' in reader.frames[-1]], "shown text is not on the turn"
    for session_id in sessions:
        await takes_a_turn(http, survivor.url, session_id)
    assert not [request.problems for request in provider.requests if request.problems]


async def all_under_way(readers: list[Reader]) -> None:
    """Every turn is at its text, in its tools, or waiting for its provider."""
    async with asyncio.timeout(20):
        for number, reader in enumerate(readers):
            wanted = ("message.delta", "tool.started", "iteration.started")[number % 3]
            while frame_types(reader.frames).count(wanted) < (1 if number % 3 else 20):
                await asyncio.sleep(0.02)


async def test_a_process_that_stood_still_past_its_lease_adds_nothing(
    pair: tuple[GatewayProcess, GatewayProcess], http: aiohttp.ClientSession, provider: Simulator
) -> None:
    sleeper, survivor = pair
    sessions = await create_sessions(http, sleeper.url, 12)
    readers = [Reader(http) for _ in sessions]
    posts = [
        asyncio.create_task(reader.start(sleeper.url, session_id, "[[sim tokens=400 pace_ms=20]]"))
        for reader, session_id in zip(readers, sessions, strict=True)
    ]
    async with asyncio.timeout(20):
        while min(len(reader.frames) for reader in readers) < 10:
            await asyncio.sleep(0.02)
    sleeper.signal(signal.SIGSTOP)
    others = [Reader(http) for _ in sessions]
    async with asyncio.timeout(30):
        await asyncio.gather(*(other.follow([survivor.url], reader.turn_id) for other, reader in zip(others, readers, strict=True)))
    for session_id in sessions:
        await takes_a_turn(http, survivor.url, session_id)
    sleeper.signal(signal.SIGCONT)
    async with asyncio.timeout(30):
        await asyncio.gather(*posts)
    for reader, other in zip(readers, others, strict=True):
        assert frame_types(reader.frames)[-1] == "turn.interrupted"
        assert reader.frames[-1] == other.frames[-1]
        stored = {frame_id(frame): frame for frame in other.frames}
        shown = {frame_id(frame): frame for frame in reader.frames}
        assert all(shown[seq] == frame for seq, frame in stored.items() if seq in shown)
        replayed = Reader(http)
        await replayed.follow([sleeper.url], reader.turn_id)
        assert replayed.frames == other.frames
    await takes_a_turn(http, sleeper.url, sessions[0])


async def test_a_restart_of_postgres_interrupts_nothing(provider: Simulator, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    postgres = await asyncio.to_thread(start_embedded, tmp_path / "pg")
    async with AsyncExitStack() as stack:
        stack.callback(postgres.stop)
        await upgrade(postgres.url)
        await acme(postgres.url, provider.base_url)
        gateway = await stack.enter_async_context(gateway_process(postgres.url, tmp_path))
        sessions = await create_sessions(http, gateway.url, 20)
        readers = [Reader(http) for _ in sessions]
        text = '[[sim tokens=150 pace_ms=20 tool=get_time rounds=3 preamble="Let me look at the clock first."]]'
        posts = [
            asyncio.create_task(reader.start(gateway.url, session_id, text)) for reader, session_id in zip(readers, sessions, strict=True)
        ]
        async with asyncio.timeout(20):
            while min(frame_types(reader.frames).count("message.delta") for reader in readers) < 20:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(postgres.stop)
        postgres = await asyncio.to_thread(start_embedded, tmp_path / "pg")
        async with asyncio.timeout(40):
            await asyncio.gather(*posts)
        for reader in readers:
            ids = [frame_id(frame) for frame in reader.frames]
            assert frame_types(reader.frames)[-1] == "turn.completed"
            assert ids == list(range(1, len(ids) + 1))
            replayed = Reader(http)
            await replayed.follow([gateway.url], reader.turn_id)
            assert replayed.frames == reader.frames
        await gateway.kill()


async def test_sigterm_ends_every_stream_with_an_event_and_refuses_new_turns(
    ready_url: str, tmp_path: Path, http: aiohttp.ClientSession, provider: Simulator
) -> None:
    async with gateway_process(ready_url, tmp_path, {"GATEWAY_DRAIN_GRACE_S": "5"}) as gateway:
        sessions = await create_sessions(http, gateway.url, 4)
        texts = ["[[sim tokens=900 pace_ms=20]]", '[[sim tool=slow args={"seconds":30}]]', "[[sim first_ms=60000]]"]
        readers = [Reader(http) for _ in texts]
        posts = [
            asyncio.create_task(reader.start(gateway.url, session_id, text))
            for reader, session_id, text in zip(readers, sessions, texts, strict=False)
        ]
        await all_under_way(readers)
        gateway.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        async with http.post(f"{gateway.url}/sessions/{sessions[3]}/turns", json={"input": "too late"}) as response:
            assert response.status == 503
            assert "Retry-After" in response.headers
            assert (await response.json())["code"] == "draining"
        assert await gateway.exit_code(within_s=5.5) == 0
        await asyncio.gather(*posts)
        assert [frame_types(reader.frames)[-1] for reader in readers] == ["turn.interrupted"] * 3
        assert all(b'"reason":"shutdown"' in reader.frames[-1] for reader in readers)
    async with gateway_process(ready_url, tmp_path) as gateway:
        for reader, session_id in zip(readers, sessions, strict=False):
            replayed = Reader(http)
            await replayed.follow([gateway.url], reader.turn_id)
            assert replayed.frames == reader.frames
            await takes_a_turn(http, gateway.url, session_id)


async def test_a_drain_hands_turns_over_to_another_replica(
    pair: tuple[GatewayProcess, GatewayProcess], http: aiohttp.ClientSession
) -> None:
    leaving, staying = pair
    (session_id,) = await create_sessions(http, leaving.url, 1)
    reader = Reader(http)
    text = '[[sim tool=slow args={"seconds":1.5} rounds=2 text="done elsewhere"]]'
    posting = asyncio.create_task(reader.start(leaving.url, session_id, text))
    async with asyncio.timeout(20):
        while "tool.started" not in frame_types(reader.frames):
            await asyncio.sleep(0.02)
    leaving.signal(signal.SIGTERM)
    assert await leaving.exit_code(within_s=11) == 0
    await posting
    assert frame_types(reader.frames)[-1] == "turn.queued"
    async with asyncio.timeout(20):
        await reader.follow([staying.url], reader.turn_id)
    types = frame_types(reader.frames)
    assert types[-1] == "turn.completed"
    assert "turn.resumed" in types
    assert types.count("tool.started") == types.count("tool.completed") == 2
