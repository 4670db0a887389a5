"""However a turn with children ends, they end before it and nothing of them goes on."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp

from app.simulator.server import Simulator
from tests.e2e.delegating import BARE, FOR_EVER, TOOLSETS, calls, cards, check, child_turns, delegates, results, says
from tests.e2e.harness import TERMINAL, Client, Replica
from tests.e2e.operator_tools import runs
from tests.e2e.processes import FAST_LEASE, Reader, create_sessions, frame_types, gateway_process, reading
from tests.e2e.scenes import INTERRUPT_S, assert_goes_on, ended, now, of_type, opened
from tests.e2e.test_survival import acme, takes_a_turn

HELD = "[[sim silent]]"
PACED = '[[sim tool=lookup args={"q":"$round"} rounds=9999 preamble="one two three four five six seven eight" pace_ms=20]]'


def tree(leaf: str) -> str:
    """Three children with three children each."""
    return delegates(*[delegates(*[leaf] * 3)] * 3)


async def nothing_goes_on(provider: Simulator, since: float) -> None:
    """Every connection to the provider was closed within a second, and no other is made."""
    for record in provider.requests:
        await provider.wait_for_end(record, 5)
        assert record.ended_at is not None
        assert record.ended_at - since < INTERRUPT_S
    count = len(provider.requests)
    await asyncio.sleep(0.3)
    assert len(provider.requests) == count


async def test_an_interrupt_stops_a_whole_tree_within_a_second(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        for leaf in (FOR_EVER, HELD, PACED, calls(("slow", {}))):
            provider.clear()
            session = await client.session(toolsets=TOOLSETS)
            async with client.turn(session, tree(leaf)) as stream:
                turn_id = (await stream.until("subagent.started", 3)).data["turn_id"]
                await provider.wait_for_requests(13, 10)
                since = now()
                answer = await client.http.delete(f"/turns/{turn_id}")
                frames = await stream.read_to_end()
            assert now() - since < INTERRUPT_S, leaf
            assert (answer.status_code, answer.json()["status"]) == (200, "interrupted"), leaf
            await nothing_goes_on(provider, since)
            children = await child_turns(client, frames)
            assert len(children) == 12 or leaf in (FOR_EVER, PACED), leaf
            assert {(child["status"], child["reason"]) for child in children} == {("interrupted", "requested")}, leaf
            assert {card["state"] for card in await cards(client, session)} == {"cancelled"}, leaf
            assert frames[-1].data["children"]["turns"] == len(children), leaf
            await check(client, provider, session, frames)
            await assert_goes_on(client, provider, session)
        assert runs.ended["slow"] == 0


async def test_an_interrupt_comes_from_anywhere(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client), opened(database_url, provider) as (_, elsewhere):
        session = await client.session(toolsets=TOOLSETS)
        async with client.turn(session, tree(HELD)) as stream:
            turn_id = (await stream.until("subagent.started", 3)).data["turn_id"]
            await provider.wait_for_requests(13, 10)
            since = now()
            await elsewhere.http.delete(f"/turns/{turn_id}")
            frames = await stream.read_to_end()
        await nothing_goes_on(provider, since)
        await check(client, provider, session, frames)


async def test_a_child_alone_can_be_stopped_and_its_parent_goes_on(client: Client, provider: Simulator) -> None:
    session = await client.session(toolsets=BARE)
    async with client.turn(session, delegates(HELD, says("Fine."))) as stream:
        fine = (await stream.until("subagent.completed")).data["child_turn_id"]
        if len(of_type(stream.frames, "subagent.started")) < 2:
            await stream.until("subagent.started")
        (held,) = {frame.data["child_turn_id"] for frame in of_type(stream.frames, "subagent.started")} - {fine}
        answer = await client.http.delete(f"/turns/{held}")
        frames = await stream.read_to_end()
    assert answer.json()["status"] == "interrupted"
    assert {frame.data["status"] for frame in of_type(frames, "subagent.completed")} == {"interrupted", "completed"}
    assert any(result.startswith("[sub-agent interrupted: requested") for result in await results(client, session))
    assert frames[-1].data["reason"] == "answer"
    await check(client, provider, session, frames)
    await assert_goes_on(client, provider, session)


async def test_a_client_that_leaves_and_a_turn_that_supersedes_stop_the_children_too(client: Client, provider: Simulator) -> None:
    session = await client.session(toolsets=BARE)
    async with client.turn(session, delegates(HELD), on_disconnect="cancel") as stream:
        gone = (await stream.until("subagent.started")).data
        await provider.wait_for_requests(2, 5)
    assert (await ended(client, gone["turn_id"], 5))["reason"] == "client_gone"
    assert (await client.get(gone["child_turn_id"]))["reason"] == "client_gone"
    provider.clear()
    async with client.turn(session, delegates(HELD)) as stream:
        old = (await stream.until("subagent.started")).data
        await provider.wait_for_requests(2, 5)
        frames = await client.run(session, says("Instead."), on_busy="interrupt")
        assert frames[-1].data["output"] == "Instead."
        await check(client, provider, session, await stream.read_to_end())
    assert (await client.get(old["child_turn_id"]))["reason"] == "superseded"


async def test_a_childs_session_goes_with_its_parents_and_is_its_tenants_alone(client: Client, gateway: Replica) -> None:
    session = await client.session(toolsets=BARE)
    frames = await client.run(session, delegates(says("Fine.")))
    (child,) = await child_turns(client, frames)
    routes = (f"/sessions/{child['session_id']}", f"/turns/{child['id']}", f"/turns/{child['id']}/events", f"/sessions/{session}/kanban")
    async with gateway.client("agw_test-key-of-other-0123456789") as other:
        for route in routes:
            assert (await other.http.get(route)).status_code == 404, route
    for route in routes:
        assert (await client.http.get(route)).status_code == 200, route
    assert (await client.http.delete(f"/sessions/{session}")).status_code == 200
    for route in routes:
        assert (await client.http.get(route)).status_code == 404, route


async def test_a_replica_that_leaves_hands_the_parent_over_and_ends_the_children(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (leaving, client), opened(database_url, provider) as (_, staying):
        session = await client.session(toolsets=TOOLSETS)
        async with client.turn(session, delegates(PACED, text="Without it.")) as stream:
            child = (await stream.until("subagent.started")).data
            await provider.wait_for_requests(3, 5)
            await leaving.gateway.server.drain(6)
            frames = await stream.read_to_end()
        assert frames[-1].type == "turn.queued"
        whole = await staying.replay(child["turn_id"])
        assert whole[-1].data["output"] == "Without it."
        stopped = await staying.get(child["child_turn_id"])
        assert (stopped["status"], stopped["reason"]) == ("interrupted", "shutdown")
        assert [frame.data["reason"] for frame in of_type(whole, "subagent.completed")] == ["shutdown"]
        await check(staying, provider, session, whole)
        await assert_goes_on(staying, provider, session)


async def test_a_killed_process_leaves_no_child_and_no_parent_open(database_url: str, provider: Simulator, tmp_path: Path) -> None:
    await acme(database_url, provider.base_url)
    async with (
        gateway_process(database_url, tmp_path, FAST_LEASE) as victim,
        gateway_process(database_url, tmp_path, FAST_LEASE) as survivor,
        reading() as http,
    ):
        (session,) = await create_sessions(http, victim.url, 1, toolsets=BARE)
        reader = Reader(http)
        post = asyncio.create_task(reader.start(victim.url, session, tree(HELD)))
        await provider.wait_for_requests(13, 10)
        victim.signal(signal.SIGKILL)
        await asyncio.gather(post, return_exceptions=True)
        async with asyncio.timeout(30):
            await reader.follow([survivor.url], reader.turn_id)
        assert frame_types(reader.frames)[-1] == "turn.interrupted"
        assert [name for name in frame_types(reader.frames) if name in TERMINAL] == ["turn.interrupted"]
        parent = await read(http, f"{survivor.url}/turns/{reader.turn_id}")
        board = (await read(http, f"{survivor.url}/sessions/{session}/kanban"))["data"]
        assert [card["state"] for card in board] == ["cancelled"] * 3
        for card in board:
            child = await read(http, f"{survivor.url}/turns/{card['child_turn_id']}")
            assert (child["status"], child["reason"]) == ("interrupted", "worker_lost")
            assert child["ended_at"] <= parent["ended_at"]
            below = (await read(http, f"{survivor.url}/sessions/{child['session_id']}/kanban"))["data"]
            for leaf in [await read(http, f"{survivor.url}/turns/{one['child_turn_id']}") for one in below]:
                assert leaf["status"] == "interrupted"
                assert leaf["ended_at"] <= child["ended_at"]
        await takes_a_turn(http, survivor.url, session)
    assert not [request.problems for request in provider.requests if request.problems]


async def read(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url) as response:
        assert response.status == 200, await response.text()
        body: dict[str, Any] = await response.json()
        return body
