"""The forms of a turn: stream, JSON, background; busy sessions; full and leaving replicas; what is refused."""

import asyncio
from typing import Any

import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import Client, Replica, tenant, types
from tests.e2e.scenes import assert_goes_on, first_turn_id, of_type, opened, request_number, with_settings

JSON = {"Accept": "application/json"}
SLOW = "[[sim tokens=500 pace_ms=20]]"
UNKNOWN_SESSION = "sess_00000000000000000000000000"
UNKNOWN_TURN = "turn_00000000000000000000000000"


async def start(client: Client, session: str, text: str, **body: Any) -> str:
    """A turn in the background; its id."""
    response = await client.http.post(f"/sessions/{session}/turns", json={"input": text, "background": True, **body})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


async def test_a_stream_names_its_turn_in_its_headers(client: Client) -> None:
    session = await client.session()
    async with client.turn(session, headers={"X-Request-Id": "mine-1"}) as stream:
        frames = await stream.read_to_end()
    headers = stream.response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["location"] == f"/turns/{first_turn_id(frames)}"
    assert headers["x-request-id"] == "mine-1"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "idempotency-replayed" not in headers


async def test_json_is_the_finished_turn(client: Client) -> None:
    session = await client.session()
    response = await client.http.post(
        f"/sessions/{session}/turns", json={"input": '[[sim text="All of it."]]', "metadata": {"ticket": "7"}}, headers=JSON
    )
    assert response.status_code == 200
    body = response.json()
    assert response.headers["location"] == f"/turns/{body['id']}"
    assert (body["status"], body["reason"], body["output"]) == ("completed", "answer", "All of it.")
    assert body["metadata"] == {"ticket": "7"}
    assert body["usage"]["output_tokens"] > 0
    assert body == await client.get(body["id"])


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [("[[sim status=400]]", 400, "request_refused"), ("[[sim tokens=0 reasoning=9 finish=length]]", 502, "output_truncated")],
    ids=["no provider", "cut"],
)
async def test_json_of_a_failed_turn_is_the_problem_of_its_last_event(client: Client, script: str, status: int, reason: str) -> None:
    session = await client.session()
    response = await client.http.post(f"/sessions/{session}/turns", json={"input": script}, headers=JSON)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == reason
    assert response.headers["location"] == f"/turns/{problem['turn_id']}"
    last = (await client.replay(problem["turn_id"]))[-1]
    assert last.type == "turn.failed"
    assert last.data["error"] == {name: value for name, value in problem.items() if name != "request_id"}


async def test_a_background_turn_is_read_later(client: Client, provider: Simulator) -> None:
    session = await client.session()
    turn_id = await start(client, session, "[[sim tokens=20 first_ms=100]]")
    assert (await client.get(turn_id))["status"] == "running"
    frames = await client.replay(turn_id)
    assert types(frames) == ["turn.started", "iteration.started", "message.delta", "message.completed", "turn.completed"]
    assert (await client.get(turn_id))["status"] == "completed"
    assert len(provider.requests) == 1


async def test_a_busy_session_refuses_a_second_turn_and_says_which_one_runs(client: Client, provider: Simulator) -> None:
    session = await client.session()
    turn_id = await start(client, session, SLOW)
    response = await client.http.post(f"/sessions/{session}/turns", json={"input": "me too"})
    assert response.status_code == 409
    problem = response.json()
    assert (problem["code"], problem["turn_id"], problem["retryable"]) == ("turn_in_progress", turn_id, True)
    assert response.headers["location"] == f"/turns/{turn_id}"
    assert [message["content"] for message in await client.messages(session)] == [SLOW]
    await client.http.delete(f"/turns/{turn_id}")
    await assert_goes_on(client, provider, session)


async def test_enqueued_turns_run_one_by_one_in_order(client: Client, provider: Simulator) -> None:
    session = await client.session()
    running = await start(client, session, f"{SLOW} 0")
    waiting = [await start(client, session, f'[[sim text="answer {number}"]] {number}', on_busy="enqueue") for number in (1, 2, 3)]
    assert [(await client.get(turn_id))["status"] for turn_id in waiting] == ["queued"] * 3
    assert len(await client.messages(session)) == 1  # the others' inputs wait with their turns
    await client.http.delete(f"/turns/{running}")
    for number, turn_id in enumerate(waiting, 1):
        frames = await client.replay(turn_id)
        assert types(frames)[:3] == ["turn.queued", "turn.started", "iteration.started"]
        assert frames[0].data["reason"] == "session_busy"
        assert frames[-1].data["output"] == f"answer {number}"
    assert [message["role"] for message in await client.messages(session)] == ["user", *["user", "assistant"] * 3]
    assert [message["content"][-1] for message in await client.messages(session) if message["role"] == "user"] == ["0", "1", "2", "3"]
    assert [request.problems for request in provider.requests] == [()] * 4


async def test_an_enqueued_turn_of_a_free_session_starts_at_once(client: Client) -> None:
    session = await client.session()
    frames = await client.run(session, "[[sim tokens=2]]", on_busy="enqueue")
    assert types(frames)[0] == "turn.started"


async def test_the_queue_is_bounded(gateway: Replica, client: Client, provider: Simulator) -> None:
    spec = with_settings(tenant("narrow", "agw_narrow-key-0123456789", [provider.base_url]), max_queued_turns=2)
    await gateway.gateway.tenants.apply(spec, generate_key=False)
    async with gateway.client("agw_narrow-key-0123456789") as narrow:
        session = await narrow.session()
        running = await start(narrow, session, SLOW)
        posts = [
            narrow.http.post(f"/sessions/{session}/turns", json={"input": "x", "on_busy": "enqueue", "background": True}) for _ in range(6)
        ]
        answers = await asyncio.gather(*posts)
        assert sorted(answer.status_code for answer in answers) == [202, 202, 409, 409, 409, 409]
        assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"queue_full"}
        queued = [answer.json()["id"] for answer in answers if answer.status_code == 202]
        for turn_id in (*queued, running):
            await narrow.http.delete(f"/turns/{turn_id}")


async def test_an_interrupting_turn_takes_the_place_of_the_running_one_and_of_those_that_wait(client: Client, provider: Simulator) -> None:
    session = await client.session()
    async with client.turn(session, SLOW) as old:
        await old.until("message.delta")
        waiting = await start(client, session, '[[sim text="I was patient."]] second', on_busy="enqueue")
        frames = await client.run(session, '[[sim text="I pushed in."]] first', on_busy="interrupt")
        assert frames[-1].data["output"] == "I pushed in."
        ended = await old.read_to_end()
    assert (ended[-1].type, ended[-1].data["reason"]) == ("turn.interrupted", "superseded")
    assert (await client.replay(waiting))[-1].data["output"] == "I was patient."
    said = [message["content"] for message in await client.messages(session) if message["role"] == "user"]
    assert said == [SLOW, '[[sim text="I pushed in."]] first', '[[sim text="I was patient."]] second']
    assert [request.problems for request in provider.requests] == [()] * 3


async def test_an_interrupting_turn_reaches_a_turn_of_another_replica(client: Client, second: Replica) -> None:
    session = await client.session()
    async with client.turn(session, SLOW) as old, second.client() as other:
        await old.until("message.delta")
        frames = await other.run(session, '[[sim text="Now me."]]', on_busy="interrupt")
        assert (await old.read_to_end())[-1].data["reason"] == "superseded"
    assert frames[-1].data["output"] == "Now me."


async def test_the_iteration_limit_of_a_request_is_obeyed_and_never_above_the_tenants(gateway: Replica, provider: Simulator) -> None:
    await gateway.gateway.tenants.apply(tenant("few", "agw_few-key-0123456789", [provider.base_url], max_iterations=3), generate_key=False)
    async with gateway.client("agw_few-key-0123456789") as client:
        for asked, allowed in ((2, 2), (50, 3)):
            session = await client.session()
            before = len(provider.requests)
            frames = await client.run(session, "[[sim tool=get_time rounds=9]]", max_iterations=asked)
            started = of_type(frames, "iteration.started")
            assert [frame.data["iteration"] for frame in started] == list(range(1, allowed + 1))
            assert {frame.data["max_iterations"] for frame in started} == {allowed}
            assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.completed", "budget_exhausted")
            assert frames[-1].data["output"]
            assert len(provider.requests) - before <= allowed + 1
            await assert_goes_on(client, provider, session)


async def test_turns_of_a_session_are_listed_newest_first(client: Client) -> None:
    session = await client.session()
    made = [first_turn_id(await client.run(session, "[[sim tokens=1]]")) for _ in range(3)]
    page = (await client.http.get(f"/sessions/{session}/turns", params={"limit": 2})).json()
    assert [turn["id"] for turn in page["data"]] == made[:0:-1]
    rest = (await client.http.get(f"/sessions/{session}/turns", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert ([turn["id"] for turn in rest["data"]], rest["has_more"]) == (made[:1], False)


UNKNOWN = (
    ("POST", f"/sessions/{UNKNOWN_SESSION}/turns"),
    ("GET", f"/sessions/{UNKNOWN_SESSION}/turns"),
    ("GET", f"/turns/{UNKNOWN_TURN}"),
    ("GET", f"/turns/{UNKNOWN_TURN}/events"),
    ("DELETE", f"/turns/{UNKNOWN_TURN}"),
    ("POST", f"/turns/{UNKNOWN_TURN}/cancel"),
    ("GET", "/turns/turn_x"),
    ("GET", "/turns/%00"),
    ("POST", "/sessions/sess_%F0%9F/turns"),
)


async def test_unknown_ids_are_not_found(client: Client) -> None:
    for method, path in UNKNOWN:
        response = await client.http.request(method, path, json={"input": "x"} if method == "POST" else None)
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), (method, path)


BAD_BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"{}",
    b'{"input": ""}',
    b'{"input": "  \\n"}',
    b'{"input": 7}',
    b'{"input": []}',
    b'{"input": [{"type": "text"}]}',
    b'{"input": [{"type": "text", "text": 3}]}',
    b'{"input": [{"type": "text", "text": ""}]}',
    b'{"input": [{"type": "text", "text": " "}, {"type": "text", "text": ""}]}',
    b'{"input": [{"type": "video", "video": {}}]}',
    b'{"input": ["x"]}',
    b'{"input": [{"type": ["text"], "text": "x"}]}',
    b'{"input": "x", "on_busy": "queue"}',
    b'{"input": "x", "on_disconnect": true}',
    b'{"input": "x", "max_iterations": 0}',
    b'{"input": "x", "max_iterations": 1.5}',
    b'{"input": "x", "background": "yes"}',
    b'{"input": "x", "metadata": {"a": 1}}',
    b'{"input": "x", "surprise": 1}',
    b'{"input": "x"' + b"[" * 5000,
    b'{"input": "\xff"}',
)


async def test_a_bad_body_is_refused_and_nothing_is_written(client: Client, provider: Simulator) -> None:
    session = await client.session()
    for body in BAD_BODIES:
        response = await client.http.post(f"/sessions/{session}/turns", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422, (body, response.text)
        problem = response.json()
        assert problem["code"] in {"invalid_request", "invalid_json"}
        assert problem["request_id"]
    assert await client.messages(session) == []
    assert len(provider.requests) == 0


async def test_a_body_above_the_limit_is_refused(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, max_body_bytes=2_000) as (_, client):
        session = await client.session()
        response = await client.http.post(f"/sessions/{session}/turns", json={"input": "x" * 3_000})
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        await assert_goes_on(client, provider, session)


async def test_a_full_replica_says_when_to_come_back_and_queues_who_can_wait(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, max_running_turns=1) as (_, client):
        first, second, third = [await client.session() for _ in range(3)]
        running = await start(client, first, SLOW)
        refused = await client.http.post(f"/sessions/{second}/turns", json={"input": "x"})
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "at_capacity", True)
        assert int(refused.headers["retry-after"]) >= 1
        waiting = await start(client, third, '[[sim text="My time has come."]]')
        assert (await client.get(waiting))["status"] == "queued"
        await client.http.delete(f"/turns/{running}")
        frames = await client.replay(waiting)
        assert (frames[0].type, frames[0].data["reason"]) == ("turn.queued", "at_capacity")
        assert frames[-1].data["output"] == "My time has come."
        await assert_goes_on(client, provider, second)


async def test_a_leaving_replica_lets_turns_end_and_takes_no_new_ones(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (running, client):
        session = await client.session()
        async with client.turn(session, "[[sim tokens=30 pace_ms=20]]") as stream:
            await stream.until("message.delta")
            drain = asyncio.create_task(running.gateway.server.drain(20))
            await asyncio.sleep(0)
            refused = await client.http.post(f"/sessions/{await client.session()}/turns", json={"input": "x"})
            assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "draining", True)
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.http.get("/readyz")).status_code == 503
            assert (await client.http.get("/livez")).status_code == 200
            assert (await stream.read_to_end())[-1].type == "turn.completed"
        await drain


async def test_a_leaving_replica_ends_what_does_not_end_in_time(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (running, client):
        texts = (SLOW, "[[sim silent]]", "[[sim tool=slow]]")
        sessions = [await client.session() for _ in texts]
        turns = [await start(client, session, text) for session, text in zip(sessions, texts, strict=True)]
        follows = [asyncio.create_task(client.replay(turn_id)) for turn_id in turns]
        await provider.wait_for_requests(3, 5)
        async with asyncio.timeout(4):
            await running.gateway.server.drain(2.2)
        for frames in await asyncio.gather(*follows):
            assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.interrupted", "shutdown")
    async with opened(database_url, provider) as (_, client):
        for session in sessions:
            await assert_goes_on(client, provider, session)


async def test_a_leaving_replica_hands_a_turn_over_at_an_iteration_boundary(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider) as (leaving, client), opened(database_url, provider) as (_, other):
        session = await client.session()
        async with client.turn(session, '[[sim tool=slow args={"seconds":0.4} rounds=2 text="Carried over."]]') as stream:
            await stream.until("tool.started")
            drain = asyncio.create_task(leaving.gateway.server.drain(20))
            seen = await stream.read_to_end()
        await drain
        assert seen[-1].type in {"turn.queued", "turn.completed"}  # a stream that ends early is taken up elsewhere
        frames = [*seen, *await other.replay(first_turn_id(seen), seen[-1].seq)]
        assert frames[-1].type == "turn.completed"
        assert frames[-1].data["output"] == "Carried over."
        assert [frame.data["reason"] for frame in of_type(frames, "turn.queued")] == ["handed_over"]
        assert len(of_type(frames, "turn.resumed")) == 1
        assert len(of_type(frames, "tool.completed")) == 2
        assert [frame.raw for frame in await other.replay(first_turn_id(frames))] == [frame.raw for frame in frames]
        assert [request.problems for request in provider.requests] == [()] * 3
        await assert_goes_on(other, provider, session)


@pytest.mark.parametrize("on_the_other_replica", [False, True], ids=["same replica", "other replica"])
async def test_a_turn_that_ends_with_its_client_goes_on_while_somebody_else_reads_it(
    client: Client, second: Replica, provider: Simulator, *, on_the_other_replica: bool
) -> None:
    session = await client.session()
    async with second.client() as elsewhere:
        reader = elsewhere if on_the_other_replica else client
        async with client.turn(session, "[[sim tokens=500 pace_ms=20]]", on_disconnect="cancel") as own:
            turn_id = first_turn_id([await own.until("turn.started")])
            await own.until("message.delta")
            async with reader.events(turn_id) as follower:
                await follower.until("message.delta", 3)
                await own.response.aclose()
                await follower.until("message.delta", 60)  # more than a second of it: nobody has stopped it
                assert (await client.get(turn_id))["status"] == "running"
        record = await request_number(provider, 1)
        await provider.wait_for_end(record, 5)
        state = await client.replay(turn_id)
        assert (state[-1].type, state[-1].data["reason"]) == ("turn.interrupted", "client_gone")
