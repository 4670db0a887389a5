"""Webhook tools over HTTP: a server in a process of its own, called, killed, and called back; the turn goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import TenantChange
from app.simulator.server import Simulator
from app.tools.outbound import NOT_PUBLIC
from tests.e2e.harness import ADMIN_KEY, KEY, OTHER_KEY, Client, Frame, Replica, replica, tenant, text_of
from tests.e2e.webhook_process import SECRET, WebhookProcess, webhook_process

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.fixture
async def hooks() -> AsyncIterator[WebhookProcess]:
    async with webhook_process() as running:
        yield running


@pytest.fixture
async def gateway(database_url: str, provider: Simulator, hooks: WebhookProcess) -> AsyncIterator[Replica]:
    tools = tuple(
        WebhookToolSpec(
            name=name,
            description=f"Asks {name}.",
            url=f"{hooks.base_url}/{path}",
            parameters=PARAMETERS,
            secret=SECRET,
            idempotent=name == "retried",
        )
        for name, path in (("answer", "answer"), ("broken", "broken"), ("held", "held"), ("retried", "broken"))
    )
    async with replica(database_url, outbound_allow="127.0.0.0/8") as running:
        tenants = running.gateway.tenants
        await tenants.apply(tenant("acme", KEY, [provider.base_url]), generate_key=False)
        await tenants.change("acme", TenantChange(tools=tools))
        await tenants.apply(tenant("other", OTHER_KEY, [provider.base_url]), generate_key=False)
        yield running


def asks_for(*wanted: tuple[str, dict[str, Any]], text: str = "Done.") -> str:
    listed = [{"name": name, "arguments": arguments, "id": f"c{index}"} for index, (name, arguments) in enumerate(wanted)]
    return f"[[sim calls={json.dumps(listed)} text={json.dumps(text)}]]"


def completed(frames: list[Frame]) -> dict[str, tuple[str, bool]]:
    return {
        frame.data["tool_call_id"]: (frame.data["output"], frame.data["is_error"]) for frame in frames if frame.type == "tool.completed"
    }


async def next_turn_works(client: Client, session: str, provider: Simulator) -> None:
    frames = await client.run(session, '[[sim text="Still here."]]')
    assert (frames[-1].type, text_of(frames)) == ("turn.completed", "Still here.")
    assert [request.problems for request in provider.requests if request.problems] == []


async def test_a_signed_call_and_a_failing_one_in_one_answer(client: Client, hooks: WebhookProcess, provider: Simulator) -> None:
    session = await client.session(toolsets=["webhooks"])

    frames = await client.run(session, asks_for(("answer", {"q": "grün"}), ("broken", {"q": "x"})))

    assert completed(frames) == {
        "c0": ('{"got": {"q": "gr\\u00fcn"}}', False),
        "c1": ('The webhook answered 500. Its answer:\n{"error": "out of order"}', True),
    }
    assert text_of(frames) == "Done."
    calls = {call["path"]: call for call in [await hooks.next_call(), await hooks.next_call()]}
    assert {call["fault"] for call in calls.values()} == {""}
    turn_id = frames[0].data["turn_id"]
    assert calls["/answer"]["headers"]["idempotency-key"] == f"{turn_id}_c0"
    assert calls["/answer"]["body"] == {
        "type": "tool.call",
        "tool": "answer",
        "tool_call_id": "c0",
        "turn_id": turn_id,
        "session_id": session,
        "tenant": "acme",
        "arguments": {"q": "grün"},
    }
    await next_turn_works(client, session, provider)


async def test_a_server_that_is_killed_in_a_call_is_a_failed_result_and_the_turn_goes_on(
    client: Client, hooks: WebhookProcess, provider: Simulator
) -> None:
    session = await client.session(toolsets=["webhooks"])
    async with client.turn(session, asks_for(("held", {"q": "x"}), text="It broke.")) as stream:
        assert (await hooks.next_call())["path"] == "/held"
        await hooks.kill()
        frames = await stream.read_to_end()
    output, is_error = completed(frames)["c0"]
    assert is_error
    assert "effect of the call is unknown" in output
    assert (frames[-1].type, text_of(frames)) == ("turn.completed", "It broke.")
    frames = await client.run(session, asks_for(("answer", {"q": "x"})))
    assert completed(frames)["c0"] == ("No connection to the webhook came about; it was not called.", True)
    await next_turn_works(client, session, provider)


async def test_an_interrupt_reaches_a_call_under_way(client: Client, hooks: WebhookProcess, provider: Simulator) -> None:
    session = await client.session(toolsets=["webhooks"])
    async with client.turn(session, asks_for(("held", {"q": "x"}))) as stream:
        started = await stream.until("turn.started")
        await hooks.next_call()
        async with asyncio.timeout(10):
            await client.http.delete(f"/turns/{started.data['turn_id']}")
            frames = await stream.read_to_end()
    assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.interrupted", "requested")
    await next_turn_works(client, session, provider)


async def test_only_an_idempotent_tool_is_called_again(client: Client, hooks: WebhookProcess) -> None:
    session = await client.session(toolsets=["webhooks"])
    await client.run(session, asks_for(("retried", {"q": "x"})))
    calls = [await hooks.next_call() for _ in range(3)]
    assert len({call["headers"]["webhook-id"] for call in calls}) == 1
    await client.run(session, asks_for(("broken", {"q": "x"})))
    await client.run(session, asks_for(("answer", {"q": "last"})))
    assert [(await hooks.next_call())["body"]["tool"] for _ in range(2)] == ["broken", "answer"]


async def test_another_tenant_has_none_of_them(gateway: Replica, hooks: WebhookProcess) -> None:
    async with gateway.client(OTHER_KEY) as other:
        refused = await other.http.post("/sessions", json={"toolsets": ["webhooks"]})
        assert refused.status_code == 422
        session = await other.session()
        frames = await other.run(session, asks_for(("answer", {"q": "x"})))
        assert completed(frames)["c0"][0].startswith("There is no tool 'answer'")
    assert hooks.calls == []


async def test_a_tool_that_was_removed_answers_that_it_is_gone(database_url: str, gateway: Replica, client: Client) -> None:
    session = await client.session(toolsets=["webhooks"])
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    removed = await client.http.delete("/admin/tenants/acme/tools/answer", headers=admin)
    assert removed.status_code == 204
    tenants = gateway.gateway.tenants
    assert [tool.name for tool in (await tenants.infos())[0].tools] == ["broken", "held", "retried"]
    async with replica(database_url, outbound_allow="127.0.0.0/8") as fresh, fresh.client() as later:  # it has cached no tenant
        frames = await later.run(session, asks_for(("answer", {"q": "x"})))
    assert completed(frames)["c0"][0].startswith("There is no tool 'answer'")
    assert frames[-1].type == "turn.completed"


async def test_without_the_operators_leave_loopback_is_not_called(database_url: str, gateway: Replica, hooks: WebhookProcess) -> None:
    async with replica(database_url) as strict, strict.client() as client:
        session = await client.session(toolsets=["webhooks"])
        frames = await client.run(session, asks_for(("answer", {"q": "x"}), ("retried", {"q": "x"})))
    assert completed(frames) == {"c0": (NOT_PUBLIC, True), "c1": (NOT_PUBLIC, True)}
    assert hooks.calls == []
