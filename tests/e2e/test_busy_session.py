"""At most one turn of a session runs, decided in Postgres; other sessions do not wait for it."""

import asyncio

from app.simulator.server import Simulator
from tests.e2e.harness import Client, Replica
from tests.e2e.scenes import assert_goes_on

JSON = {"Accept": "application/json"}
PAIRS = 100
AT_ONCE = 20


async def collide(first: Client, second: Client) -> None:
    """Two turns at the same instant in a new session: one runs, the other is refused before anything is written; then a third."""
    session = await first.session()
    url = f"/sessions/{session}/turns"
    posts = [
        client.http.post(url, json={"input": f"[[sim tokens=2 first_ms=250]] {name}"}, headers=JSON)
        for name, client in (("a", first), ("b", second))
    ]
    answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    won = next(answer for answer in answers if answer.status_code == 200)
    lost = next(answer for answer in answers if answer.status_code == 409)
    assert lost.headers["location"] == f"/turns/{won.json()['id']}"
    third = await second.http.post(url, json={"input": "[[sim tokens=2]] c"}, headers=JSON)
    assert third.status_code == 200, third.text
    history = await first.messages(session)
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant"]
    assert history[2]["content"].endswith("c")
    assert len((await first.http.get(url)).json()["data"]) == 2


async def test_two_turns_at_the_same_instant(client: Client, second: Replica, provider: Simulator) -> None:
    async with second.client() as elsewhere:
        for begin in range(0, PAIRS, AT_ONCE):
            others = [elsewhere if (begin + number) % 2 else client for number in range(AT_ONCE)]
            await asyncio.gather(*(collide(client, other) for other in others))
    assert len(provider.requests) == 2 * PAIRS
    assert not [request for request in provider.requests if request.problems]


async def test_sessions_of_a_tenant_do_not_wait_for_one_another(client: Client, provider: Simulator) -> None:
    sessions = [await client.session() for _ in range(20)]
    await asyncio.gather(*(client.run(session, "[[sim tokens=2 first_ms=700]]") for session in sessions))
    requests = list(provider.requests)
    assert len(requests) == 20
    first_end = min(request.ended_at for request in requests if request.ended_at is not None)
    assert max(request.received_at for request in requests) < first_end, "a turn began only when another had ended"
    await assert_goes_on(client, provider, sessions[0])
