"""Turns that wait and are ended, followed, left or raced; and what their sessions are good for afterwards."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.domain.model import ApiMode
from app.domain.tools import INTERRUPTED_OUTPUT
from app.simulator.server import Simulator
from tests.e2e.chains import Link, chain_spec, every_mode
from tests.e2e.harness import OTHER_KEY, TERMINAL, Client, Replica, replica, types
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import assert_goes_on, ended, of_type, opened
from tests.e2e.waiting import (
    ASK,
    LOCATE,
    MODULES,
    PURGE,
    answer,
    answering,
    asks_for,
    check_stream,
    decides,
    gives,
    post,
    strict,
    turn_of,
    wait_for,
)

NOT_ANSWERED = {
    "c0": INTERRUPTED_OUTPUT,
    "c1": "Interrupted before somebody approved it; it was not run.",
    "c2": "Interrupted before somebody answered.",
}


@pytest.fixture
async def stage(database_url: str, provider: Simulator) -> AsyncIterator[tuple[Replica, Client]]:
    async with opened(database_url, provider, tool_modules=MODULES) as found:
        yield found


@pytest.fixture
def client(stage: tuple[Replica, Client]) -> Client:
    return stage[1]


@pytest.fixture
async def elsewhere(database_url: str, stage: tuple[Replica, Client]) -> AsyncIterator[Client]:
    """A client of another replica on the same database."""
    async with replica(database_url, tool_modules=MODULES) as running, running.client() as client:
        yield client


async def test_a_turn_that_waits_is_interrupted_at_once_and_its_calls_are_answered(
    client: Client, elsewhere: Client, provider: Simulator
) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("locate", {}), PURGE, ASK)
    turn_id = turn_of(frames)
    response = await elsewhere.http.delete(f"/turns/{turn_id}")
    assert response.status_code == 200
    assert (response.json()["status"], response.json()["reason"]) == ("interrupted", "requested")
    whole = await client.replay(turn_id)
    check_stream(whole)
    assert {frame.data["tool_call_id"]: frame.data["output"] for frame in of_type(whole, "tool.completed")} == NOT_ANSWERED
    assert (await post(client, turn_id, gives("c0", "late"))).status_code == 409
    assert (await client.http.delete(f"/turns/{turn_id}")).json() == response.json()
    messages = await assert_goes_on(client, provider, session_id)
    assert {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"} == NOT_ANSWERED
    assert runs.begun["purge"] == 0


async def test_answers_that_were_given_stay_when_the_turn_ends_without_the_others(client: Client, provider: Simulator) -> None:
    session_id = await client.session()
    turn_id = turn_of(await wait_for(client, session_id, ("locate", {}), PURGE, ASK))
    assert (await post(client, turn_id, gives("c0", "in Rome"), decides("c1", "approve"))).status_code == 200
    await client.http.delete(f"/turns/{turn_id}")
    messages = await assert_goes_on(client, provider, session_id)
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results == ["in Rome", INTERRUPTED_OUTPUT, NOT_ANSWERED["c2"]]
    assert runs.begun["purge"] == 0


async def test_an_interrupt_that_races_the_answer_leaves_one_terminal_event(client: Client, elsewhere: Client, provider: Simulator) -> None:
    seen = set()
    for number in range(20):
        session_id = await client.session()
        turn_id = turn_of(await wait_for(client, session_id, ("locate", {}), PURGE))
        deleting, posting = (elsewhere, client) if number % 2 else (client, elsewhere)
        given = (gives("c0", "in Rome"), decides("c1", "approve"))

        async def delete(by: Client = deleting, turn: str = turn_id, wait_s: float = number % 4 * 0.01) -> int:
            await asyncio.sleep(wait_s)
            return (await by.http.delete(f"/turns/{turn}")).status_code

        response, deleted = await asyncio.gather(post(posting, turn_id, *given), delete())
        assert deleted in (200, 202)
        assert response.status_code in (200, 409)
        turn = await ended(client, turn_id, 2)
        whole = await client.replay(turn_id)
        check_stream(whole)
        assert len(of_type(whole, "tool.completed")) == 2
        await assert_goes_on(client, provider, session_id)
        seen.add((response.status_code, turn["status"]))
    assert (409, "completed") not in seen
    strict(provider)


async def test_answers_of_several_people_at_once_each_count_once(client: Client, elsewhere: Client, provider: Simulator) -> None:
    for _ in range(5):
        turn_id = turn_of(await wait_for(client, await client.session(), ("locate", {}), PURGE, ASK))
        given = [gives("c0", "in Rome"), decides("c1", "approve"), gives("c2", "red")]
        by = [client, elsewhere, client, elsewhere, client, elsewhere]
        responses = await asyncio.gather(*(post(one, turn_id, given[index % 3]) for index, one in enumerate(by)))
        assert sorted(response.status_code for response in responses)[:3] == [200, 200, 200]
        assert {response.status_code for response in responses[3:]} | {200} <= {200, 409, 422}
        whole = await client.replay(turn_id)
        check_stream(whole)
        assert whole[-1].type == "turn.completed"
        assert len(of_type(whole, "tool.completed")) == 3
    assert runs.begun["purge"] == 5
    strict(provider)


async def test_the_session_of_a_turn_that_waits_is_busy(client: Client, elsewhere: Client, provider: Simulator) -> None:
    session_id = await client.session()
    turn_id = turn_of(await wait_for(client, session_id, ("locate", {})))
    for one in (client, elsewhere):
        response = await one.http.post(f"/sessions/{session_id}/turns", json={"input": "hello"})
        assert (response.status_code, response.json()["turn_id"]) == (409, turn_id)
        assert (await one.http.delete(f"/sessions/{session_id}")).status_code == 409
        session = (await one.http.get(f"/sessions/{session_id}")).json()
        assert (session["status"], session["active_turn_id"]) == ("running", turn_id)
    queued = (
        await client.http.post(f"/sessions/{session_id}/turns", json={"input": "next", "on_busy": "enqueue", "background": True})
    ).json()
    assert queued["status"] == "queued"
    rest = await answer(elsewhere, turn_id, gives("c0", "in Rome"))
    assert rest[-1].type == "turn.completed"
    assert (await client.replay(queued["id"]))[-1].type == "turn.completed"
    roles = [message["role"] for message in await client.messages(session_id)]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert (await client.http.delete(f"/sessions/{session_id}")).status_code == 200
    strict(provider)


async def test_a_turn_that_supersedes_the_one_that_waits_runs_at_once(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, poll_s=60) as (_, client):
        session_id = await client.session()
        turn_id = turn_of(await wait_for(client, session_id, ("locate", {})))
        async with asyncio.timeout(10):
            frames = await client.run(session_id, '[[sim text="Instead."]]', on_busy="interrupt")
        assert frames[-1].data["output"] == "Instead."
        turn = await client.get(turn_id)
        assert (turn["status"], turn["reason"]) == ("interrupted", "superseded")
        assert [message["role"] for message in await client.messages(session_id)] == ["user", "assistant", "tool", "user", "assistant"]
    strict(provider)


async def test_the_next_turn_of_a_session_runs_as_soon_as_the_one_that_waits_is_stopped(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, poll_s=60) as (_, client):
        session_id = await client.session()
        turn_id = turn_of(await wait_for(client, session_id, ("locate", {})))
        later = {"input": "next", "on_busy": "enqueue", "background": True}
        queued = (await client.http.post(f"/sessions/{session_id}/turns", json=later)).json()
        await asyncio.sleep(0.5)  # the looks for turns that its opening causes are over
        assert (await client.http.delete(f"/turns/{turn_id}")).status_code == 200
        async with asyncio.timeout(10):
            assert (await client.replay(queued["id"]))[-1].type == "turn.completed"
    strict(provider)


async def test_a_turn_that_nobody_answers_expires(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, tool_modules=MODULES, action_timeout_s=0.3) as (_, client):
        session_id = await client.session()
        turn_id = turn_of(await wait_for(client, session_id, ("locate", {}), PURGE, ASK))
        turn = await ended(client, turn_id, 5)
        assert (turn["status"], turn["reason"]) == ("interrupted", "expired")
        whole = await client.replay(turn_id)
        check_stream(whole)
        assert {frame.data["tool_call_id"]: frame.data["output"] for frame in of_type(whole, "tool.completed")} == NOT_ANSWERED
        await assert_goes_on(client, provider, session_id)


async def test_all_readers_end_where_the_turn_waits_and_none_of_them_ends_it(client: Client, elsewhere: Client) -> None:
    session_id = await client.session()
    text = asks_for(("slow", {"seconds": 0.5}), ("locate", {}))
    async with client.turn(session_id, text, tools=[LOCATE], on_disconnect="cancel") as stream:
        first = await stream.until("tool.started")
        turn_id = first.data["turn_id"]
        async with elsewhere.events(turn_id) as there, client.events(turn_id) as here:
            readers = [stream, there, here]
            whole = [await reader.read_to_end() for reader in readers]
    assert [frames[-1].type for frames in whole] == ["tool.requires_action"] * 3
    assert {tuple(frame.raw for frame in frames) for frames in whole} == {tuple(frame.raw for frame in whole[0])}
    for one in (client, elsewhere):
        assert (await one.replay(turn_id, whole[0][-1].seq)) == []
        assert [frame.raw for frame in await one.replay(turn_id)] == [frame.raw for frame in whole[0]]
    await asyncio.sleep(0.5)  # longer than it takes to interrupt a turn whose client has gone
    assert (await client.get(turn_id))["status"] == "requires_action"
    rest = await answer(elsewhere, turn_id, gives("c1", "in Rome"))
    assert rest[-1].type == "turn.completed"


async def test_a_client_that_leaves_with_the_last_event_leaves_a_turn_that_waits(client: Client) -> None:
    for _ in range(5):
        session_id = await client.session()
        async with client.turn(session_id, asks_for(("locate", {})), tools=[LOCATE], on_disconnect="cancel") as stream:
            frame = await stream.until("tool.requires_action")
        await asyncio.sleep(0.5)  # longer than it takes to interrupt a turn whose client has gone
        assert (await client.get(frame.data["turn_id"]))["status"] == "requires_action"


async def test_who_answers_and_leaves_stops_a_turn_that_ends_with_its_client(client: Client) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("rebuild", {"seconds": 30}), on_disconnect="cancel")
    async with answering(client, turn_of(frames), decides("c0", "approve")) as stream:
        await stream.until("tool.started")
    turn = await ended(client, turn_of(frames), 2)
    assert (turn["status"], turn["reason"]) == ("interrupted", "client_gone")
    assert runs.ended["rebuild"] == 0


async def test_an_approved_call_is_interrupted_like_any_other(client: Client, elsewhere: Client, provider: Simulator) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("rebuild", {"seconds": 30}), ("locate", {}))
    async with answering(client, turn_of(frames), decides("c0", "approve"), gives("c1", "in Rome")) as stream:
        await stream.until("tool.started")
        assert (await elsewhere.http.delete(f"/turns/{turn_of(frames)}")).status_code in (200, 202)
        rest = await stream.read_to_end()
    assert rest[-1].data["reason"] == "requested"
    messages = await assert_goes_on(client, provider, session_id)
    assert [message["content"] for message in messages if message["role"] == "tool"] == [INTERRUPTED_OUTPUT, "in Rome"]


@every_mode
async def test_the_history_of_a_turn_that_waited_is_valid_in_every_api_mode(
    stage: tuple[Replica, Client], elsewhere: Client, provider: Simulator, mode: ApiMode
) -> None:
    running = stage[0]
    key = "agw_test-key-of-modes-0123456789"
    await running.gateway.tenants.apply(chain_spec("modes", key, [Link(url=provider.base_url, mode=mode)]), generate_key=False)
    async with running.client(key) as client:
        session_id = await client.session()
        frames = await wait_for(client, session_id, ("locate", {}), ("lookup", {"q": "z"}), PURGE, ASK)
        elsewhere.http.headers["Authorization"] = f"Bearer {key}"
        given = (gives("c3", "the green one"), decides("c2", "deny", reason="no"), gives("c0", "in Rome"))
        rest = await answer(elsewhere, turn_of(frames), *given)
        assert rest[-1].type == "turn.completed"
        turn_id = turn_of(await wait_for(client, session_id, ("locate", {}), PURGE))
        await client.http.delete(f"/turns/{turn_id}")
        assert (await client.run(session_id, '[[sim text="Still here."]]'))[-1].type == "turn.completed"
    sent = str(provider.requests[-1].body)
    places = [
        sent.index(text) for text in ("in Rome", "found z", "denied by the user: no", "the green one", "Interrupted before this call")
    ]
    assert places == sorted(places)
    strict(provider)


async def test_a_turn_that_waits_is_seen_by_its_own_tenant_alone(stage: tuple[Replica, Client]) -> None:
    running, client = stage
    turn_id = turn_of(await wait_for(client, await client.session(), ("locate", {})))
    async with running.client(OTHER_KEY) as other:
        assert (await other.http.get(f"/turns/{turn_id}")).status_code == 404
        assert (await other.http.delete(f"/turns/{turn_id}")).status_code == 404
    assert (await client.get(turn_id))["status"] == "requires_action"
    assert types(await client.replay(turn_id))[-1] not in TERMINAL
