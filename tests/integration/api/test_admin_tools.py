"""The admin API of tenants' tools."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.errors import install
from app.api.routes import admin, admin_tools
from app.domain.tenants import TenantSpec
from app.ports import Clock
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository
from app.tools.webhook import WebhookRules

ADMIN = "a-long-admin-key"
SECRET = "whsec_c2lnbmluZyBrZXkgb2YgdGhlIHRlc3Rz"
TOOL = {"name": "find", "description": "Finds.", "url": "https://hooks.example/find", "secret": SECRET, "headers": {"X-Team": SECRET}}
PATH = "/admin/tenants/acme/tools"


@pytest.fixture
async def client(database: Database, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    tenants = TenantRepository(database, clock, Sealer("secret key"), {}, tool_rules=WebhookRules(lambda: frozenset({"todo"})))
    await tenants.apply(TenantSpec(name="acme"), generate_key=False)
    app = FastAPI()
    for router in (admin.router, admin_tools.router):
        app.include_router(router)
    app.state.services = SimpleNamespace(admin_key=ADMIN, tenants=tenants, clock=clock)
    install(app, app.routes)
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers) as client:
        yield client


async def names(client: httpx.AsyncClient) -> list[str]:
    return [tool["name"] for tool in (await client.get(PATH)).json()["tools"]]


async def test_tools_are_put_read_and_put_again_as_they_were_read(client: httpx.AsyncClient) -> None:
    written = await client.put(PATH, json={"tools": [TOOL]})
    assert written.status_code == 200, written.text
    (tool,) = written.json()["tools"]
    assert (tool["secret"], tool["headers"], tool["method"], tool["timeout_s"]) == (None, {"X-Team": "***"}, "POST", 30.0)
    read = await client.get(PATH)
    assert read.headers["Cache-Control"] == "no-store"
    assert read.json() == written.json() == (await client.put(PATH, json=read.json())).json()
    tenant = (await client.get("/admin/tenants/acme")).json()
    assert (tenant["tools"], tenant["tool_secrets"]) == ([tool], {"find": "sealed"})
    for text in (written.text, read.text, (await client.get("/admin/tenants")).text):
        assert SECRET not in text


async def test_one_tool_is_put_read_and_deleted(client: httpx.AsyncClient) -> None:
    await client.put(PATH, json={"tools": [TOOL, {**TOOL, "name": "look"}]})
    one = await client.put(f"{PATH}/more", json={**TOOL, "name": "more"})
    assert (one.status_code, one.json()["name"]) == (200, "more")
    assert await names(client) == ["find", "look", "more"]
    kept = {name: value for name, value in TOOL.items() if name != "secret"}
    again = await client.put(f"{PATH}/find", json={**kept, "headers": {"X-Team": "***"}, "idempotent": True})
    assert (again.json()["idempotent"], await names(client)) == (True, ["find", "look", "more"])
    assert (await client.get("/admin/tenants/acme")).json()["tool_secrets"]["find"] == "sealed"
    assert (await client.get(f"{PATH}/find")).json() == again.json()
    assert (await client.delete(f"{PATH}/find")).status_code == 204
    assert await names(client) == ["look", "more"]
    for response in (await client.get(f"{PATH}/find"), await client.delete(f"{PATH}/find")):
        assert response.status_code == 404


async def test_patching_a_tenant_replaces_its_tools_as_a_whole(client: httpx.AsyncClient) -> None:
    await client.put(PATH, json={"tools": [TOOL]})
    await client.patch("/admin/tenants/acme", json={"settings": {"max_iterations": 3}})
    assert await names(client) == ["find"]
    await client.patch("/admin/tenants/acme", json={"tools": [{**TOOL, "name": "look"}]})
    assert await names(client) == ["look"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": "todo"}, "/name"),
        ({"name": "a b"}, "/name"),
        ({"parameters": {"type": "array"}}, "/parameters"),
        ({"parameters": []}, "/parameters"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"method": "DELETE"}, "/method"),
        ({"secret": "short"}, "/secret"),
        ({"surplus": 1}, "/surplus"),
    ],
)
async def test_what_cannot_work_is_422_where_it_stands(client: httpx.AsyncClient, change: dict[str, Any], pointer: str) -> None:
    body = {**TOOL, **change}
    for response, at in (
        (await client.put(PATH, json={"tools": [body]}), f"/tools/0{pointer}"),
        (await client.put(f"{PATH}/{body['name']}", json=body), pointer),
    ):
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, at)
    assert await names(client) == []


async def test_a_name_that_is_not_the_paths_and_an_unknown_tenant(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"{PATH}/other", json=TOOL)).status_code == 422
    nobody = "/admin/tenants/nobody/tools"
    for response in (
        await client.get(nobody),
        await client.put(nobody, json={"tools": []}),
        await client.get(f"{nobody}/find"),
        await client.put(f"{nobody}/find", json=TOOL),
        await client.delete(f"{nobody}/find"),
    ):
        assert response.status_code == 404
    assert (await client.get(PATH, headers={"Authorization": "Bearer wrong-key-wrong-key"})).status_code == 401
