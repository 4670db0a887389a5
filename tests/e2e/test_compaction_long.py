"""Compaction over long sessions and many clients: nothing is refused, nothing is lost, one straight history."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator.server import Simulator
from tests.e2e.chains import problems
from tests.e2e.compacting import SUMMARY, compacting_on, compacting_spec, compactions, key_of, says, size_of, summaries_of
from tests.e2e.harness import Client, Frame, Replica
from tests.e2e.prefix import prefix_breaks
from tests.e2e.scenes import ended, of_type

WINDOW = 32_000
TURNS = 400
CLIENTS = 100


@pytest.fixture
async def backup() -> AsyncIterator[Simulator]:
    """The provider of the summaries."""
    simulator = Simulator(strict=True, picky=True)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


async def all_of(client: Client, path: str) -> list[dict[str, Any]]:
    """A list, page by page."""
    entries: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": 100}
    while True:
        page = (await client.http.get(path, params=params)).json()
        entries += page["data"]
        if not page["has_more"]:
            return entries
        params["cursor"] = page["next_cursor"]


async def found(client: Client, session: str, word: str, seq: int) -> None:
    """Return once a search for a word finds that place in the session; the index follows within a second or two."""
    async with asyncio.timeout(10):
        while seq not in await searched(client, session, word):
            await asyncio.sleep(0.2)


async def searched(client: Client, session: str, word: str) -> list[int]:
    """The places in the session where a search for a word finds something."""
    call = [{"name": "session_search", "arguments": {"query": word, "session_id": session}}]
    frames = await client.run(session, f'[[sim calls={json.dumps(call)} text="Found."]]')
    (completed,) = of_type(frames, "tool.completed")
    return [hit["seq"] for hit in json.loads(completed.data["output"])["hits"]]


async def lived(client: Client, session: str) -> list[Frame]:
    """Four hundred turns; returns the events of compactions."""
    events: list[Frame] = []
    for number in range(TURNS):
        text = f"{number} fact{number}x " + "word " * (60 + number % 7 * 120)
        frames = await client.run(session, f'{text}[[sim text="Answer{number}x."]]')
        assert frames[-1].type == "turn.completed", (number, frames[-1].data)
        events += [frame for frame in frames if frame.type.startswith("compaction.")]
    return events


async def test_four_hundred_turns_on_a_window_of_32k(gateway: Replica, provider: Simulator, backup: Simulator) -> None:
    backup.play(*['text="Nothing."', says(SUMMARY)] * 60)
    async with compacting_on(gateway, provider, backup, window=WINDOW, output=1_000) as client:
        session = await client.session(toolsets=["core"], system_prompt="Be kind.")
        events = await lived(client, session)
        sent = list(provider.requests)
        transcript = await all_of(client, f"/sessions/{session}/messages")
        summaries = await summaries_of(client, session)
        said = {message["content"].split()[1]: message["seq"] for message in transcript if message["role"] == "user"}
        for number in (0, 1, 57, 200, 211, 350):
            await found(client, session, f"fact{number}x", said[f"fact{number}x"])
            await found(client, session, f"Answer{number}x", said[f"fact{number}x"] + 1)
    assert problems(provider, backup) == []
    assert {request.status for request in (*provider.requests, *backup.requests)} == {200}
    assert max(map(size_of, (*provider.requests, *backup.requests))) <= WINDOW
    assert [message["content"].split()[0] for message in transcript if message["role"] == "user"] == [str(n) for n in range(TURNS)]
    assert [message["content"] for message in transcript if message["role"] == "assistant"] == [f"Answer{n}x." for n in range(TURNS)]
    completed = of_type(events, "compaction.completed")
    assert set(compactions(events)) == {"started gateway", "completed gateway"}
    assert len(completed) >= 3
    assert [summary["active"] for summary in summaries] == [True] + [False] * (len(completed) - 1)
    assert len(prefix_breaks(sent)) == len(completed), "each break is a compaction"
    spent = sum(frame.data["cost_usd"] for frame in completed)
    assert spent == pytest.approx(sum(summary["cost_usd"] for summary in summaries))
    assert 0 < spent < 1


async def told(client: Client, session: str, number: int, said: set[str]) -> None:
    """What one of many clients does with the session; ``said`` takes note of what was taken."""
    rng = random.Random(number)
    match number % 5:
        case 0:
            mode = rng.choice(["enqueue", "interrupt", "reject"])
            response = await client.http.post(f"/sessions/{session}/compact", json={"background": True, "on_busy": mode})
            assert response.status_code in (202, 409), response.text
        case 1:
            for turn in (await client.http.get(f"/sessions/{session}/turns", params={"limit": 1})).json()["data"]:
                assert (await client.http.delete(f"/turns/{turn['id']}")).status_code in (200, 202)
        case _:
            mode = rng.choice(["enqueue", "enqueue", "interrupt"])
            text = f'CLIENT-{number}. {"word " * 150}[[sim text="Reply {number}." pace_ms={rng.choice([0, 2])}]]'
            response = await client.http.post(f"/sessions/{session}/turns", json={"input": text, "background": True, "on_busy": mode})
            assert response.status_code in (202, 409), response.text
            if response.status_code == 202:
                said.add(response.json()["id"])


def is_straight(transcript: list[dict[str, Any]], turns: list[dict[str, Any]], said: set[str]) -> None:
    """Each message of a turn that began is there once, with its answer when the turn has one."""
    seqs = [message["seq"] for message in transcript]
    assert seqs == sorted(set(seqs))
    spoke = [message["turn_id"] for message in transcript if message["role"] == "user"]
    assert sorted(spoke) == sorted(turn["id"] for turn in turns if turn["started_at"] and turn["id"] in said)
    answers = {turn["id"]: turn["output"] for turn in turns if turn["status"] == "completed" and turn["id"] in said}
    replies = {message["turn_id"]: message["content"] for message in transcript if message["role"] == "assistant"}
    assert {turn_id: replies[turn_id] for turn_id in answers} == answers


async def test_a_hundred_clients_on_two_replicas_leave_one_straight_history(
    gateway: Replica, second: Replica, provider: Simulator, backup: Simulator
) -> None:
    backup.play(*[says(SUMMARY)] * 500)
    options = {"window": 4_000, "max_queued_turns": 200}
    spec = compacting_spec("compacting", ApiMode.CHAT_COMPLETIONS, provider.base_url, backup.base_url, **options)
    await gateway.gateway.tenants.apply(spec, generate_key=False)
    said: set[str] = set()
    async with gateway.client(key_of("compacting")) as one, second.client(key_of("compacting")) as two:
        session = await one.session(toolsets=[])
        for wave in range(2):
            await asyncio.gather(*(told((one, two)[n % 2], session, wave * CLIENTS + n, said) for n in range(CLIENTS)))
        turns = [await ended(two, turn["id"], 30) for turn in await all_of(one, f"/sessions/{session}/turns")]
        transcript = await all_of(one, f"/sessions/{session}/messages")
        summaries = await summaries_of(two, session)
        again = await one.run(session, '[[sim text="Still here."]] and now?')
    assert {turn["status"] for turn in turns} == {"completed", "interrupted"}, Counter(str(turn["error"]) for turn in turns)
    is_straight(transcript, turns, said)
    assert again[-1].data["output"] == "Still here."
    assert problems(provider, backup) == []
    assert [summary["active"] for summary in summaries] == [True] + [False] * (len(summaries) - 1)
    assert len(summaries) >= 2
    assert max(map(size_of, provider.requests)) <= 4_000
