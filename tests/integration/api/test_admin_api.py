from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from app.api.authentication import Authenticator
from app.api.errors import install
from app.api.route_health import HealthDesk
from app.api.routes.admin import router
from app.domain.delivery import CooldownReport, CooldownScope
from app.domain.model import FailureReason, RouteRef, RouteUse, Usage
from app.domain.targets import rate_limits, target_keys
from app.domain.tenants import Purpose
from app.domain.turns import MachineState
from app.ports import Clock
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.rate_headers import Allowance, RateHeaders
from app.store.cooldowns import Cooldowns
from app.store.engine import Database
from app.store.rate_windows import RateWindows
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from app.store.turns import TurnRepository
from app.store.usage import UsageRepository
from tests.contract.steps import DONE, opened, step
from tests.integration.store.builders import a_session

ADMIN = "a-long-admin-key"
SECRET = "sk-test-AAAA1111BBBB2222CCCC3333"
PROVIDER = {"name": "primary", "base_url": "http://127.0.0.1:9001/v1", "api_key": SECRET, "headers": {"X-Team": SECRET}}
ROUTE = {"provider": "primary", "model": "m-test", "context_window": 32_000}
SPEC = {"name": "acme", "providers": [PROVIDER], "chains": {"chat": [ROUTE]}, "settings": {"max_iterations": 5}}


@pytest.fixture
def tenants(database: Database, clock: Clock) -> TenantRepository:
    return TenantRepository(database, clock, Sealer("secret key"), {})


@pytest.fixture
def limiter(database: Database, clock: Clock) -> Limiter:
    return Limiter(RateWindows(database), HealthBoard(Cooldowns(database), clock), clock)


@pytest.fixture
def app(database: Database, tenants: TenantRepository, clock: Clock, limiter: Limiter) -> FastAPI:
    app = FastAPI()
    app.include_router(router)
    app.state.services = SimpleNamespace(
        admin_key=ADMIN,
        tenants=tenants,
        clock=clock,
        usage=UsageRepository(database),
        route_health=HealthDesk(tenants, Cooldowns(database), RateWindows(database), clock, learnt=limiter.learnt),
    )
    install(app, app.routes)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers={"Authorization": f"Bearer {ADMIN}"}
    ) as client:
        yield client


async def create(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.post("/admin/tenants", json=SPEC)
    assert response.status_code == 201, response.text
    tenant: dict[str, Any] = response.json()
    return tenant


async def test_a_created_tenant_shows_its_key_once_and_its_secrets_never(
    client: httpx.AsyncClient, tenants: TenantRepository, clock: Clock
) -> None:
    response = await client.post("/admin/tenants", json=SPEC)

    assert response.status_code == 201
    assert response.headers["Location"] == "/admin/tenants/acme"
    assert response.headers["Cache-Control"] == "no-store"
    created = response.json()
    key = created.pop("api_key")
    caller = await Authenticator(tenants, clock).authenticate(f"Bearer {key}", None)
    assert caller.tenant.name == "acme"
    for path in ("/admin/tenants", "/admin/tenants/acme", "/admin/tenants/acme/keys", "/admin/tenants/acme/providers", "/admin/providers"):
        text = (await client.get(path)).text
        assert SECRET not in text
        assert key not in text
    assert (await client.get("/admin/tenants/acme")).json() == created
    assert (await client.get("/admin/tenants")).json() == {"data": [created], "has_more": False, "next_cursor": None}
    assert created["settings"]["max_iterations"] == 5
    assert created["credentials"] == {"primary": "sealed"}


async def test_creating_twice_is_a_conflict(client: httpx.AsyncClient) -> None:
    await create(client)

    response = await client.post("/admin/tenants", json=SPEC)

    assert (response.status_code, response.json()["code"]) == (409, "tenant_exists")


async def test_put_makes_the_tenant_match_and_is_idempotent(client: httpx.AsyncClient) -> None:
    first = await client.put("/admin/tenants/acme", json=SPEC)
    second = await client.put("/admin/tenants/acme", json=SPEC)

    assert (first.status_code, second.status_code) == (200, 200)
    assert "api_key" in first.json()
    assert second.json() == {name: value for name, value in first.json().items() if name != "api_key"}


async def test_patch_replaces_only_what_it_names(client: httpx.AsyncClient) -> None:
    created = await create(client)

    patched = (await client.patch("/admin/tenants/acme", json={"settings": {"max_iterations": 6}})).json()

    assert patched["settings"]["max_iterations"] == 6
    assert (patched["providers"], patched["chains"]) == (created["providers"], created["chains"])


async def test_providers_and_chains_are_put_as_they_were_read(client: httpx.AsyncClient, tenants: TenantRepository) -> None:
    created = await create(client)
    before = (await tenants.infos())[0]

    for part in ("providers", "chains"):
        read = (await client.get(f"/admin/tenants/acme/{part}")).json()
        written = await client.put(f"/admin/tenants/acme/{part}", json=read)
        assert written.status_code == 200
        assert written.json() == read == {part: created[part]}

    assert (await tenants.infos())[0] == before


async def test_all_providers_are_listed_with_their_routes(client: httpx.AsyncClient) -> None:
    await create(client)

    (provider,) = (await client.get("/admin/providers")).json()["data"]

    assert provider["routes"][0].pop("health")["state"] == "healthy"
    assert provider == {
        "tenant": "acme",
        "name": "primary",
        "api_mode": "chat_completions",
        "base_url": "http://127.0.0.1:9001/v1",
        "credential": "sealed",
        "routes": [{"purpose": "chat", "position": 0, "model": "m-test"}],
    }


async def test_a_keys_life(client: httpx.AsyncClient, tenants: TenantRepository, clock: Clock) -> None:
    await create(client)
    made = await client.post("/admin/tenants/acme/keys", json={"name": "phone app"})
    assert (made.status_code, made.json()["name"]) == (201, "phone app")

    rotated = await client.post(f"/admin/keys/{made.json()['id']}/rotate")
    assert rotated.status_code == 201
    again = await client.post(f"/admin/keys/{made.json()['id']}/rotate")
    assert (again.status_code, again.json()["code"]) == (409, "key_disabled")
    caller = await Authenticator(tenants, clock).authenticate(None, rotated.json()["api_key"])
    assert caller.key_id == rotated.json()["id"]

    gone = await client.delete(f"/admin/keys/{rotated.json()['id']}")
    assert gone.json() == {"id": rotated.json()["id"], "disabled": True}
    keys = (await client.get("/admin/tenants/acme/keys")).json()["data"]
    assert [key["disabled"] for key in keys] == [False, True, True]
    assert all("api_key" not in key for key in keys)


async def test_a_key_can_be_made_without_a_body(client: httpx.AsyncClient) -> None:
    await create(client)

    assert (await client.post("/admin/tenants/acme/keys")).status_code == 201


async def test_a_tenant_is_disabled_and_enabled(client: httpx.AsyncClient) -> None:
    await create(client)

    assert (await client.post("/admin/tenants/acme/disable")).json()["disabled"] is True
    assert (await client.post("/admin/tenants/acme/enable")).json()["disabled"] is False


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/admin/tenants/nobody", None),
        ("PATCH", "/admin/tenants/nobody", {}),
        ("POST", "/admin/tenants/nobody/disable", None),
        ("GET", "/admin/tenants/a%00b/keys", None),
        ("POST", "/admin/tenants/nobody/keys", {}),
        ("PUT", "/admin/tenants/nobody/providers", {"providers": []}),
        ("GET", "/admin/tenants/%F0%9F%98%80/chains", None),
        ("POST", "/admin/keys/key_0/rotate", None),
        ("DELETE", "/admin/keys/key_%00", None),
    ],
)
async def test_what_is_unknown_is_not_found(client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None) -> None:
    response = await client.request(method, path, json=body)

    assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/admin/tenants", {**SPEC, "colour": 1}, "/colour"),
        ("POST", "/admin/tenants", {}, ""),
        ("POST", "/admin/tenants", [], ""),
        ("POST", "/admin/tenants", {"name": "Acme"}, "/name"),
        ("POST", "/admin/tenants", {**SPEC, "providers": []}, "/chains/chat/0/provider"),
        ("POST", "/admin/tenants", {**SPEC, "providers": [{**PROVIDER, "base_url": f"http://h/?key={SECRET}"}]}, "/providers/0/base_url"),
        ("POST", "/admin/tenants", {**SPEC, "providers": [{**PROVIDER, "api_key": f"{SECRET}\n"}]}, "/providers/0/api_key"),
        ("PUT", "/admin/tenants/acme", {**SPEC, "providers": [{**PROVIDER, "headers": {"X-Team": "***"}}]}, "/providers/0/headers"),
        ("PUT", "/admin/tenants/other", SPEC, "/name"),
        ("PATCH", "/admin/tenants/acme", {"name": "b"}, "/name"),
        ("PUT", "/admin/tenants/acme/chains", {"chains": {"chat": [{**ROUTE, "provider": "none"}]}}, "/chains/chat/0/provider"),
        ("PUT", "/admin/tenants/acme/providers", {}, ""),
        ("POST", "/admin/tenants/acme/keys", {"name": 1}, "/name"),
    ],
)
async def test_a_body_that_cannot_work_is_refused_with_its_place(
    client: httpx.AsyncClient, *, method: str, path: str, body: Any, pointer: str
) -> None:
    await client.put("/admin/tenants/acme", json={"name": "acme"})

    response = await client.request(method, path, json=body)

    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert SECRET not in response.text


async def test_a_body_that_is_not_json_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/admin/tenants", content=b'{"name": ')

    assert (response.status_code, response.json()["code"]) == (422, "invalid_json")


async def route_health(client: httpx.AsyncClient, tenant: str | None = None) -> list[dict[str, Any]]:
    response = await client.get("/admin/providers", params={} if tenant is None else {"tenant": tenant})
    assert response.status_code == 200, response.text
    return [route["health"] for provider in response.json()["data"] for route in provider["routes"]]


async def test_a_route_without_failures_and_limits_is_healthy(client: httpx.AsyncClient) -> None:
    await create(client)
    (health,) = await route_health(client)
    assert health == {
        "state": "healthy",
        "scope": None,
        "reason": None,
        "cool_down_until": None,
        "remaining_s": None,
        "failures": 0,
        "last_failures": [],
        "windows": [],
    }


async def test_a_cool_down_shows_its_reach_and_end_with_the_last_failures(
    client: httpx.AsyncClient, database: Database, tenants: TenantRepository
) -> None:
    created = await create(client)
    tenant = await tenants.tenant(created["id"])
    assert tenant is not None
    keys = target_keys(tenant.id, tenant.chains[Purpose.CHAT][0])
    cooldowns = Cooldowns(database)
    report = CooldownReport(
        key=keys.key_model, scope=CooldownScope.KEY_MODEL, reason=FailureReason.RATE_LIMIT, status=429, duration_s=120.0, promised=True
    )
    await cooldowns.report(report)

    (health,) = await route_health(client)

    assert (health["state"], health["scope"], health["reason"], health["failures"]) == ("cooling", "key_model", "rate_limit", 1)
    assert 110.0 < health["remaining_s"] <= 120.0
    until = datetime.fromisoformat(health["cool_down_until"])
    assert timedelta(seconds=100) < until - datetime.now(UTC) <= timedelta(seconds=121)
    (failure,) = health["last_failures"]
    assert (failure["reason"], failure["status"]) == ("rate_limit", 429)
    assert failure["at"].endswith("Z")
    await database.fetch(text("UPDATE cooldowns SET until_at = clock_timestamp() - interval '1 second'"))
    (health,) = await route_health(client)
    assert (health["state"], health["cool_down_until"], health["remaining_s"], health["failures"]) == ("probation", None, None, 1)


async def test_the_use_of_a_routes_limits_is_shown_beside_them(
    client: httpx.AsyncClient, database: Database, tenants: TenantRepository
) -> None:
    limits = {"providers": [{**PROVIDER, "rpm": 60}], "chains": {"chat": [{**ROUTE, "rpm": 30, "tpm": 9_000}]}}
    response = await client.post("/admin/tenants", json={**SPEC, **limits})
    tenant = await tenants.tenant(response.json()["id"])
    assert tenant is not None
    route = tenant.chains[Purpose.CHAT][0]
    await RateWindows(database).book(rate_limits(tenant.id, route), 700, 0.0)

    (health,) = await route_health(client)

    assert health["windows"] == [
        {"scope": "key", "source": "configured", "rpm": 60, "tpm": None, "calls": 1, "tokens": 700},
        {"scope": "key_model", "source": "configured", "rpm": 30, "tpm": 9_000, "calls": 1, "tokens": 700},
    ]


async def test_limits_that_a_provider_told_of_are_shown_beside_the_configured_ones(
    client: httpx.AsyncClient, tenants: TenantRepository, limiter: Limiter
) -> None:
    limits = {"providers": [{**PROVIDER, "rpm": 60}], "chains": {"chat": [ROUTE]}}
    response = await client.post("/admin/tenants", json={**SPEC, **limits})
    tenant = await tenants.tenant(response.json()["id"])
    assert tenant is not None
    route = tenant.chains[Purpose.CHAT][0]
    keys = target_keys(tenant.id, route)
    told = Allowance(limit=20, remaining=19, reset_s=10.0, window_s=60.0)
    await limiter.learn(keys, RateHeaders(requests=told, tokens=None))
    await limiter.book(limiter.limits_for(tenant.id, route, keys), 5, 0.0)

    (health,) = await route_health(client)

    assert health["windows"] == [
        {"scope": "key", "source": "configured", "rpm": 60, "tpm": None, "calls": 1, "tokens": 0},
        {"scope": "key_model", "source": "learnt", "rpm": 20, "tpm": None, "calls": 1, "tokens": 0},
    ]


@pytest.mark.parametrize(
    ("environ", "secret", "state"),
    [
        pytest.param({}, "secret key", "missing", id="its variable is not set"),
        pytest.param({"PRIMARY_KEY": "sk"}, "secret key", "environment", id="its variable is set"),
        pytest.param({"PRIMARY_KEY": "sk"}, "another secret", "unreadable", id="its headers were encrypted with another secret"),
    ],
)
async def test_a_route_whose_credential_cannot_be_read_is_not_called_healthy(
    client: httpx.AsyncClient, database: Database, clock: Clock, app: FastAPI, *, environ: dict[str, str], secret: str, state: str
) -> None:
    response = await client.post("/admin/tenants", json={**SPEC, "providers": [{**PROVIDER, "api_key": "env:PRIMARY_KEY"}]})
    assert response.status_code == 201, response.text
    tenants = TenantRepository(database, clock, Sealer(secret), environ)
    app.state.services.tenants = tenants
    app.state.services.route_health = HealthDesk(tenants, Cooldowns(database), RateWindows(database), clock)
    (provider,) = (await client.get("/admin/providers")).json()["data"]
    assert provider["credential"] == state
    assert provider["routes"][0]["health"]["state"] == ("healthy" if state == "environment" else "no_credential")


async def test_a_reset_ends_the_cool_downs_of_a_provider_and_of_nobody_else(
    client: httpx.AsyncClient, database: Database, tenants: TenantRepository
) -> None:
    chains = {"chat": [ROUTE, {**ROUTE, "model": "m-other"}, {**ROUTE, "provider": "backup"}]}
    spec = {**SPEC, "providers": [PROVIDER, {**PROVIDER, "name": "backup", "api_key": "other"}], "chains": chains}
    for name in ("acme", "rival"):
        created = await client.post("/admin/tenants", json={**spec, "name": name})
        tenant = await tenants.tenant(created.json()["id"])
        assert tenant is not None
        for route in tenant.chains[Purpose.CHAT]:
            await Cooldowns(database).report(at_its_limit(target_keys(tenant.id, route).key_model))
    assert await states(client) == {"acme": ["cooling"] * 3, "rival": ["cooling"] * 3}

    response = await client.post("/admin/providers/acme/primary/reset", params={"model": "m-test"})

    assert response.status_code == 200, response.text
    assert [place["health"]["state"] for place in response.json()["routes"]] == ["healthy", "cooling"]
    response = await client.post("/admin/providers/acme/primary/reset")
    assert [place["health"]["state"] for place in response.json()["routes"]] == ["healthy", "healthy"]
    assert (await client.post("/admin/providers/acme/primary/reset")).status_code == 200
    assert await states(client) == {"acme": ["cooling", "healthy", "healthy"], "rival": ["cooling"] * 3}
    for path in ("nobody/primary/reset", "acme/nothing/reset", "acme/primary/reset?model=unknown"):
        assert (await client.post(f"/admin/providers/{path}")).status_code == 404


def at_its_limit(key: str) -> CooldownReport:
    return CooldownReport(
        key=key, scope=CooldownScope.KEY_MODEL, reason=FailureReason.RATE_LIMIT, status=429, duration_s=120.0, promised=True
    )


async def states(client: httpx.AsyncClient) -> dict[str, list[str]]:
    """The states of all routes by tenant, in the order of the list."""
    found: dict[str, list[str]] = {}
    for view in (await client.get("/admin/providers")).json()["data"]:
        found.setdefault(view["tenant"], []).extend(place["health"]["state"] for place in view["routes"])
    return found


async def pages(client: httpx.AsyncClient, path: str, limit: int, **params: str) -> list[list[dict[str, Any]]]:
    """Every page of a list."""
    found = []
    while True:
        response = await client.get(path, params={**params, "limit": limit})
        assert response.status_code == 200, response.text
        page = response.json()
        assert page["has_more"] is (page["next_cursor"] is not None)
        found.append(page["data"])
        if not page["has_more"]:
            return found
        params["cursor"] = page["next_cursor"]


async def test_providers_and_tenants_are_read_in_pages(client: httpx.AsyncClient) -> None:
    names = ("alpha", "beta", "delta", "gamma")
    for name in names:
        providers = [] if name == "beta" else [{**PROVIDER, "name": provider} for provider in ("z", "a", "m")]
        response = await client.post("/admin/tenants", json={"name": name, "providers": providers})
        assert response.status_code == 201, response.text
    everybody = [f"{name}/{provider}" for name in names if name != "beta" for provider in ("a", "m", "z")]
    for limit in (1, 2, 3, 4, 8, 9, 200):
        read = await pages(client, "/admin/providers", limit)
        assert [f"{view['tenant']}/{view['name']}" for page in read for view in page] == everybody
        assert all(0 < len(page) <= limit for page in read)
    of_one = await pages(client, "/admin/providers", 2, tenant="gamma")
    assert [[view["name"] for view in page] for page in of_one] == [["a", "m"], ["z"]]
    assert [[view["name"] for view in page] for page in await pages(client, "/admin/tenants", 3)] == [["alpha", "beta", "delta"], ["gamma"]]


async def test_a_page_goes_on_behind_a_provider_and_a_tenant_that_are_gone(client: httpx.AsyncClient, database: Database) -> None:
    for name in ("alpha", "beta"):
        await client.post("/admin/tenants", json={"name": name, "providers": [{**PROVIDER, "name": "a"}, {**PROVIDER, "name": "b"}]})
    first = (await client.get("/admin/providers", params={"limit": 1})).json()
    await client.put("/admin/tenants/alpha/providers", json={"providers": [{**PROVIDER, "name": "b"}]})
    (following, *_) = (await client.get("/admin/providers", params={"cursor": first["next_cursor"]})).json()["data"]
    assert (following["tenant"], following["name"]) == ("alpha", "b")
    await database.fetch(text("DELETE FROM tenants WHERE name = 'alpha'"))
    rest = (await client.get("/admin/providers", params={"cursor": first["next_cursor"]})).json()["data"]
    assert [view["tenant"] for view in rest] == ["beta", "beta"]


async def test_keys_are_read_in_pages(client: httpx.AsyncClient) -> None:
    await create(client)
    made = [(await client.post("/admin/tenants/acme/keys", json={"name": str(index)})).json()["id"] for index in range(4)]
    read = await pages(client, "/admin/tenants/acme/keys", 2)
    assert [len(page) for page in read] == [2, 2, 1]
    ids = [key["id"] for page in read for key in page]
    assert ids == sorted(ids)
    assert set(made) < set(ids)


async def test_usage_is_read_in_pages(client: httpx.AsyncClient, database: Database) -> None:
    created = await create(client)
    turns = TurnRepository(database, lease_ttl_s=20.0)
    session_id = await a_session(database, created["id"])
    models = [f"m-{'ü' * 250}-{index}" for index in range(3)]
    for model in models:
        route = RouteRef(provider="primary", model=model)
        state = MachineState(attempts=1, route=route, routes=(RouteUse(route=route, attempts=1),))
        await turns.commit(step(await opened(turns, created["id"], session_id), state=state, closing=DONE))
    await turns.commit(step(await opened(turns, created["id"], session_id), closing=DONE))
    read = await pages(client, "/admin/usage", 1)
    assert [line["route"] and line["route"]["model"] for page in read for line in page] == [None, *models]


@pytest.mark.parametrize("path", ["/admin/tenants", "/admin/tenants/acme/keys", "/admin/providers", "/admin/usage"])
@pytest.mark.parametrize("cursor", ["!", "WyJ4Ig", "WzFd", "Zm9vIGJhcg"])
async def test_a_cursor_of_something_else_is_refused(client: httpx.AsyncClient, path: str, cursor: str) -> None:
    await create(client)
    response = await client.get(path, params={"cursor": cursor})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/cursor")


async def test_providers_of_one_tenant_can_be_asked_for_and_those_of_a_disabled_one_have_no_health(client: httpx.AsyncClient) -> None:
    await create(client)
    await client.post("/admin/tenants", json={**SPEC, "name": "other"})
    await client.post("/admin/tenants/other/disable")
    everybody = await route_health(client)
    assert [health is None for health in everybody] == [False, True]
    assert await route_health(client, "other") == [None]
    assert (await client.get("/admin/providers", params={"tenant": "nobody"})).status_code == 404


async def test_usage_is_reported_per_tenant_day_and_route(client: httpx.AsyncClient, database: Database) -> None:
    created = await create(client)
    turns = TurnRepository(database, lease_ttl_s=20.0)
    used = Usage(input_tokens=10, output_tokens=5)
    route = RouteRef(provider="primary", model="m-test")
    state = MachineState(
        attempts=1, usage=used, cost_usd=0.5, route=route, routes=(RouteUse(route=route, attempts=1, usage=used, cost_usd=0.5),)
    )
    turn = await opened(turns, created["id"], await a_session(database, created["id"]))
    await turns.commit(step(turn, state=state, closing=DONE))

    response = await client.get("/admin/usage", params={"tenant": "acme"})

    assert response.status_code == 200
    today = datetime.now(UTC).date().isoformat()
    assert response.json()["data"] == [
        {
            "tenant": "acme",
            "day": today,
            "route": {"provider": "primary", "model": "m-test", "api_mode": "chat_completions"},
            "turns": 1,
            "attempts": 1,
            "failed": 0,
            "usage": {"input_tokens": 10, "output_tokens": 5, "cached_input_tokens": 0, "cache_write_tokens": 0, "reasoning_tokens": 0},
            "cost_usd": 0.5,
        }
    ]
    assert (await client.get("/admin/usage", params={"from": today, "to": today})).json()["data"] == response.json()["data"]
    assert (await client.get("/admin/usage", params={"to": "2020-01-01"})).json()["data"] == []


@pytest.mark.parametrize(
    ("params", "status", "pointer"),
    [
        pytest.param({"from": "yesterday"}, 422, "/from", id="no day"),
        pytest.param({"to": "2026-13-01"}, 422, "/to", id="no month"),
        pytest.param({"to": "9999-12-31"}, 422, "/to", id="too far away"),
        pytest.param({"from": "2026-02-01", "to": "2026-01-01"}, 422, "/from", id="turned round"),
        pytest.param({"from": "2020-01-01", "to": "2026-01-01"}, 422, "/from", id="too long"),
        pytest.param({"tenant": "nobody"}, 404, None, id="unknown tenant"),
        pytest.param({"tenant": "\x00"}, 404, None, id="no name"),
    ],
)
async def test_usage_says_what_is_wrong_with_the_question(
    client: httpx.AsyncClient, params: dict[str, str], status: int, pointer: str | None
) -> None:
    response = await client.get("/admin/usage", params=params)
    assert response.status_code == status
    assert [error["pointer"] for error in response.json().get("errors", [])] == ([] if pointer is None else [pointer])


MCP_SERVER = {"name": "box", "url": "https://box.example/mcp", "credential": SECRET, "headers": {"X-Team": SECRET}}


async def test_mcp_servers_are_put_as_they_were_read_and_never_show_a_secret(client: httpx.AsyncClient) -> None:
    created = await client.post("/admin/tenants", json={**SPEC, "mcp_servers": [MCP_SERVER]})
    assert created.json()["mcp_credentials"] == {"box": "sealed"}
    shown = await client.get("/admin/tenants/acme/mcp_servers")
    assert shown.json()["mcp_servers"][0] == {
        **MCP_SERVER,
        "credential": None,
        "headers": {"X-Team": "***"},
        "timeout_s": 60.0,
        "read_only_tools": [],
        "needs_approval": False,
        "enabled": True,
    }
    written = await client.put("/admin/tenants/acme/mcp_servers", json=shown.json())
    assert (written.status_code, written.json()) == (200, shown.json())
    assert SECRET not in created.text + shown.text + written.text
    removed = await client.patch("/admin/tenants/acme", json={"mcp_servers": []})
    assert (removed.json()["mcp_servers"], len(removed.json()["providers"])) == ([], 1)


async def test_an_mcp_server_that_cannot_work_is_refused_with_its_place(client: httpx.AsyncClient) -> None:
    await client.post("/admin/tenants", json=SPEC)
    refused = await client.put("/admin/tenants/acme/mcp_servers", json={"mcp_servers": [{**MCP_SERVER, "name": "two words"}]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/mcp_servers/0/name")
    assert (await client.get("/admin/tenants/nobody/mcp_servers")).status_code == 404
    assert (await client.put("/admin/tenants/nobody/mcp_servers", json={"mcp_servers": []})).status_code == 404
