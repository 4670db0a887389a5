import httpx
import pytest

from tests.unit.api.conftest import ACME_KEY, ADMIN_KEY, Gateway, build, served


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_livez_needs_no_key_and_says_nothing(gateway: Gateway, method: str) -> None:
    gateway.turns.leaving = True
    gateway.ready = False

    async with gateway.client(key=None) as http:
        response = await http.request(method, "/livez")

    assert response.status_code == 200
    assert response.content == b""


@pytest.mark.parametrize(
    ("ready", "leaving", "status"),
    [(True, False, 200), (False, False, 503), (True, True, 503)],
    ids=["ready", "storage-away", "draining"],
)
async def test_readyz_follows_storage_and_drain_without_details(gateway: Gateway, ready: bool, leaving: bool, status: int) -> None:
    gateway.ready = ready
    gateway.turns.leaving = leaving

    async with gateway.client(key=None) as http:
        response = await http.get("/readyz")

    assert response.status_code == status
    assert response.content == b""


async def test_metrics_show_requests_and_turns_to_the_operator(gateway: Gateway, client: httpx.AsyncClient) -> None:
    gateway.turns.counters.active = 3
    gateway.turns.counters.ended["completed", "answer"] += 7
    gateway.turns.counters.attempt_failures["rate_limit"] += 2
    gateway.turns.counters.throttled["rpm", "skipped"] += 4
    gateway.turns.counters.quota_refusals["tokens"] += 5
    await client.get("/sessions/sess_00000000000000000000000000")
    await client.get("/nowhere/at/all")

    async with gateway.client(ADMIN_KEY) as operator:
        text = (await operator.get("/metrics")).text

    assert "gateway_turns_active 3.0" in text
    assert 'gateway_turns_ended_total{reason="answer",state="completed"} 7.0' in text
    assert 'gateway_attempt_failures_total{reason="rate_limit"} 2.0' in text
    assert 'gateway_calls_throttled_total{limit="rpm",outcome="skipped"} 4.0' in text
    assert 'gateway_quota_refusals_total{policy="tokens"} 5.0' in text
    assert "gateway_cooldowns_active 2.0" in text
    assert 'gateway_http_requests_total{method="GET",route="/sessions/{session_id}",status="4xx"} 1.0' in text
    assert 'gateway_http_requests_total{method="GET",route="none",status="4xx"} 1.0' in text
    assert "acme" not in text
    assert "sess_" not in text


@pytest.mark.parametrize("key", [None, "", ACME_KEY, "wrong"], ids=["no-key", "empty", "tenant", "wrong"])
async def test_metrics_are_closed_to_everybody_else(gateway: Gateway, key: str | None) -> None:
    async with gateway.client(key=None) as http:
        response = await http.get("/metrics", headers={} if key is None else {"Authorization": f"Bearer {key}".strip()})

    assert response.status_code == 401


@pytest.mark.parametrize("admin_key", [None, "", " "], ids=["unset", "empty", "blank"])
async def test_metrics_are_closed_when_no_admin_key_is_configured(admin_key: str | None) -> None:
    gateway = build(admin_key=admin_key)
    async with served(gateway.app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for headers in ({}, {"Authorization": "Bearer"}, {"x-api-key": ""}, {"Authorization": f"Bearer {ACME_KEY}"}):
            assert (await http.get("/metrics", headers=headers)).status_code in (401, 403)
