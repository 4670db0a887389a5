"""Turns that wait for a client's tool, an answer or an approval: their streams, their answers, and how they go on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.simulator.server import Simulator
from tests.e2e.harness import OTHER_KEY, Client, Replica, text_of, types
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import of_type, opened
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
    results_sent,
    strict,
    turn_of,
    wait_for,
)

LOOKUP = ("lookup", {"q": "z"})


@pytest.fixture
async def stage(database_url: str, provider: Simulator) -> AsyncIterator[tuple[Replica, Client]]:
    async with opened(database_url, provider, tool_modules=MODULES) as found:
        yield found


@pytest.fixture
def client(stage: tuple[Replica, Client]) -> Client:
    return stage[1]


async def test_a_client_tool_ends_the_stream_and_its_result_goes_on_with_the_turn(client: Client, provider: Simulator) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("locate", {"precise": True}))
    assert types(frames) == ["turn.started", "iteration.started", "message.completed", "tool.requires_action"]
    (call,) = frames[-1].data["calls"]
    assert call == {
        "tool_call_id": "c0",
        "kind": "client_tool",
        "name": "locate",
        "arguments": '{"precise":true}',
        "question": None,
        "choices": [],
        "arguments_truncated": False,
    }
    turn_id = turn_of(frames)
    turn = await client.get(turn_id)
    assert turn["status"] == "requires_action"
    assert turn["requires_action"] == {"calls": [call], "expires_at": frames[-1].data["expires_at"]}
    rest = await answer(client, turn_id, gives("c0", "in Rome"))
    assert types(rest)[:4] == ["turn.queued", "turn.resumed", "tool.completed", "iteration.started"]
    assert rest[0].data["reason"] == "answered"
    assert text_of(rest) == "Done."
    assert results_sent(provider) == [("c0", "in Rome")]
    whole = await client.replay(turn_id)
    check_stream(whole)
    assert [frame.raw for frame in whole] == [frame.raw for frame in [*frames, *rest]]
    turn = await client.get(turn_id)
    assert (turn["status"], turn["reason"], turn["requires_action"]) == ("completed", "answer", None)
    strict(provider)


async def test_everything_else_is_done_before_the_turn_waits_and_all_results_come_in_their_places(
    client: Client, provider: Simulator
) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("locate", {}), LOOKUP, PURGE, ("save", {"path": "p", "text": "t"}), ASK)
    assert [frame.data["name"] for frame in of_type(frames, "tool.started")] == ["lookup", "save"]
    assert [frame.data["name"] for frame in of_type(frames, "tool.completed")] == ["lookup", "save"]
    waiting = {call["tool_call_id"]: call for call in frames[-1].data["calls"]}
    assert {key: call["kind"] for key, call in waiting.items()} == {"c0": "client_tool", "c2": "approval", "c4": "clarify"}
    assert (waiting["c4"]["question"], waiting["c4"]["choices"]) == ("Which one?", ["the red one", "the blue one"])
    assert runs.begun["purge"] == 0
    rest = await answer(client, turn_of(frames), decides("c2", "approve"), gives("c4", "the green one"), gives("c0", "in Rome"))
    assert [frame.data["name"] for frame in of_type(rest, "tool.started")] == ["purge"]
    assert results_sent(provider) == [
        ("c0", "in Rome"),
        ("c1", "found z"),
        ("c2", "purged attic"),
        ("c3", "saved p"),
        ("c4", "the green one"),
    ]
    assert (runs.begun["lookup"], runs.begun["save"], runs.begun["purge"]) == (1, 1, 1)
    check_stream(await client.replay(turn_of(frames)))
    strict(provider)


async def test_a_denied_call_is_not_run_and_the_model_reads_why(client: Client, provider: Simulator) -> None:
    frames = await wait_for(client, await client.session(), PURGE, PURGE, ("locate", {}))
    answers = (decides("c0", "deny", reason="my attic is fine"), decides("c1", "deny"), {"tool_call_id": "c2", "error": "no signal"})
    rest = await answer(client, turn_of(frames), *answers)
    assert results_sent(provider)[0] == ("c0", "Not run: denied by the user: my attic is fine")
    assert results_sent(provider)[1][1].startswith("Not run: denied by the user.")
    assert results_sent(provider)[2] == ("c2", "no signal")
    assert [frame.data["is_error"] for frame in of_type(rest, "tool.completed")] == [True, True, True]
    assert runs.begun["purge"] == 0
    assert rest[-1].type == "turn.completed"


async def test_answers_may_come_one_by_one(client: Client, provider: Simulator) -> None:
    frames = await wait_for(client, await client.session(), ("locate", {}), ASK, PURGE)
    turn_id = turn_of(frames)
    first = await post(client, turn_id, decides("c2", "approve"))
    assert first.status_code == 200
    assert first.json()["status"] == "requires_action"
    assert [call["tool_call_id"] for call in first.json()["requires_action"]["calls"]] == ["c0", "c1"]
    again = await post(client, turn_id, decides("c2", "deny"))
    assert (again.status_code, again.json()["errors"][0]["pointer"]) == (422, "/results/0/tool_call_id")
    assert runs.begun["purge"] == 0
    assert (await post(client, turn_id, gives("c0", "in Rome"))).json()["status"] == "requires_action"
    assert [frame.type for frame in await client.replay(turn_id, frames[-1].seq)] == []
    rest = await answer(client, turn_id, gives("c1", "red"))
    assert rest[-1].type == "turn.completed"
    assert results_sent(provider) == [("c0", "in Rome"), ("c1", "red"), ("c2", "purged attic")]
    check_stream(await client.replay(turn_id))


async def test_a_turn_can_wait_again_and_again(client: Client, provider: Simulator) -> None:
    calls = asks_for(("locate", {})).removesuffix("]]")
    frames = await client.run(await client.session(), f"{calls} rounds=3]]", tools=[LOCATE])
    turn_id = turn_of(frames)
    for number in range(2):
        frames = await answer(client, turn_id, gives(frames[-1].data["calls"][0]["tool_call_id"], f"in place {number}"))
        assert frames[-1].type == "tool.requires_action"
    frames = await answer(client, turn_id, gives(frames[-1].data["calls"][0]["tool_call_id"], "home"))
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["iterations"] == 4
    whole = await client.replay(turn_id)
    check_stream(whole)
    assert len(of_type(whole, "tool.requires_action")) == 3
    strict(provider)


async def test_as_json_the_turn_is_shown_as_it_waits(client: Client) -> None:
    accept = {"Accept": "application/json"}
    session_id = await client.session()
    url = f"/sessions/{session_id}/turns"
    response = await client.http.post(url, json={"input": asks_for(("locate", {})), "tools": [LOCATE]}, headers=accept)
    assert response.status_code == 200
    turn = response.json()
    assert turn["status"] == "requires_action"
    assert [call["name"] for call in turn["requires_action"]["calls"]] == ["locate"]
    response = await post(client, turn["id"], gives("c0", "in Rome"), headers=accept)
    assert response.status_code == 200
    assert (response.json()["status"], response.json()["output"]) == ("completed", "Done.")


async def test_in_the_background_a_turn_waits_too_and_goes_on_in_the_background(client: Client) -> None:
    session_id = await client.session()
    url = f"/sessions/{session_id}/turns"
    response = await client.http.post(url, json={"input": asks_for(ASK), "background": True})
    assert response.status_code == 202
    turn_id = response.json()["id"]
    assert (await client.replay(turn_id))[-1].type == "tool.requires_action"
    response = await post(client, turn_id, gives("c0", "red"), background=True)
    assert response.status_code == 202
    assert response.headers["Location"] == f"/turns/{turn_id}"
    frames = await client.replay(turn_id)
    assert frames[-1].type == "turn.completed"
    check_stream(frames)


WRONG: list[Any] = [
    pytest.param([gives("c9", "x")], "/results/0/tool_call_id", id="unknown call"),
    pytest.param([gives("c1", "x")], "/results/0/tool_call_id", id="a call that does not wait"),
    pytest.param([gives("c0", "x"), gives("c0", "y")], "/results/1/tool_call_id", id="twice"),
    pytest.param([decides("c0", "approve")], "/results/0/decision", id="a decision about a client's tool"),
    pytest.param([decides("c3", "approve")], "/results/0/decision", id="a decision about a question"),
    pytest.param([gives("c2", "yes")], "/results/0", id="an output of an approval"),
    pytest.param([{"tool_call_id": "c2", "error": "no"}], "/results/0", id="an error of an approval"),
    pytest.param([decides("c2", "maybe")], "/results/0/decision", id="no such decision"),
    pytest.param([{"tool_call_id": "c0"}], "/results/0", id="nothing"),
    pytest.param([{"tool_call_id": "c0", "output": "x", "error": "y"}], "/results/0", id="two at once"),
    pytest.param([{**gives("c0", "x"), "reason": "because"}], "/results/0", id="a reason without a decision"),
    pytest.param([gives("c0", "x" * 100_001)], "/results/0/output", id="too long"),
    pytest.param([gives("c0", "x")] * 129, "/results", id="too many"),
    pytest.param([], "/results", id="none"),
]


async def test_answers_that_fit_no_waiting_call_are_refused_as_a_whole(client: Client) -> None:
    frames = await wait_for(client, await client.session(), ("locate", {}), LOOKUP, PURGE, ASK)
    turn_id = turn_of(frames)
    before = await client.get(turn_id)
    for parameters in WRONG:
        results, pointer = parameters.values
        response = await post(client, turn_id, *results)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer), parameters.id
    response = await post(client, turn_id, gives("c0", "fine"), gives("c9", "x"))
    assert response.status_code == 422
    assert await client.get(turn_id) == before


async def test_a_turn_that_does_not_wait_takes_no_answers_and_a_foreign_one_is_unknown(
    stage: tuple[Replica, Client], client: Client
) -> None:
    frames = await wait_for(client, await client.session(), ("locate", {}))
    turn_id = turn_of(frames)
    async with stage[0].client(OTHER_KEY) as other:
        assert (await post(other, turn_id, gives("c0", "x"))).status_code == 404
    assert (await post(client, "turn_00000000000000000000000000", gives("c0", "x"))).status_code == 404
    await answer(client, turn_id, gives("c0", "in Rome"))
    response = await post(client, turn_id, gives("c0", "in Rome"))
    assert (response.status_code, response.json()["code"], response.json()["turn_id"]) == (409, "turn_not_waiting", turn_id)


async def test_a_repeat_under_its_key_attaches_to_the_same_rest(client: Client, provider: Simulator) -> None:
    frames = await wait_for(client, await client.session(), ("locate", {}), PURGE)
    turn_id = turn_of(frames)
    partly, whole = {"Idempotency-Key": "partly"}, {"Idempotency-Key": "whole"}
    for replayed in (None, "true"):
        response = await post(client, turn_id, gives("c0", "in Rome"), headers=partly)
        assert (response.status_code, response.headers.get("Idempotency-Replayed")) == (200, replayed)
        assert response.json()["status"] == "requires_action"
    rests = []
    for replayed in (None, "true"):
        async with answering(client, turn_id, decides("c1", "approve"), headers=whole) as stream:
            assert stream.response.headers.get("Idempotency-Replayed") == replayed
            rests.append([frame.raw for frame in await stream.read_to_end()])
    assert rests[0] == rests[1]
    assert runs.begun["purge"] == 1
    other = await post(client, turn_id, decides("c1", "deny"), headers=whole)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("tools", "pointer"),
    [
        ([{"type": "retrieval"}], "/tools/0/type"),
        ([{"type": "function", "function": {"name": "no blanks"}}], "/tools/0/function/name"),
        ([LOCATE, LOCATE], "/tools/1/function/name"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}], "/tools/0/function/parameters/type"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "nix"}}}}}],
            "/tools/0/function/parameters",
        ),
        ([{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)], "/tools"),
    ],
    ids=["kind", "name", "twice", "no object", "no schema", "too many"],
)
async def test_tools_of_the_client_are_checked(client: Client, tools: list[Any], pointer: str) -> None:
    session_id = await client.session()
    response = await client.http.post(f"/sessions/{session_id}/turns", json={"input": "hello", "tools": tools})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await client.messages(session_id)) == []


async def test_a_client_tool_with_a_name_of_the_gateways_stands_in_its_place_for_this_turn(client: Client, provider: Simulator) -> None:
    session_id = await client.session()
    mine = {"type": "function", "function": {"name": "purge", "description": "Mine."}}
    frames = await wait_for(client, session_id, PURGE, tools=[mine])
    assert frames[-1].data["calls"][0]["kind"] == "client_tool"
    await answer(client, turn_of(frames), gives("c0", "swept"))
    assert runs.begun["purge"] == 0
    frames = await wait_for(client, session_id, PURGE)
    assert frames[-1].data["calls"][0]["kind"] == "approval"
    strict(provider)


async def test_a_question_that_cannot_be_shown_is_answered_at_once(client: Client, provider: Simulator) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"question": "  "},
        {"question": "Which?", "choices": ["a", "b", "c", "d", "e"]},
        {"question": "Which?", "choices": [1]},
    ]
    frames = await client.run(await client.session(), asks_for(*(("clarify", arguments) for arguments in wrong)))
    assert frames[-1].type == "turn.completed"
    assert [frame.data["is_error"] for frame in of_type(frames, "tool.completed")] == [True] * 4
    assert "question" in results_sent(provider)[0][1]
    assert "blank" in results_sent(provider)[1][1]


async def test_nobody_is_asked_to_approve_a_call_that_cannot_be_run(client: Client, provider: Simulator) -> None:
    frames = await client.run(await client.session(), asks_for(("purge", {"place": 7}), ("purge", {})))
    assert frames[-1].type == "turn.completed"
    assert [output.startswith("The arguments do not fit") for _, output in results_sent(provider)] == [True, True]
    assert runs.begun["purge"] == 0


async def test_beside_a_question_calls_are_run_one_after_the_other(client: Client) -> None:
    meeting = ("meet", {"party": "a", "size": 2})
    frames = await wait_for(client, await client.session(), ("slow", {"seconds": 0.05}), ASK, LOOKUP, ("now", {}))
    assert [frame.data["name"] for frame in of_type(frames, "tool.completed")] == ["slow", "lookup", "now"]
    frames = await wait_for(client, await client.session(), ("locate", {}), meeting, meeting)
    assert [frame.data["output"] for frame in of_type(frames, "tool.completed")] == ["met a", "met a"]


async def test_over_the_openai_facade_nobody_is_waited_for(client: Client, provider: Simulator) -> None:
    body = {"model": "default", "toolsets": ["core", "operator"], "messages": [{"role": "user", "content": asks_for(PURGE, ASK)}]}
    response = await client.http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "Done."
    names = {tool["function"]["name"] for tool in provider.requests[0].body["tools"]}
    assert "lookup" in names
    assert names.isdisjoint({"clarify", "purge"})
    assert [output.startswith("There is no tool") for _, output in results_sent(provider)] == [True, True]
    body = {"model": "default", "tools": [LOCATE], "messages": [{"role": "user", "content": asks_for(("locate", {}))}]}
    response = await client.http.post("/v1/chat/completions", json=body)
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    session_id = await client.session()
    turn_id = turn_of(await wait_for(client, session_id, ("locate", {})))
    body = {"model": "default", "session_id": session_id, "messages": [{"role": "user", "content": "hello"}]}
    response = await client.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 409
    assert (await client.get(turn_id))["status"] == "requires_action"
    assert runs.begun["purge"] == 0
