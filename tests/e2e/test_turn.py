from app.simulator.server import Simulator
from tests.e2e.harness import Client, text_of, types


async def test_streams_a_plain_answer(client: Client, provider: Simulator) -> None:
    session = await client.session()
    frames = await client.run(session, '[[sim text="Hello there, friend."]]')
    assert types(frames) == ["turn.started", "iteration.started", "message.delta", "message.completed", "turn.completed"]
    assert text_of(frames) == "Hello there, friend."
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1].data["output"] == "Hello there, friend."
    assert frames[-1].data["reason"] == "answer"
    assert frames[-1].data["route"] == {"provider": "p1", "model": "sim-text", "api_mode": "chat_completions"}
    assert len(provider.requests) == 1


async def test_runs_tools_and_goes_on_with_their_results(client: Client, provider: Simulator) -> None:
    session = await client.session()
    frames = await client.run(session, '[[sim tool=get_time parallel=2 rounds=2 text="It is late."]]')
    assert types(frames).count("tool.completed") == 4
    assert text_of(frames) == "It is late."
    roles = [message["role"] for message in await client.messages(session)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "tool", "assistant"]
    assert len(provider.requests) == 3
    assert [request.problems for request in provider.requests] == [(), (), ()] or not any(request.problems for request in provider.requests)


async def test_replays_the_same_bytes_after_the_end(client: Client) -> None:
    session = await client.session()
    frames = await client.run(session, "[[sim tokens=50]]")
    turn_id = frames[0].data["turn_id"]
    for after in (0, 1, 25, len(frames) - 1):
        assert [frame.raw for frame in await client.replay(turn_id, after)] == [frame.raw for frame in frames[after:]]
    assert await client.replay(turn_id, len(frames)) == []
