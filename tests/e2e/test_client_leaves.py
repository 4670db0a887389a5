"""A client that leaves: its turn goes on, or ends with it, as was asked; never depending on where it hung."""

import httpx
import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import Client
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import INTERRUPT_S, assert_closed, assert_goes_on, ended, now, opened, request_number

MOMENTS = {
    "before the first token": ("[[sim first_ms=1500 tokens=3]]", "iteration.started"),
    "mid-text": ("[[sim tokens=60 pace_ms=25]]", "message.delta"),
    "during a tool": ('[[sim tool=slow args={"seconds":1.5} tokens=3]]', "tool.started"),
}


async def leave(client: Client, provider: Simulator, moment: str, *, policy: str) -> tuple[str, str]:
    """Leave the stream of a new session's turn at a moment; the session's and the turn's id."""
    provider.clear()
    runs.clear()
    session = await client.session()
    text, event = MOMENTS[moment]
    async with client.turn(session, text, on_disconnect=policy) as stream:
        turn_id = str((await stream.until(event)).data["turn_id"])
        await request_number(provider, 1)
        if event == "tool.started":
            await runs.wait_begun("slow")
    return session, turn_id


async def test_a_turn_that_ends_with_its_client_ends_at_once(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        for moment in MOMENTS:
            session, turn_id = await leave(client, provider, moment, policy="cancel")
            since = now()
            turn = await ended(client, turn_id, INTERRUPT_S)
            assert (turn["status"], turn["reason"]) == ("interrupted", "client_gone"), moment
            assert (await client.replay(turn_id))[-1].type == "turn.interrupted", moment
            if moment != "during a tool":
                await assert_closed(provider, provider.requests[0], since)
            assert runs.ended["slow"] == 0, moment
            await assert_goes_on(client, provider, session)


async def test_a_turn_that_goes_on_without_its_client_completes(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (_, client):
        for moment in MOMENTS:
            session, turn_id = await leave(client, provider, moment, policy="continue")
            frames = await client.replay(turn_id)
            assert frames[-1].type == "turn.completed", moment
            assert (await client.get(turn_id))["output"] == frames[-1].data["output"]
            assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
            assert runs.begun["slow"] == runs.ended["slow"] == (moment == "during a tool")
            await assert_goes_on(client, provider, session)


@pytest.mark.parametrize(("policy", "end"), [("cancel", "interrupted"), ("continue", "completed")])
async def test_a_client_that_waits_for_json_may_leave_too(client: Client, provider: Simulator, policy: str, end: str) -> None:
    session = await client.session()
    with pytest.raises(httpx.ReadTimeout):
        await client.http.post(
            f"/sessions/{session}/turns",
            json={"input": "[[sim first_ms=900 tokens=2]]", "on_disconnect": policy},
            headers={"Accept": "application/json"},
            timeout=httpx.Timeout(5, read=0.2),
        )
    (turn,) = (await client.http.get(f"/sessions/{session}/turns")).json()["data"]
    assert (await ended(client, turn["id"], 3))["status"] == end
    assert (await client.replay(turn["id"]))[-1].type == f"turn.{end}"
    await assert_goes_on(client, provider, session)


async def test_a_queued_turn_whose_client_leaves_never_runs(client: Client, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, "[[sim tokens=500 pace_ms=20]]") as running:
        await running.until("message.delta")
        async with client.turn(session, "never said", on_busy="enqueue", on_disconnect="cancel") as waiting:
            turn_id = str((await waiting.until("turn.queued")).data["turn_id"])
        turn = await ended(client, turn_id, INTERRUPT_S)
        assert (turn["status"], turn["reason"]) == ("interrupted", "client_gone")
        await client.http.delete(f"/turns/{running.frames[0].data['turn_id']}")
    assert len(provider.requests) == 1
    sent = await assert_goes_on(client, provider, session)
    assert "never said" not in str(sent)
