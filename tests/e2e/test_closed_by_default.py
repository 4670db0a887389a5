"""What is the operator's stays closed until a good admin key is configured, and to everybody without it then."""

from app.simulator.server import Simulator
from tests.e2e.harness import ADMIN_KEY, KEY, Client
from tests.e2e.routes import OPERATOR, PUBLIC
from tests.e2e.scenes import opened

PATH = {"name": "acme", "tool": "lookup", "tenant": "acme", "provider": "primary", "key_id": "key_00000000000000000000000000"}
NOT_ADMIN: tuple[dict[str, str], ...] = (
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer None"},
    {"Authorization": f"Bearer {KEY}"},
    {"Authorization": "", "x-api-key": ""},
    {"Authorization": "", "x-api-key": KEY},
    {"Authorization": "Basic OmNoYW5nZW1l"},
)


async def assert_closed(client: Client, *more: dict[str, str]) -> None:
    """Nobody of NOT_ADMIN and ``more`` gets anything out of an operator's route."""
    for method, path in sorted(OPERATOR):
        for headers in (*NOT_ADMIN, *more):
            response = await client.http.request(method, path.format(**PATH), headers=headers)
            assert response.status_code in {401, 403}, (method, path, headers)
            assert "acme" not in response.text


async def test_without_an_admin_key_the_operators_routes_are_closed(database_url: str, provider: Simulator) -> None:
    for configured in (None, "", " ", "\t\n"):
        async with opened(database_url, provider, admin_key=configured) as (_, client):
            await assert_closed(client, {"Authorization": f"Bearer {(configured or 'None').strip() or 'x'}"})


async def test_with_an_admin_key_nobody_else_gets_in(database_url: str, provider: Simulator) -> None:
    for configured in ("changeme", ADMIN_KEY):
        async with opened(database_url, provider, admin_key=configured) as (_, client):
            await assert_closed(client, {"Authorization": f"Bearer {configured}x"}, {"Authorization": f"Bearer {configured[:-1]}"})
            allowed = await client.http.get("/admin/tenants", headers={"Authorization": f"Bearer {configured}"})
            assert allowed.status_code == 200


async def test_the_admin_key_is_no_tenants_key(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        response = await client.http.get("/sessions", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        assert response.status_code == 401


async def test_what_is_public_says_nothing_of_tenants(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (running, client):
        session = await client.session()
        await client.run(session)
        nobody = {"Authorization": ""}
        for method, path in sorted(PUBLIC):
            response = await client.http.request(method, path, headers=nobody)
            assert response.status_code == 200, path
            for word in ("acme", session, provider.base_url, "sk-test", "0123456789", running.gateway.replica):
                assert word not in response.text, path
        for path in ("/livez", "/readyz"):
            assert (await client.http.get(path, headers=nobody)).content == b""
        for path in ("/debug", "/redoc", "/docs/oauth2-redirect", "/admin", "/admin/", "/.env", "/metrics/"):
            assert (await client.http.get(path, headers=nobody)).status_code in {401, 403, 404}, path


async def test_metrics_carry_no_names_and_no_keys(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        session = await client.session(user="jane@example.org")
        frames = await client.run(session)
        metrics = await client.http.get("/metrics", headers={"x-api-key": ADMIN_KEY, "Authorization": ""})
        assert metrics.status_code == 200
        assert "turns" in metrics.text
        for word in ("acme", "jane", KEY, KEY[-4:], "sk-test", session, frames[0].data["turn_id"], provider.origin):
            assert word not in metrics.text, word
