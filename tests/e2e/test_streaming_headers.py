"""Nothing on the way collects a stream: headers at once, each delta as it comes, nothing that buffers or compresses."""

import asyncio

from app.simulator.script import RawEnd, RawPiece, RawScript
from app.simulator.server import Simulator
from tests.e2e.harness import Client
from tests.e2e.scenes import now
from tests.e2e.wire import DONE, chunk

PACE_S = 0.4
SLACK_S = 0.2


async def test_each_delta_arrives_when_it_is_made(client: Client, provider: Simulator) -> None:
    texts = ("one ", "two ", "three ")
    pieces = [RawPiece(data=chunk({"content": text}), pause_s=PACE_S) for text in texts]
    provider.play(RawScript(pieces=(*pieces, RawPiece(data=chunk({}, "stop") + DONE)), end=RawEnd.COMPLETE))
    session = await client.session()
    begun = now()
    async with client.turn(session, headers={"Accept-Encoding": "gzip, br", "Accept": "text/event-stream"}) as stream:
        assert now() - begun < SLACK_S, "the headers waited for the first delta"
        arrived = [(frame.data["text"], now()) async for frame in stream if frame.type == "message.delta"]
    assert [text for text, _ in arrived] == list(texts)
    (record,) = provider.requests
    for number, (text, at) in enumerate(arrived, 1):
        assert abs(at - record.received_at - number * PACE_S) < SLACK_S, text
    headers = stream.response.headers
    assert headers["content-type"].partition(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-content-type-options"] == "nosniff"
    for absent in ("content-length", "content-encoding", "connection", "set-cookie"):
        assert absent not in headers, absent


async def test_a_replay_and_a_follower_have_the_same_headers(client: Client) -> None:
    session = await client.session()
    async with client.turn(session, "[[sim tokens=100 pace_ms=10]]") as own:
        turn_id = (await own.until("message.delta")).data["turn_id"]
        async with client.events(turn_id) as follower:
            await asyncio.gather(own.read_to_end(), follower.read_to_end())
        async with client.events(turn_id) as replay:
            await replay.read_to_end()
    for stream in (follower, replay):
        for name in ("content-type", "cache-control", "x-accel-buffering"):
            assert stream.response.headers[name] == own.response.headers[name]
        assert "content-length" not in stream.response.headers
        assert stream.response.headers["x-request-id"]
