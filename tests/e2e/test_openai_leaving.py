"""Clients of OpenAI's protocols that leave, that wait, and that are left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai as sdk
import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import Client, Replica, tenant, types
from tests.e2e.openai_clients import openai_of, turn_of, user
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import INTERRUPT_S, assert_closed, ended, now, opened, request_number, with_settings

PATHS = {"chat": ("/v1/chat/completions", "messages"), "responses": ("/v1/responses", "input")}
SLOW = "[[sim tokens=200 pace_ms=20]]"
MOMENTS = [
    pytest.param("[[sim first_ms=3000]]", True, id="before the first word"),
    pytest.param(SLOW, True, id="amid the text"),
    pytest.param(SLOW, False, id="waiting for the whole"),
]


@asynccontextmanager
async def calling(
    running: Replica, client: Client, protocol: str, text: str, **more: Any
) -> AsyncIterator[tuple[str, "asyncio.Task[bytes]"]]:
    """A call that is being read: its turn, and the task that reads it."""
    path, member = PATHS[protocol]

    async def read() -> bytes:
        async with client.http.stream("POST", path, json={member: [user(text)], **more}) as response:
            return await response.aread()

    task = asyncio.create_task(read())
    try:
        async with asyncio.timeout(5):
            while not running.gateway.server.active.ids():
                await asyncio.sleep(0.01)
        (turn_id,) = running.gateway.server.active.ids()
        yield turn_id, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize(("text", "stream"), MOMENTS)
async def test_the_turn_of_a_client_that_leaves_ends(
    gateway: Replica, client: Client, provider: Simulator, *, protocol: str, text: str, stream: bool
) -> None:
    async with calling(gateway, client, protocol, text, stream=stream) as (turn_id, _):
        record = await request_number(provider, 1)
        await asyncio.sleep(0.2)
    since = now()
    turn = await ended(client, turn_id, INTERRUPT_S)
    assert (turn["status"], turn["reason"]) == ("interrupted", "client_gone")
    await assert_closed(provider, record, since)
    assert types(await client.replay(turn_id))[-1] == "turn.interrupted"


async def test_a_client_may_let_its_turn_go_on(gateway: Replica, client: Client, provider: Simulator) -> None:
    text = "[[sim tokens=20 pace_ms=20]]"
    async with calling(gateway, client, "chat", text, stream=True, on_disconnect="continue") as (turn_id, _):
        await request_number(provider, 1)
    assert (await ended(client, turn_id, 3))["status"] == "completed"


async def test_an_interrupt_before_the_first_word_is_a_status(gateway: Replica, client: Client, provider: Simulator) -> None:
    async with openai_of(client, max_retries=2) as openai:
        for stream in (False, True):
            provider.clear()
            asking: asyncio.Future[Any] = asyncio.ensure_future(
                openai.chat.completions.create(model="default", messages=[user("[[sim silent]]")], stream=stream)
            )
            await request_number(provider, 1)
            (turn_id,) = gateway.gateway.server.active.ids()
            assert (await client.http.delete(f"/turns/{turn_id}")).status_code == 200
            with pytest.raises(sdk.ConflictError) as raised:
                await asking
            assert raised.value.code == "turn_interrupted_requested"
            assert len(provider.requests) == 1


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_stream_begins_anyway_when_nothing_comes(database_url: str, provider: Simulator, protocol: str) -> None:
    async with opened(database_url, provider, heartbeat_s=0.2) as (running, client):
        text = '[[sim first_ms=900 text="At last."]]'
        async with calling(running, client, protocol, text, stream=True) as (_, task):
            body = await task
    blocks = body.split(b"\n\n")
    assert not blocks[0].startswith(b":"), "the protocol's own beginning comes first"
    assert blocks.count(b": keep-alive") >= 2
    assert b" last." in body
    assert blocks[-2] == b"data: [DONE]"


async def test_a_failure_after_the_beginning_is_in_the_stream(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, heartbeat_s=0.2) as (_, client), openai_of(client) as openai:
        provider.play("headers_ms=600 status=401")
        stream = await openai.chat.completions.create(model="default", messages=[user("x")], stream=True)
        with pytest.raises(sdk.APIError) as raised:
            async for _ in stream:
                pass
        assert raised.value.code == "provider_unavailable"
        provider.play("headers_ms=600 status=401")
        events = [event async for event in await openai.responses.create(model="default", input="x", stream=True)]
        assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]


async def test_a_leaving_replica_ends_a_stateless_call_and_hands_it_to_nobody(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (leaving, client), opened(database_url, provider) as (_, other):
        text = '[[sim tool=slow args={"seconds":0.3} rounds=20]]'
        async with calling(leaving, client, "chat", text, toolsets=["operator"], stream=True) as (turn_id, task):
            await runs.wait_begun("slow")
            await leaving.gateway.server.drain(2.8)
            body = await task
        assert b'"code":"shutdown"' in body
        assert b"[DONE]" not in body
        turn = await other.get(turn_id)
        assert (turn["status"], turn["reason"], turn["session_id"]) == ("interrupted", "shutdown", None)
        kinds = types(await other.replay(turn_id))
        assert "turn.queued" not in kinds
        assert kinds.count("tool.completed") >= 2


async def test_a_leaving_replica_lets_calls_end_and_takes_no_new_ones(gateway: Replica, client: Client) -> None:
    async with openai_of(client) as openai, calling(gateway, client, "chat", "[[sim tokens=30 pace_ms=20]]", stream=True) as (_, task):
        drain = asyncio.create_task(gateway.gateway.server.drain(20))
        await asyncio.sleep(0)
        with pytest.raises(sdk.InternalServerError) as raised:
            await openai.chat.completions.create(model="default", messages=[user("x")])
        assert (raised.value.code, raised.value.response.headers["retry-after"]) == ("draining", "1")
        assert b"[DONE]" in await task
        await drain


async def test_a_quota_of_the_tenant_is_a_rate_limit(gateway: Replica, provider: Simulator) -> None:
    key = "agw_key-of-limited-0123456789"
    spec = with_settings(tenant("limited", key, [provider.base_url]), requests_per_minute=1)
    await gateway.gateway.tenants.apply(spec, generate_key=False)
    async with gateway.client(key) as client, openai_of(client) as openai:
        first = await openai.chat.completions.with_raw_response.create(model="default", messages=[user("[[sim tokens=1]]")])
        assert first.headers["ratelimit"]
        assert turn_of(first.parse().id) == first.headers["x-turn-id"]
        with pytest.raises(sdk.RateLimitError) as raised:
            await openai.chat.completions.create(model="default", messages=[user("x")])
        assert raised.value.code == "rate_limit_exceeded"
        assert int(raised.value.response.headers["retry-after"]) > 0
        assert raised.value.response.headers["ratelimit-policy"]
