"""Tenants never meet: whatever a caller asks about another tenant's things is answered as if there were none, and changes nothing."""

from typing import Any

from sqlalchemy import text

from app.simulator.server import Simulator
from app.store.engine import Database
from tests.e2e.harness import OTHER_KEY, Client, Replica
from tests.e2e.routes import OPERATOR, PUBLIC, TENANT, filled, routes_of
from tests.e2e.scenes import assert_goes_on, first_turn_id

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/sessions/{session_id}/turns"): {"input": "let me in"},
    ("PATCH", "/sessions/{session_id}"): {"system_prompt": "mine now"},
    ("POST", "/turns/{turn_id}/tool_results"): {"results": [{"tool_call_id": "call_1", "output": "mine now"}]},
}
UNKNOWN = {"tool_call_id": "c0", "session_id": "sess_00000000000000000000000000", "turn_id": "turn_00000000000000000000000000"}
TABLES = ("tenants", "sessions", "messages", "turns", "turn_events", "todos", "memory", "summaries", "api_keys", "turn_answers")


async def snapshot(database: Database) -> list[str]:
    """Every row of every table that holds something of a tenant."""
    return [str(row) for table in TABLES for row in await database.fetch(text(f"SELECT r::text FROM {table} AS r ORDER BY 1"))]


async def ask(client: Client, route: tuple[str, str], ids: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Call a route with ids; its status and its problem without what differs by nature."""
    method, path = route
    response = await client.http.request(method, filled(path, ids), json=BODIES.get(route))
    body = response.json()
    body.pop("request_id", None)
    return response.status_code, body


async def test_every_route_is_known(gateway: Replica) -> None:
    assert routes_of(gateway.gateway.app) == PUBLIC | TENANT | OPERATOR


async def test_another_tenants_ids_are_unknown_ids(gateway: Replica, client: Client, provider: Simulator, database: Database) -> None:
    done_session, busy_session = await client.session(metadata={"secret": "acme's"}), await client.session()
    done = first_turn_id(await client.run(done_session, "[[sim text=classified]]"))
    async with client.turn(busy_session, "[[sim silent]]") as stream, gateway.client(OTHER_KEY) as other:
        busy = first_turn_id([await stream.until("iteration.started")])
        await other.session()
        before = await snapshot(database)
        with_ids = [route for route in sorted(TENANT) if "_id}" in route[1]]
        for session_id, turn_id in ((done_session, done), (busy_session, busy)):
            for route in with_ids:
                foreign = await ask(other, route, {"session_id": session_id, "turn_id": turn_id, "tool_call_id": "c0"})
                unknown = await ask(other, route, UNKNOWN)
                assert foreign == unknown, route
                assert foreign[0] == 404, route
        assert await snapshot(database) == before
        assert (await client.get(busy))["status"] == "running"
        assert len(provider.requests) == 2
        await client.http.delete(f"/turns/{busy}")
    await assert_goes_on(client, provider, busy_session)


async def test_listings_show_ones_own_things_alone(gateway: Replica, client: Client) -> None:
    acmes = await client.session(user="somebody")
    async with gateway.client(OTHER_KEY) as other:
        others = await other.session(user="somebody")
        for params in ({}, {"user": "somebody"}):
            for caller, own in ((client, acmes), (other, others)):
                page = (await caller.http.get("/sessions", params=params)).json()
                assert [session["id"] for session in page["data"]] == [own]
        cursor = (await client.http.get("/sessions", params={"limit": 1})).json()["next_cursor"]
        assert cursor is None
        foreign = await other.http.get("/sessions", params={"cursor": acmes})
        assert acmes not in foreign.text


async def test_without_a_good_key_every_route_is_closed(gateway: Replica, client: Client, database: Database) -> None:
    session = await client.session()
    turn = first_turn_id(await client.run(session))
    before = await snapshot(database)
    ids = {
        "session_id": session,
        "turn_id": turn,
        "name": "acme",
        "tool": "lookup",
        "tool_call_id": "c0",
        "key_id": "key_x",
        "model": "sim-text",
        "tenant": "acme",
        "provider": "primary",
    }
    bad: tuple[dict[str, str], ...] = (
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer agw_nobody-has-this-key"},
        {"Authorization": f"Basic {OTHER_KEY}"},
        {"Authorization": "", "x-api-key": ""},
        {"Authorization": "", "x-api-key": "' OR 1=1 --"},
    )
    for method, path in sorted(TENANT | OPERATOR):
        for headers in bad:
            response = await client.http.request(
                method, filled(path, ids), headers=headers, json={"input": "x"} if method == "POST" else None
            )
            assert response.status_code == 401, (method, path, headers)
            assert response.headers["www-authenticate"] == "Bearer"
            assert "acme" not in response.text
    assert await snapshot(database) == before


async def test_a_disabled_key_opens_nothing_any_more(gateway: Replica, client: Client) -> None:
    key_id = (await client.http.get("/admin/tenants/other/keys", headers={"Authorization": "Bearer admin-key-of-the-tests"})).json()[
        "data"
    ][0]["id"]
    disabled = await client.http.delete(f"/admin/keys/{key_id}", headers={"Authorization": "Bearer admin-key-of-the-tests"})
    assert disabled.status_code == 200
    async with gateway.client(OTHER_KEY) as other:
        assert (await other.http.get("/sessions")).status_code == 401
