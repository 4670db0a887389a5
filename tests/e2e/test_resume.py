"""A reader that comes back sees everything behind what it has, once, in order, on any replica."""

import asyncio
import random

from app.domain.turns import PruneAges
from app.simulator.server import Simulator
from app.store.engine import Database
from app.store.turns import TurnRepository
from tests.e2e.harness import Client, Frame, Replica, Stream, text_of, types
from tests.e2e.scenes import first_turn_id

TOKENS = 200


def raw(frames: list[Frame]) -> list[bytes]:
    return [frame.raw for frame in frames]


async def test_a_reader_may_be_cut_anywhere_after_the_end(client: Client, second: Replica) -> None:
    session = await client.session()
    frames = await client.run(session, f"[[sim tokens={TOKENS}]]")
    turn_id = first_turn_id(frames)
    seqs = [frame.seq for frame in frames]
    assert seqs == sorted(set(seqs))
    async with second.client() as elsewhere:
        for after in (0, 1, 2, 3, 57, 58, TOKENS - 1, TOKENS, TOKENS + 1, TOKENS + 2, len(frames) - 1):
            for reader in (client, elsewhere):
                assert raw(await reader.replay(turn_id, after)) == raw(frames[after:])
        by_query = await client.http.get(f"/turns/{turn_id}/events", params={"after": "57"}, headers={"Last-Event-ID": "199"})
        assert b"id: 200\n" in by_query.content
        assert b"id: 199\n" not in by_query.content


async def read_in_pieces(clients: list[Client], turn_id: str, rng: random.Random) -> list[Frame]:
    """Read a turn in as many connections as it takes, a few frames each, on changing replicas."""
    read: list[Frame] = []
    while not (read and read[-1].type.startswith("turn.") and read[-1].type != "turn.started"):
        async with rng.choice(clients).events(turn_id, read[-1].seq if read else None) as stream:
            read += await some(stream, rng.randint(1, 9))
    return read


async def some(stream: Stream, limit: int) -> list[Frame]:
    """The next frames, at most ``limit``."""
    async for _ in stream:
        if len(stream.frames) == limit:
            break
    return stream.frames


async def test_readers_that_come_and_go_on_two_replicas_while_the_turn_runs_all_see_the_same(client: Client, second: Replica) -> None:
    session = await client.session()
    rng = random.Random(60)
    async with second.client() as elsewhere, client.turn(session, f"[[sim tokens={TOKENS} pace_ms=8]]") as stream:
        turn_id = first_turn_id([await stream.until("turn.started")])
        readers = [read_in_pieces([client, elsewhere], turn_id, rng) for _ in range(3)]
        steady = [elsewhere.replay(turn_id), client.replay(turn_id)]
        everything = await asyncio.gather(stream.read_to_end(), *readers, *steady)
    whole = raw(everything[0])
    assert len(whole) == TOKENS + 4
    for frames in everything[1:]:
        assert raw(frames) == whole


async def test_ids_that_are_none_of_the_turn_are_refused(client: Client, provider: Simulator) -> None:
    session = await client.session()
    long = await client.run(session, "[[sim tokens=90]]")
    short = await client.run(session, "[[sim tokens=1]]")
    bad = (b"99999", b"abc", b"-1", b"", b"1.5", b"9" * 40, "\u0663".encode(), b"%d" % long[-1].seq)
    for cursor in bad:
        response = await client.http.get(f"/turns/{first_turn_id(short)}/events", headers={b"Last-Event-ID": cursor})
        assert response.status_code == 422, cursor
        assert response.headers["content-type"] == "application/problem+json"
    async with client.turn(session, "[[sim tokens=500 pace_ms=20]]") as stream:
        turn_id = first_turn_id([await stream.until("message.delta")])
        response = await client.http.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": "99999"})
        assert response.status_code == 422
        await client.http.delete(f"/turns/{turn_id}")


async def test_readers_converge_after_the_deltas_were_pruned(client: Client, second: Replica, database: Database) -> None:
    session = await client.session()
    frames = await client.run(session, '[[sim tool=get_time preamble="Let me see." tokens=80]]')
    turn_id = first_turn_id(frames)
    assert await TurnRepository(database, 20.0).prune(PruneAges(deltas_s=0.0, idempotency_s=86_400.0, stateless_s=86_400.0)) > 0
    facts = [frame for frame in frames if not frame.type.endswith(".delta")]
    assert "message.delta" in types(frames)
    async with second.client() as elsewhere:
        for after in (0, 2, 5, 40, len(frames) - 1):
            left = [frame.raw for frame in facts if frame.seq > after]
            assert raw(await elsewhere.replay(turn_id, after)) == raw(await client.replay(turn_id, after)) == left
    completed = [frame for frame in await client.replay(turn_id) if frame.type == "message.completed"]
    assert completed[-1].data["message"]["content"] == text_of(frames)
    assert [frame.raw for frame in await client.replay(turn_id)][-1] == frames[-1].raw
