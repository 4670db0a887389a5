"""The snapshot of memory that a session's prompt ends with."""

import httpx
import pytest

from app.context.prompt import memory_snapshot
from app.domain.ids import SessionId, TenantId
from app.domain.memory import Memory
from tests.unit.api.conftest import Gateway
from tests.unit.api.test_sessions import create

ADA = Memory(notes="of ada")
ALL = Memory(notes="of all")


@pytest.fixture
async def gateway_with_memory(gateway: Gateway, client: httpx.AsyncClient) -> Gateway:
    tenant_id = await tenant_of(gateway, client)
    for user, memory in (("ada", ADA), (None, ALL)):
        assert await gateway.memory.replace(tenant_id, user, memory)
    return gateway


async def tenant_of(gateway: Gateway, client: httpx.AsyncClient) -> TenantId:
    return gateway.sessions.stored(SessionId((await create(client))["id"])).tenant_id


def snapshot(gateway: Gateway, session_id: str) -> str | None:
    return gateway.sessions.stored(SessionId(session_id)).memory


async def test_a_session_starts_with_the_memory_of_its_end_user(gateway_with_memory: Gateway, client: httpx.AsyncClient) -> None:
    of_ada, of_nobody, of_bob = await create(client, user="ada"), await create(client), await create(client, user="bob")
    assert snapshot(gateway_with_memory, of_ada["id"]) == memory_snapshot(ADA)
    assert snapshot(gateway_with_memory, of_nobody["id"]) == memory_snapshot(ALL)
    assert snapshot(gateway_with_memory, of_bob["id"]) is None
    assert of_ada["system_prompt"] == "You are a helpful assistant.", "the API shows what the caller gave"


async def test_a_session_without_the_tool_has_no_snapshot(gateway_with_memory: Gateway, client: httpx.AsyncClient) -> None:
    session = await create(client, user="ada", toolsets=["time"])
    assert snapshot(gateway_with_memory, session["id"]) is None


async def test_the_snapshot_stays_until_something_of_the_prompt_is_changed(gateway_with_memory: Gateway, client: httpx.AsyncClient) -> None:
    gateway = gateway_with_memory
    session_id = (await create(client, user="ada"))["id"]
    tenant_id = gateway.sessions.stored(SessionId(session_id)).tenant_id
    new = Memory(notes="of ada, later", revision=1)
    assert await gateway.memory.replace(tenant_id, "ada", new)

    await client.patch(f"/sessions/{session_id}", json={"metadata": {"a": "b"}, "model": "m-other"})
    assert snapshot(gateway, session_id) == memory_snapshot(ADA)
    await client.patch(f"/sessions/{session_id}", json={"system_prompt": "Be brief."})
    assert snapshot(gateway, session_id) == memory_snapshot(new)


async def test_another_end_user_brings_another_memory(gateway_with_memory: Gateway, client: httpx.AsyncClient) -> None:
    session_id = (await create(client, user="ada"))["id"]
    await client.patch(f"/sessions/{session_id}", json={"user": "bob"})
    assert snapshot(gateway_with_memory, session_id) is None
    await client.patch(f"/sessions/{session_id}", json={"user": None})
    assert snapshot(gateway_with_memory, session_id) == memory_snapshot(ALL)


async def test_the_tool_brings_the_snapshot_and_takes_it_away(gateway_with_memory: Gateway, client: httpx.AsyncClient) -> None:
    session_id = (await create(client, user="ada", toolsets=["time"]))["id"]
    await client.patch(f"/sessions/{session_id}", json={"toolsets": ["time", "core"]})
    assert snapshot(gateway_with_memory, session_id) == memory_snapshot(ADA)
    await client.patch(f"/sessions/{session_id}", json={"toolsets": []})
    assert snapshot(gateway_with_memory, session_id) is None


async def test_a_prompt_of_an_unknown_session_cannot_be_changed(client: httpx.AsyncClient) -> None:
    response = await client.patch("/sessions/sess_" + "0" * 26, json={"system_prompt": "x"})
    assert response.status_code == 404
