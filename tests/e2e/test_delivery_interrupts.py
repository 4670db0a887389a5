"""An interrupt ends every wait of a model call within a second, closes its socket, and gives back a place that was not used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.domain.model import ApiMode
from app.domain.tenants import Prices
from app.simulator import RequestEnd
from tests.e2e.chains import Link, answered_by, chain, every_mode, goes_on
from tests.e2e.harness import Client, Frame, Stream
from tests.e2e.scenes import INTERRUPT_S, now, request_number
from tests.e2e.stage import Stage
from tests.e2e.windows import forget_windows, places_taken

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT = {"patience_s": 100.0, "first_token_timeout_s": 30.0, "stale_timeout_s": 30.0}


@asynccontextmanager
async def limited(stage: Stage, mode: ApiMode, rpm: int, **route: object) -> AsyncIterator[Client]:
    """A client of a tenant with a single route that takes ``rpm`` calls a minute."""
    await forget_windows(stage.replica.gateway.database)
    link = Link(url=stage.provider.base_url, mode=mode, provider={"rpm": rpm})
    async with chain(stage, link, **{**PATIENT, **route}) as client:
        yield client


async def interrupted(client: Client, stream: Stream) -> list[Frame]:
    """Stop the turn; it must end within a second."""
    since = now()
    answer = await client.http.delete(f"/turns/{stream.frames[0].data['turn_id']}")
    frames = await stream.read_to_end()
    assert now() - since < INTERRUPT_S
    assert answer.status_code in (200, 202)
    assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.interrupted", "requested")
    return frames


WAITS = {
    "backoff": "status=503",
    "named by the provider": "status=429 retry_after=30",
}


@every_mode
@pytest.mark.parametrize("script", WAITS.values(), ids=WAITS)
async def test_the_wait_before_a_repeat(stage: Stage, mode: ApiMode, script: str) -> None:
    async with limited(stage, mode, rpm=100) as client:
        stage.provider.play(script)
        session = await client.session()
        async with client.turn(session) as stream:
            failed = await stream.until("attempt.failed")
            assert failed.data["delay_s"] >= 3.0
            await interrupted(client, stream)
        assert len(stage.provider.requests) == 1
        assert await places_taken(stage.replica.gateway.database) == 1


@every_mode
async def test_the_wait_for_a_place_in_a_limit(stage: Stage, mode: ApiMode) -> None:
    database = stage.replica.gateway.database
    async with limited(stage, mode, rpm=1) as client:
        session = await client.session()
        assert await answered_by(client, session) == "p1"
        for _ in range(3):
            async with client.turn(session) as stream:
                throttled = await stream.until("provider.throttled")
                assert (throttled.data["limit"], throttled.data["skipped"]) == ("rpm", False)
                assert throttled.data["delay_s"] > 50.0
                assert throttled.data["delay_s"] <= 62.0, "the places of interrupted turns are free again"
                assert await places_taken(database) == 2
                await interrupted(client, stream)
            assert await places_taken(database) == 1
        assert len(stage.provider.requests) == 1
        await forget_windows(database)
        await goes_on(client, session, stage.provider)


@every_mode
async def test_the_wait_for_the_end_of_a_cooldown(stage: Stage, mode: ApiMode) -> None:
    async with limited(stage, mode, rpm=100, max_attempts=1) as client:
        stage.provider.play("status=429 retry_after=20")
        session = await client.session()
        assert (await client.run(session))[-1].type == "turn.failed"
        async with client.turn(session) as stream:
            throttled = await stream.until("provider.throttled")
            assert (throttled.data["limit"], throttled.data["skipped"]) == ("cooldown", False)
            assert 15.0 < throttled.data["delay_s"] <= 20.0
            await interrupted(client, stream)
        assert len(stage.provider.requests) == 1
        assert await places_taken(stage.replica.gateway.database) == 1


STREAMS = {
    "before headers": ("silent", "iteration.started"),
    "behind headers": ("stall_after=0", "iteration.started"),
    "in reasoning": ("reasoning=400 tokens=5 pace_ms=20", "reasoning.delta"),
    "in text": ("tokens=400 pace_ms=20", "message.delta"),
    "in a call": ('tool=lookup args={"q":"a long argument of many pieces"} chunk_args=30 pace_ms=50 preamble=So', "message.delta"),
}


@every_mode
async def test_the_middle_of_an_answer(stage: Stage, mode: ApiMode) -> None:
    for name, (script, event) in STREAMS.items():
        stage.reset()
        async with limited(stage, mode, rpm=100) as client:
            stage.provider.play(script)
            session = await client.session()
            async with client.turn(session) as stream:
                await stream.until(event)
                request = await request_number(stage.provider, 1)
                since = now()
                await interrupted(client, stream)
                await stage.provider.wait_for_end(request, INTERRUPT_S)
            assert request.ending is RequestEnd.CLIENT_CLOSED, name
            assert request.ended_at is not None
            assert request.ended_at - since < INTERRUPT_S, name
            assert await places_taken(stage.replica.gateway.database) == 1, "what was sent counts"
            await goes_on(client, session, stage.provider)


@every_mode
async def test_what_an_interrupted_answer_used_is_charged_by_estimate(stage: Stage, mode: ApiMode) -> None:
    prices = Prices(input=100.0, cached_input=100.0, output=1000.0)
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode, route={"prices": prices})) as client:
        stage.provider.play("text=abcdefgh pace_ms=1 stall_after=1")
        session = await client.session()
        async with client.turn(session, "x" * 400) as stream:
            await stream.until("message.delta")
            end = (await interrupted(client, stream))[-1].data
        (use,) = end["routes"]
        assert (use["attempts"], end["attempts"], use["usage"]) == (1, 1, end["usage"])
        assert end["usage"]["input_tokens"] >= 100
        assert end["usage"]["output_tokens"] == 2
        assert end["cost_usd"] == pytest.approx((end["usage"]["input_tokens"] * 100 + 2 * 1000) / 1e6)
        await goes_on(client, session, stage.provider, stage.backup)
