"""MCP servers of tenants: real ones, built with the official SDK, in processes of their own."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.domain.mcp_servers import McpServerSpec
from app.simulator.server import Simulator
from tests.e2e.harness import KEY, OTHER_KEY, Client, Frame, Replica, Stream, replica, tenant
from tests.e2e.mcp_processes import MODULE, McpProcess, lines_of, logged, mcp_process
from tests.e2e.processes import ROOT
from tests.e2e.scenes import INTERRUPT_S, assert_goes_on, now

ERAS = pytest.mark.parametrize("server", ["modern", "legacy"], indirect=True)


@pytest.fixture
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[McpProcess]:
    async with mcp_process(tmp_path, getattr(request, "param", "modern")) as running:
        yield running


@asynccontextmanager
async def opened(database_url: str, provider: Simulator, *servers: McpServerSpec, **settings: Any) -> AsyncIterator[tuple[Replica, Client]]:
    """A gateway that may call loopback, and the client of a tenant with these servers."""
    async with replica(database_url, **{"outbound_allow": "127.0.0.0/8", **settings}) as running:
        spec = tenant("acme", KEY, [provider.base_url])
        await running.gateway.tenants.apply(msgspec.structs.replace(spec, mcp_servers=servers), generate_key=False)
        async with running.client() as client:
            yield running, client


def at(server: McpProcess, **fields: Any) -> McpServerSpec:
    return McpServerSpec(name="box", url=server.url, **fields)


def asks_for(*wanted: tuple[str, dict[str, Any]]) -> str:
    listed = [{"name": name, "arguments": arguments, "id": f"c{index}"} for index, (name, arguments) in enumerate(wanted)]
    return f'[[sim calls={json.dumps(listed)} text="Done."]]'


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)


def results(frames: list[Frame]) -> dict[str, tuple[str, bool]]:
    done = [frame.data for frame in frames if frame.type == "tool.completed"]
    return {data["tool_call_id"]: (data["output"], data["is_error"]) for data in done}


def shown(provider: Simulator) -> list[str]:
    return [tool["function"]["name"] for tool in provider.requests[-1].body.get("tools", ())]


@ERAS
async def test_a_servers_tools_are_shown_and_called(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session()
        assert "mcp_box" in (await client.http.get(f"/sessions/{session}")).json()["toolsets"]
        calls = asks_for(
            ("box__echo", {"text": "hi"}), ("box__weather", {}), ("box__picture", {}), ("box__fail", {}), ("box__echo", {"txt": 1})
        )
        frames = await client.run(session, calls)
        assert frames[-1].data["output"] == "Done."
        answers = results(frames)
        assert answers["c0"] == ("echo: hi", False)
        assert json.loads(answers["c1"][0]) == {"degrees": 21}
        assert answers["c2"] == ("[image of 1,200 bytes (image/png), not shown]", False)
        assert "the drawer is stuck" in answers["c3"][0]
        assert answers["c3"][1]
        assert "do not fit the tool's parameters" in answers["c4"][0]
        names = shown(provider)
        assert {"box__echo", "box__slow", "get_time"} <= set(names)
        assert names == sorted(names)
        await assert_goes_on(client, provider, session)


async def test_names_that_become_the_same_are_told_apart(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
        await client.run(session)
        odd = [name for name in shown(provider) if name.startswith("box__odd_name_")]
        assert len(odd) == 2
        frames = await client.run(session, asks_for((odd[0], {}), (odd[1], {})))
        assert {output for output, _ in results(frames).values()} == {"odd with a dot", "odd with a slash"}


@ERAS
async def test_an_interrupt_reaches_the_server(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
        async with client.turn(session, asks_for(("box__slow", {}))) as stream:
            started = await stream.until("tool.started")
            await server.logged("slow begins")
            since = now()
            await client.http.delete(f"/turns/{started.data['turn_id']}")
            frames = await stream.read_to_end()
            assert now() - since < INTERRUPT_S
        assert frames[-1].type == "turn.interrupted"
        await server.logged("slow is cancelled", INTERRUPT_S)
        await assert_goes_on(client, provider, session)
        frames = await client.run(session, asks_for(("box__echo", {"text": "still here"})))
        assert results(frames)["c0"] == ("echo: still here", False)


async def test_a_call_beyond_its_time_is_cancelled_at_the_server(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server, timeout_s=0.5)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
        frames = await client.run(session, asks_for(("box__slow", {}), ("box__echo", {"text": "beside it"})))
        assert "did not finish within 0.5 s" in results(frames)["c0"][0]
        assert results(frames)["c1"] == ("echo: beside it", False)
        await server.logged("slow is cancelled")


@ERAS
async def test_a_server_that_dies_costs_its_calls_only_and_is_found_again(
    database_url: str, provider: Simulator, server: McpProcess
) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session(toolsets=["core", "mcp_box"])
        calls = asks_for(("box__slow", {}), ("get_time", {"timezone": "UTC"}))
        async with client.turn(session, calls) as stream:
            await stream.until("tool.started", 2)
            await server.logged("slow begins")
            await server.kill()
            frames = await stream.read_to_end()
        assert frames[-1].data["output"] == "Done."
        text, is_error = results(frames)["c0"]
        assert is_error
        assert "went away before it answered; the effect is unknown" in text
        assert not results(frames)["c1"][1]

        frames = await client.run(session, asks_for(("box__echo", {"text": "a"})))
        assert frames[-1].data["output"] == "Done."
        assert "the MCP server box is not available" in results(frames)["c0"][0]

        await server.start()

        async def works_again() -> bool:
            return results(await client.run(session, asks_for(("box__echo", {"text": "b"}))))["c0"] == ("echo: b", False)

        await eventually(works_again)


async def test_a_dead_server_costs_its_toolset_only(database_url: str, provider: Simulator, server: McpProcess, tmp_path: Path) -> None:
    dead = McpServerSpec(name="dead", url="http://127.0.0.1:9/mcp")
    async with opened(database_url, provider, at(server), dead) as (_, client):
        refused = await client.http.post("/sessions", json={"toolsets": ["mcp_box", "mcp_dead"]})
        assert refused.status_code == 503
        problem = refused.json()
        assert (problem["code"], problem["retryable"]) == ("toolset_unavailable", True)
        assert "mcp_dead" in problem["detail"]
        assert "127.0.0.1" not in problem["detail"]
        assert int(refused.headers["Retry-After"]) >= 1

        created = await client.http.post("/sessions", json={})
        assert created.status_code == 201
        assert created.json()["toolsets"] == ["core", "mcp_box"]
        session = await client.session(toolsets=["mcp_box"])
        assert results(await client.run(session, asks_for(("box__echo", {"text": "a"}))))["c0"] == ("echo: a", False)


async def test_tenants_share_no_session(database_url: str, provider: Simulator, tmp_path: Path) -> None:
    async with (
        mcp_process(tmp_path, "legacy") as server,
        opened(database_url, provider, at(server, credential="token-of-acme")) as (running, acme),
    ):
        other = msgspec.structs.replace(
            tenant("other", OTHER_KEY, [provider.base_url]),
            mcp_servers=(at(server, credential="token-of-other", headers={"X-Team": "blue"}),),
        )
        await running.gateway.tenants.apply(other, generate_key=False)
        async with running.client(OTHER_KEY) as stranger:
            answers = []
            for client in (acme, stranger, acme):
                session = await client.session(toolsets=["mcp_box"])
                answers.append(results(await client.run(session, asks_for(("box__whoami", {}))))["c0"][0])
        assert answers == ["Bearer token-of-acme None None", "Bearer token-of-other blue None", "Bearer token-of-acme None None"]
        sessions = [line for line in server.lines if line.startswith("session ")]
        assert len(sessions) == 3
        assert sessions[0] == sessions[2]
        assert len(set(sessions)) == 2


@ERAS
async def test_a_change_of_the_tools_is_noticed(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
        await client.run(session, asks_for(("box__grow", {})))
        assert "box__grown" not in shown(provider), "a session keeps its tools"

        async def newer_session_works() -> bool:
            newer = await client.session(toolsets=["mcp_box"])
            return results(await client.run(newer, asks_for(("box__grown", {}))))["c0"] == ("new", False)

        await eventually(newer_session_works)
        assert "box__grown" in shown(provider)


async def test_a_call_waits_for_its_approval_also_on_a_replica_that_knows_nothing_of_the_server(
    database_url: str, provider: Simulator, server: McpProcess
) -> None:
    async with opened(database_url, provider, at(server, needs_approval=True)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
    async with replica(database_url, outbound_allow="127.0.0.0/8") as newer, newer.client() as client:
        frames = await client.run(session, asks_for(("box__echo", {"text": "a"})))
        assert frames[-1].type == "tool.requires_action"
        assert "echo a" not in server.lines
        url = f"/turns/{frames[-1].data['turn_id']}/tool_results"
        body = {"results": [{"tool_call_id": "c0", "decision": "approve"}]}
        async with client.http.stream("POST", url, json=body) as response:
            assert response.status_code == 200
            resumed = await Stream(response).read_to_end()
        assert results(resumed)["c0"] == ("echo: a", False)
        assert resumed[-1].data["output"] == "Done."


async def test_what_a_server_asks_of_the_gateway_is_refused(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server)) as (_, client):
        session = await client.session(toolsets=["mcp_box"])
        frames = await client.run(session, asks_for(("box__ask", {}), ("box__echo", {"text": "a"})))
        assert results(frames)["c0"][1]
        assert "licitation" in results(frames)["c0"][0]
        assert results(frames)["c1"] == ("echo: a", False)


async def test_a_tenants_address_must_be_public(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server), outbound_allow="") as (_, client):
        refused = await client.http.post("/sessions", json={"toolsets": ["mcp_box"]})
        assert refused.status_code == 503
        assert "no public address" in refused.json()["detail"]
        assert [line for line in server.lines if not line.startswith("pid ")] == []


async def test_a_server_that_is_not_enabled_is_not_there(database_url: str, provider: Simulator, server: McpProcess) -> None:
    async with opened(database_url, provider, at(server, enabled=False)) as (_, client):
        refused = await client.http.post("/sessions", json={"toolsets": ["mcp_box"]})
        assert refused.status_code == 422
        assert (await client.http.post("/sessions", json={})).json()["toolsets"] == ["core"]


async def test_programs_of_the_operator_are_there_for_every_tenant(
    database_url: str, provider: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_OPERATOR", "s3cret-of-the-operator")
    log, config = tmp_path / "stdio.log", tmp_path / "mcp.toml"
    arguments = json.dumps(["-m", MODULE, "--log", str(log)])
    env = f'{{ MCP_TEST_TOKEN = "env:TOKEN_OF_THE_OPERATOR", PYTHONPATH = {json.dumps(str(ROOT))} }}'
    config.write_text(f'[[servers]]\nname = "files"\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\nenv = {env}\n')
    async with opened(database_url, provider, mcp_servers_file=config) as (_, client):
        session = await client.session()
        frames = await client.run(session, asks_for(("files__whoami", {}), ("files__echo", {"text": "a"})))
        assert results(frames)["c0"] == ("None None s3cret-of-the-operator", False)
        assert results(frames)["c1"] == ("echo: a", False)
        async with client.turn(session, asks_for(("files__slow", {}))) as stream:
            started = await stream.until("tool.started")
            await logged(log, "slow begins")
            await client.http.delete(f"/turns/{started.data['turn_id']}")
            assert (await stream.read_to_end())[-1].type == "turn.interrupted"
        await logged(log, "slow is cancelled", INTERRUPT_S)
    (started_as,) = [line for line in lines_of(log) if line.startswith("pid ")]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started_as.removeprefix("pid ")), 0)
