"""A stream that rests at its socket: nothing is lost or late beyond the rest."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from app.clock import SystemClock
from app.domain.model import AttemptAccepted, AttemptFailed, FailureReason, MessageDelta, ModelChunk
from app.providers.chain import FallbackChain, ProviderCounters, ProviderLayer
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.transport import ProviderTransport
from tests.fakes.cooldowns import InMemoryCooldowns
from tests.fakes.rate_windows import InMemoryRateWindows
from tests.unit.providers.scripted_provider import DONE, HEAD, Cut, Pause, Script, ScriptedProvider, Step, answer, chunked, serving, text
from tests.unit.providers.test_chain import ACME, REQUEST, route

REST_S = 0.2


@contextlib.asynccontextmanager
async def resting(*scripts: Script) -> AsyncIterator[tuple[ScriptedProvider, FallbackChain]]:
    provider, transport = ScriptedProvider(*scripts), ProviderTransport()
    clock = SystemClock()
    board = HealthBoard(InMemoryCooldowns(clock), clock)
    layer = ProviderLayer(
        transport=transport,
        clock=clock,
        random=random.random,
        counters=ProviderCounters(),
        board=board,
        limiter=Limiter(InMemoryRateWindows(clock), board, clock),
        rest_s=lambda: REST_S,
    )
    async with serving(provider):
        yield provider, FallbackChain(ACME, (route(provider.url),), layer)
        await transport.close()


async def chunks_of(chain: FallbackChain) -> list[list[ModelChunk]]:
    async with contextlib.aclosing(chain.stream(REQUEST)) as stream:
        return [list(batch) async for batch in stream if not isinstance(batch[0], AttemptAccepted)]


async def test_the_first_piece_comes_at_once_and_the_others_together() -> None:
    paced = [step for piece in "bcdef" for step in (chunked(text(piece, finish=None)), Pause(0.01))]
    first: list[Step] = [HEAD + chunked(text("a", finish=None)), Pause(0.05)]
    async with resting([*first, *paced, chunked(text()), chunked(DONE), b"0\r\n\r\n"], answer("next")) as (_, chain):
        batches = await chunks_of(chain)
        assert batches[0] == [MessageDelta(4, "a")]
        assert batches[1] == [MessageDelta(4, piece) for piece in "bcdef"]
        again = await chunks_of(chain)
        assert again[0] == [MessageDelta(4, "next")]


async def test_a_stream_that_rests_is_closed_at_once() -> None:
    async with resting([HEAD + chunked(text("a", finish=None)), Pause(30)]) as (provider, chain), asyncio.timeout(1):
        async with contextlib.aclosing(chain.stream(REQUEST)) as stream:
            assert isinstance((await anext(stream))[0], AttemptAccepted)
            assert list(await anext(stream)) == [MessageDelta(4, "a")]
        await provider.left.wait()


async def test_a_connection_that_breaks_during_the_rest_is_noticed_after_it() -> None:
    broken: Script = [HEAD + chunked(text("a", finish=None)), Pause(0.02), Cut()]
    async with resting(broken, answer("whole")) as (_, chain), asyncio.timeout(20):
        batches = await chunks_of(chain)
        failed = [chunk for batch in batches for chunk in batch if isinstance(chunk, AttemptFailed)]
        assert [(failure.reason, failure.text_shown) for failure in failed] == [(FailureReason.CONNECTION_BROKEN, True)]
        assert [MessageDelta(5, "whole")] in batches
