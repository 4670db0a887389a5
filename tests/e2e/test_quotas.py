"""A tenant's own quotas over HTTP, and the use that turns report."""

import asyncio
import re
from typing import Any

import httpx
import msgspec
import pytest

from app.domain.tenants import Prices, RouteSpec, TenantSettings
from app.simulator.server import Simulator
from tests.e2e.harness import ADMIN_KEY, Client, Replica, tenant

QUOTA_KEY = "agw_test-key-of-limited-0123456789"


async def limited(gateway: Replica, provider: Simulator, **quotas: Any) -> None:
    """The tenant ``limited`` with these quotas and a route with prices."""
    spec = tenant("limited", QUOTA_KEY, [provider.base_url], prices=Prices(input=1_000_000.0, cached_input=500_000.0, output=2_000_000.0))
    await gateway.gateway.tenants.apply(msgspec.structs.replace(spec, settings=TenantSettings(**quotas)), generate_key=False)


async def post(client: Client, session_id: str, text: str = "hello", **body: Any) -> httpx.Response:
    return await client.http.post(f"/sessions/{session_id}/turns", json={"input": text, **body}, headers={"Accept": "application/json"})


async def test_requests_beyond_the_minute_are_answered_429_and_the_others_say_what_is_left(
    gateway: Replica, provider: Simulator, second: Replica
) -> None:
    await limited(gateway, provider, requests_per_minute=2)
    async with gateway.client(QUOTA_KEY) as client, second.client(QUOTA_KEY) as other:
        session_id = await client.session()
        first = await post(client, session_id)
        assert first.status_code == 200, first.text
        assert first.headers["RateLimit-Policy"] == '"requests";q=2;w=60'
        assert first.headers["RateLimit"] == '"requests";r=1;t=60'
        async with other.turn(session_id, "hello again") as stream:
            assert stream.response.headers["RateLimit"] == '"requests";r=0;t=60'
            await stream.read_to_end()

        refused = await post(other, session_id)

        assert refused.status_code == 429
        assert refused.headers["Content-Type"] == "application/problem+json"
        problem = refused.json()
        assert problem["code"] == "quota_exceeded"
        assert problem["type"] == "/problems/quota_exceeded"
        assert problem["retryable"] is True
        assert problem["violated_policies"] == ["requests"]
        assert problem["retry_after_s"] == int(refused.headers["Retry-After"])
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert refused.headers["RateLimit-Policy"] == '"requests";q=2;w=60'
        assert re.fullmatch(r'"requests";r=0;t=\d+', refused.headers["RateLimit"])
        assert len((await client.http.get(f"/sessions/{session_id}/turns")).json()["data"]) == 2
        metrics = (await second_metrics(second)).splitlines()
        assert 'gateway_quota_refusals_total{policy="requests"} 1.0' in metrics


async def second_metrics(replica: Replica) -> str:
    async with replica.client(ADMIN_KEY) as client:
        return (await client.http.get("/metrics")).text


async def test_a_tenant_without_quotas_gets_no_such_headers(client: Client) -> None:
    response = await post(client, await client.session())
    assert response.status_code == 200
    assert not [name for name in response.headers if name.lower().startswith("ratelimit")]


async def test_a_repeated_key_is_answered_although_the_minute_is_used_up(gateway: Replica, provider: Simulator) -> None:
    await limited(gateway, provider, requests_per_minute=1)
    async with gateway.client(QUOTA_KEY) as client:
        session_id = await client.session()
        headers = {"Idempotency-Key": "once", "Accept": "application/json"}
        first, again = [await client.http.post(f"/sessions/{session_id}/turns", json={"input": "hello"}, headers=headers) for _ in range(2)]
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.json()["id"] == first.json()["id"]
        assert again.headers["Idempotency-Replayed"] == "true"
        assert (await post(client, session_id)).status_code == 429


async def test_turns_beyond_those_at_the_same_time_are_refused_on_every_replica_until_one_ends(
    gateway: Replica, provider: Simulator, second: Replica
) -> None:
    await limited(gateway, provider, max_concurrent_turns=2)
    slow = "[[sim tokens=20 pace_ms=100]]"
    async with gateway.client(QUOTA_KEY) as here, second.client(QUOTA_KEY) as there:
        sessions = [await here.session() for _ in range(6)]
        clients = [here, there] * 3
        started = await asyncio.gather(
            *(post(client, session_id, slow, background=True) for client, session_id in zip(clients, sessions, strict=True))
        )
        assert sorted(response.status_code for response in started) == [202, 202, 429, 429, 429, 429]
        (refused, *_) = [response for response in started if response.status_code == 429]
        assert refused.json()["violated_policies"] == ["concurrent_turns"]
        assert refused.headers["RateLimit"] == '"concurrent_turns";r=0;t=1'
        assert refused.headers["Retry-After"] == "1"
        for response in started:
            if response.status_code == 202:
                await here.replay(response.json()["id"])
        assert (await post(there, sessions[0])).status_code == 200


@pytest.mark.parametrize(
    ("quota", "policy"),
    [({"tokens_per_day": 4_000}, "tokens"), ({"cost_usd_per_day": 0.5}, "cost")],
    ids=["tokens", "money"],
)
async def test_a_turn_uses_up_the_day(gateway: Replica, provider: Simulator, quota: dict[str, Any], policy: str) -> None:
    await limited(gateway, provider, **quota)
    async with gateway.client(QUOTA_KEY) as client:
        session_id = await client.session()
        first = await post(client, session_id, "[[sim usage=3980/20]]")
        assert first.status_code == 200, first.text
        assert first.headers["RateLimit-Policy"].endswith(";w=86400")
        refused = await post(client, session_id)
        assert refused.status_code == 429
        assert refused.json()["violated_policies"] == [policy]
        assert 0 < int(refused.headers["Retry-After"]) <= 86_400


async def test_a_turn_tells_what_it_used_of_each_route_and_the_operator_sees_the_sum(gateway: Replica, provider: Simulator) -> None:
    backup = Simulator()
    await backup.start()
    try:
        spec = tenant("limited", QUOTA_KEY, [provider.base_url, backup.base_url], max_iterations=5)
        prices = Prices(input=1_000_000.0, cached_input=500_000.0, output=2_000_000.0)
        routes = tuple(
            RouteSpec(provider=route.provider, model=route.model, prices=prices) for chain in spec.chains.values() for route in chain
        )
        chains = dict.fromkeys(spec.chains, routes)
        await gateway.gateway.tenants.apply(msgspec.structs.replace(spec, chains=chains), generate_key=False)
        provider.play("status=402")
        async with gateway.client(QUOTA_KEY) as client:
            frames = await client.run(await client.session())
            turn = await client.get(frames[-1].data["turn_id"])
    finally:
        await backup.stop()
    failed, answered = turn["routes"]
    assert frames[-1].data["routes"] == turn["routes"]
    assert (failed["route"]["provider"], failed["attempts"], failed["failed"], failed["cost_usd"]) == ("p1", 1, 1, None)
    assert (answered["route"]["provider"], answered["attempts"], answered["failed"]) == ("p2", 1, 0)
    used = answered["usage"]
    assert used == turn["usage"]
    expected = used["input_tokens"] - used["cached_input_tokens"] + 0.5 * used["cached_input_tokens"] + 2.0 * used["output_tokens"]
    assert turn["cost_usd"] == answered["cost_usd"] == pytest.approx(expected)
    async with gateway.client(ADMIN_KEY) as admin:
        lines = (await admin.http.get("/admin/usage", params={"tenant": "limited"})).json()["data"]
        health = (await admin.http.get("/admin/providers", params={"tenant": "limited"})).json()["data"]
    assert [(line["route"]["provider"], line["turns"], line["attempts"], line["failed"]) for line in lines] == [
        ("p1", 1, 1, 1),
        ("p2", 1, 1, 0),
    ]
    assert lines[1]["usage"] == used
    assert [place["health"]["state"] for view in health for place in view["routes"]] == ["cooling", "healthy"]


LOOK = 'tool=get_time args={"timezone":"UTC"} usage=900/100'


@pytest.mark.parametrize(
    ("quota", "limit"),
    [({"tokens_per_day": 10_000}, 10_000), ({"cost_usd_per_day": 11_000.0}, 10_000)],
    ids=["tokens", "money"],
)
async def test_turns_that_run_end_when_all_of_them_have_used_up_the_day(
    gateway: Replica, provider: Simulator, second: Replica, *, quota: dict[str, Any], limit: int
) -> None:
    await limited(gateway, provider, **quota)
    async with gateway.client(QUOTA_KEY) as here, second.client(QUOTA_KEY) as there:
        provider.play(*[f"{LOOK} first_ms=50"] * 40)
        clients = [here, here, there]
        sessions = [await here.session() for _ in clients]
        started = await asyncio.gather(
            *(post(client, session_id, background=True) for client, session_id in zip(clients, sessions, strict=True))
        )
        assert [response.status_code for response in started] == [202, 202, 202]
        ends = [(await here.replay(response.json()["id"]))[-1].data for response in started]
        assert [end["reason"] for end in ends] == ["budget_exhausted"] * 3
        used = sum(end["usage"]["input_tokens"] + end["usage"]["output_tokens"] for end in ends)
        assert 7_000 <= used <= limit + 1_000, "all together, and at most one call of the other replica more"
        provider.clear()
        session_id = await here.session()
        assert (await post(here, session_id)).status_code in {200, 429}


async def test_turns_that_start_at_once_share_what_is_left_of_the_day(gateway: Replica, provider: Simulator) -> None:
    await limited(gateway, provider, tokens_per_day=6_000)
    async with gateway.client(QUOTA_KEY) as client:
        sessions = [await client.session(toolsets=[]) for _ in range(12)]
        answers = await asyncio.gather(*(post(client, session_id, "[[sim tokens=1500 first_ms=300]]") for session_id in sessions))
        ends = [answer.json() for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert {end["reason"] for end in ends} <= {"answer", "budget_exhausted", "output_truncated"}, answers[-1].text
        used = sum(end["usage"]["input_tokens"] + end["usage"]["output_tokens"] for end in ends)
        assert 3_000 <= used <= 6_100
