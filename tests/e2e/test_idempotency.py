"""A POST that is sent again with its Idempotency-Key is one turn."""

import asyncio

from app.simulator.server import Simulator
from tests.e2e.harness import OTHER_KEY, Client, Replica
from tests.e2e.scenes import assert_goes_on, first_turn_id

KEYED = {"Idempotency-Key": "order-66"}
SCRIPT = "[[sim tokens=40 pace_ms=20]]"


async def test_a_retry_attaches_to_the_running_turn(client: Client, second: Replica, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, SCRIPT, headers=KEYED) as lost:
        assert "idempotency-replayed" not in lost.response.headers
        turn_id = first_turn_id([await lost.until("message.delta", 3)])
    async with (
        second.client() as elsewhere,
        client.turn(session, SCRIPT, headers=KEYED) as here,
        elsewhere.turn(session, SCRIPT, headers=KEYED) as there,
    ):
        read = await asyncio.gather(here.read_to_end(), there.read_to_end())
        for stream in (here, there):
            assert stream.response.headers["idempotency-replayed"] == "true"
            assert stream.response.headers["location"] == f"/turns/{turn_id}"
    whole = [frame.raw for frame in await client.replay(turn_id)]
    assert [[frame.raw for frame in frames] for frames in read] == [whole, whole]
    assert len(provider.requests) == 1
    assert len(await client.messages(session)) == 2


async def test_a_retry_after_the_end_is_the_same_turn_in_any_form(client: Client, second: Replica, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, "[[sim tokens=5]]", headers=KEYED) as stream:
        frames = await stream.read_to_end()
    async with second.client() as elsewhere:
        for reader in (client, elsewhere):
            async with reader.turn(session, "[[sim tokens=5]]", headers=KEYED) as again:
                assert [frame.raw for frame in await again.read_to_end()] == [frame.raw for frame in frames]
        answer = await elsewhere.http.post(
            f"/sessions/{session}/turns", json={"input": "[[sim tokens=5]]"}, headers={**KEYED, "Accept": "application/json"}
        )
    assert (answer.status_code, answer.json()["id"]) == (200, first_turn_id(frames))
    assert answer.headers["idempotency-replayed"] == "true"
    assert len(provider.requests) == 1


async def test_five_at_the_same_moment_on_two_replicas_are_one_turn(client: Client, second: Replica, provider: Simulator) -> None:
    body = {"input": "[[sim tokens=5 first_ms=100]]", "background": True}
    async with second.client() as elsewhere:
        for number in range(5):
            session = await client.session()
            headers = {"Idempotency-Key": f"many-{number}"}
            posts = [client if turn % 2 else elsewhere for turn in range(5)]
            answers = await asyncio.gather(*(post.http.post(f"/sessions/{session}/turns", json=body, headers=headers) for post in posts))
            assert [answer.status_code for answer in answers] == [202] * 5
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
            await client.replay(answers[0].json()["id"])
    assert len(provider.requests) == 5


async def test_a_retry_keeps_a_turn_alive_that_ends_with_its_client(client: Client, second: Replica, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, SCRIPT, headers=KEYED, on_disconnect="cancel") as lost, second.client() as elsewhere:
        await lost.until("message.delta")
        async with elsewhere.turn(session, SCRIPT, headers=KEYED, on_disconnect="cancel") as retry:
            await retry.until("message.delta")
            await lost.response.aclose()
            assert (await retry.read_to_end())[-1].type == "turn.completed"
    assert len(provider.requests) == 1


async def test_the_same_key_with_another_body_is_refused(client: Client, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, "[[sim tokens=5]]", headers=KEYED) as stream:
        await stream.read_to_end()
    for body in ({"input": "something else"}, {"input": "[[sim tokens=5]]", "max_iterations": 3}):
        refused = await client.http.post(f"/sessions/{session}/turns", json=body, headers=KEYED)
        assert refused.status_code == 422
        assert refused.json()["code"] == "idempotency_mismatch"
    assert len(provider.requests) == 1


async def test_a_key_belongs_to_its_tenant_and_its_session(gateway: Replica, client: Client, provider: Simulator) -> None:
    async with gateway.client(OTHER_KEY) as other:
        made = []
        for caller in (client, client, other):
            async with caller.turn(await caller.session(), "[[sim tokens=1]]", headers=KEYED) as stream:
                made.append(first_turn_id(await stream.read_to_end()))
                assert "idempotency-replayed" not in stream.response.headers
        assert len(set(made)) == len(provider.requests) == 3
        session = await client.session()
        async with client.turn(session, SCRIPT) as running:
            turn_id = first_turn_id([await running.until("message.delta")])
            busy = await client.http.post(f"/sessions/{session}/turns", json={"input": "[[sim tokens=1]]"}, headers=KEYED)
            assert (busy.status_code, busy.json()["turn_id"]) == (409, turn_id)


async def test_without_a_key_equal_bodies_are_two_turns(client: Client, provider: Simulator) -> None:
    session = await client.session()
    first, again = [await client.run(session, "ok") for _ in range(2)]
    assert first_turn_id(first) != first_turn_id(again)
    assert len(provider.requests) == 2


async def test_a_key_that_cannot_be_one_is_refused(client: Client, provider: Simulator) -> None:
    session = await client.session()
    for key in ("", "x" * 256, "two words"):
        refused = await client.http.post(f"/sessions/{session}/turns", json={"input": "x"}, headers={"Idempotency-Key": key})
        assert refused.status_code == 422, key
    await assert_goes_on(client, provider, session)


async def test_a_key_of_a_refused_request_is_not_used_up(client: Client) -> None:
    session = await client.session()
    async with client.turn(session, SCRIPT) as running:
        turn_id = first_turn_id([await running.until("message.delta")])
        busy = await client.http.post(f"/sessions/{session}/turns", json={"input": "next"}, headers=KEYED)
        assert busy.status_code == 409
        await client.http.delete(f"/turns/{turn_id}")
    async with client.turn(session, "next", headers=KEYED) as stream:
        assert (await stream.read_to_end())[-1].type == "turn.completed"
        assert "idempotency-replayed" not in stream.response.headers
