import json
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from app.api.errors import install
from app.api.routes.admin import router

ADMIN = "a-long-admin-key"
TENANT_KEY = "agw_0123456789abcdef0123456789abcdef"
ROUTES = sorted((method, route.path) for route in router.routes if isinstance(route, APIRoute) for method in route.methods or ())


def admin_app(admin_key: str | None) -> FastAPI:
    """The admin API with nothing behind it: whatever gets past the key fails for want of a store."""
    app = FastAPI()
    app.include_router(router)
    app.state.services = SimpleNamespace(admin_key=admin_key)
    install(app, app.routes)
    return app


@pytest.fixture
async def client(admin_key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(admin_app(admin_key))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.mark.parametrize("admin_key", [ADMIN])
@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TENANT_KEY}"}, {"x-api-key": ""}, {"x-api-key": f"{ADMIN}x"}],
    ids=["no key", "bearer and nothing", "a tenant's key", "empty", "nearly right"],
)
async def test_every_route_turns_away_who_has_not_the_admin_key(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    response = await client.request(method, path, headers=headers, content=b"{not json")

    assert response.status_code == 401
    assert response.json()["code"] == "unauthorized"
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("admin_key", [None, "", " ", "short", "        "])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_is_closed_without_a_real_admin_key(
    client: httpx.AsyncClient, admin_key: str | None, method: str, path: str
) -> None:
    for presented in (admin_key or "", "", TENANT_KEY):
        response = await client.request(method, path, headers={"x-api-key": presented})

        assert response.status_code == 403
        assert response.json()["code"] == "admin_disabled"


def test_the_openapi_document_describes_every_body_in_one_piece() -> None:
    document = admin_app(ADMIN).openapi()

    described = {path: set(operations) for path, operations in document["paths"].items()}
    assert described["/admin/tenants/{name}"] == {"get", "put", "patch"}
    assert "#/$defs" not in json.dumps(document)
    for operations in document["paths"].values():
        for method, operation in operations.items():
            assert operation["security"] == [{"adminKey": []}]
            success = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
            assert success["content"]["application/json"]["schema"]["type"] == "object"
            if method in {"put", "patch"}:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                assert schema["additionalProperties"] is False
