"""Compaction on demand, and what is carried over one: memory, the todo list, the prompt."""

import asyncio
import json
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.simulator.log import RequestEnd
from tests.e2e.chains import every_mode, problems
from tests.e2e.compacting import LONG, MARK, SUMMARY, compact, compacting, compactions, grown, says, spoken, summaries_of
from tests.e2e.harness import Client, Frame, types
from tests.e2e.openai_clients import ASK_WEATHER, WEATHER, openai_of, result, user
from tests.e2e.scenes import ended, of_type, request_number
from tests.e2e.stage import Stage
from tests.e2e.wire_modes import results_sent

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "## Goal\nThe user counts downwards."
REMEMBER = 'calls=[{"name":"memory","arguments":{"action":"add","content":"The user likes tea."}}]'


async def begun(client: Client, session: str, **body: Any) -> dict[str, Any]:
    """Start a compaction in the background."""
    response = await client.http.post(f"/sessions/{session}/compact", json={"background": True, **body})
    assert response.status_code == 202, response.text
    turn: dict[str, Any] = response.json()
    return turn


async def unchanged(client: Client, session: str, before: list[dict[str, Any]]) -> None:
    """The session's context is what it was, and nothing of a summary is there."""
    assert await client.messages(session, view="context") == before
    assert await summaries_of(client, session) == []


async def transcript_of(client: Client, session: str) -> list[dict[str, Any]]:
    """What was said, whether the model still sees it or not."""
    return [{name: value for name, value in message.items() if name != "archived"} for message in await client.messages(session)]


def the(frames: list[Frame], event_type: str) -> Frame:
    """The one frame of a type."""
    (frame,) = of_type(frames, event_type)
    return frame


async def test_it_is_a_turn_of_its_own_in_every_form(stage: Stage) -> None:
    stage.backup.play(says(SUMMARY), says(OTHER), says(SUMMARY))
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        await grown(client, session)
        transcript = await transcript_of(client, session)

        streamed = await compact(client, session)
        assert types(streamed) == ["turn.started", "compaction.started", "compaction.completed", "turn.completed"]
        assert (streamed[-1].data["reason"], streamed[-1].data["output"]) == ("answer", SUMMARY)

        await grown(client, session, turns=4)
        answer = await client.http.post(f"/sessions/{session}/compact", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "completed", OTHER)
        assert "The user counts upwards." in spoken(stage.backup.requests[1]), "the summary before is folded in"

        await grown(client, session, turns=4)
        turn = await begun(client, session, metadata={"why": "night"})
        done = await ended(client, turn["id"], 5)
        assert (done["status"], done["output"], done["metadata"]) == ("completed", SUMMARY, {"why": "night"})

        after = await transcript_of(client, session)
        assert after[: len(transcript)] == transcript
        assert [message["role"] for message in after] == ["user", "assistant"] * 16
        summaries = await summaries_of(client, session)
        assert [(summary["content"], summary["active"]) for summary in summaries] == [(SUMMARY, True), (OTHER, False), (SUMMARY, False)]
        firsts = [summary["first_seq"] for summary in reversed(summaries)]
        assert firsts == sorted(firsts)
        page = await client.http.get(f"/sessions/{session}/summaries", params={"limit": 2})
        assert (len(page.json()["data"]), page.json()["has_more"]) == (2, True)
        rest = await client.http.get(f"/sessions/{session}/summaries", params={"limit": 2, "cursor": page.json()["next_cursor"]})
        assert [summary["id"] for summary in rest.json()["data"]] == [summaries[-1]["id"]]


async def test_where_nothing_can_leave_the_turn_says_so(stage: Stage) -> None:
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        for _ in range(2):
            frames = await compact(client, session)
            assert types(frames) == ["turn.started", "turn.completed"]
            assert (frames[-1].data["reason"], frames[-1].data["output"]) == ("nothing_to_compact", "")
        assert len(stage.backup.requests) == 0
        assert (await client.run(session, '[[sim text="Hello."]]'))[-1].data["output"] == "Hello."


async def test_a_summary_that_cannot_be_had_fails_the_turn_alone(stage: Stage) -> None:
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        await grown(client, session)
        before = await client.messages(session, view="context")
        for fault, reason in (("status=402", "provider_unavailable"), ('text="I cannot do that."', "invalid_response")):
            stage.backup.play(fault)
            frames = await compact(client, session)
            assert compactions(frames) == ["started manual", "failed manual"]
            assert (frames[-1].type, frames[-1].data["reason"]) == ("turn.failed", reason)
        await unchanged(client, session, before)
        answer = await client.http.post(f"/sessions/{session}/compact", headers={"Accept": "application/json"})
        assert answer.status_code == 200, "the third one is the simulator's own words"


async def test_a_turn_s_budget_holds_for_summaries_too(stage: Stage) -> None:
    async with compacting(stage, window=16_000, max_tokens_per_turn=4_000) as client:
        session = await client.session(toolsets=[])
        await grown(client, session, turns=11)
        before = await client.messages(session, view="context")
        frames = await compact(client, session)
        assert types(frames) == ["turn.started", "turn.completed"]
        assert (frames[-1].data["reason"], frames[-1].data["output"]) == ("budget_exhausted", "")
        assert len(stage.backup.requests) == 0
        await unchanged(client, session, before)


async def test_it_takes_the_sessions_slot(stage: Stage) -> None:
    stage.backup.play(f"{says(SUMMARY)} first_ms=400", says(OTHER))
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        await grown(client, session)
        turn = await begun(client, session)
        await request_number(stage.backup, 1)
        for path, body in (("turns", {"input": "hello"}), ("compact", {})):
            refused = await client.http.post(f"/sessions/{session}/{path}", json=body)
            assert (refused.status_code, refused.json()["turn_id"]) == (409, turn["id"])
        frames = await client.run(session, '[[sim text="Done."]] next', on_busy="enqueue")
        assert frames[-1].data["output"] == "Done."
        assert (await client.get(turn["id"]))["status"] == "completed"
        assert MARK in spoken(stage.provider.requests[-1]), "what waited begins with the summary"
        async with client.turn(session, "[[sim tokens=200 pace_ms=50]]") as stream:
            await stream.until("message.delta")
            waiting = await begun(client, session, on_busy="interrupt")
            assert (await stream.read_to_end())[-1].data["reason"] == "superseded"
        assert (await ended(client, waiting["id"], 5))["status"] == "completed"
        assert problems(stage.provider, stage.backup) == []


async def test_a_repeat_with_the_same_key_is_the_same_turn(stage: Stage) -> None:
    stage.backup.play(says(SUMMARY))
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        await grown(client, session)
        headers = {"Accept": "application/json", "Idempotency-Key": "once"}
        first = await client.http.post(f"/sessions/{session}/compact", headers=headers)
        second = await client.http.post(f"/sessions/{session}/compact", headers=headers)
        assert first.json() == second.json()
        assert second.headers["idempotency-replayed"] == "true"
        other = await client.http.post(f"/sessions/{session}/turns", json={"input": "x"}, headers=headers)
        assert other.status_code in (409, 422)
        assert len(stage.backup.requests) == len(await summaries_of(client, session)) == 1


@every_mode
@pytest.mark.parametrize("place", ["flush", "summary", "second piece"])
async def test_an_interrupt_during_it_changes_nothing(stage: Stage, mode: ApiMode, place: str) -> None:
    scripts = {"flush": [], "summary": ['text="Nothing."'], "second piece": ['text="Nothing."', says(SUMMARY)]}[place]
    stage.backup.play(*scripts, "silent")
    async with compacting(stage, mode, window=20_000, summary_window=4_000) as client:
        session = await client.session(toolsets=["core"])
        await grown(client, session, turns=14)
        before = await client.messages(session, view="context")
        turn = await begun(client, session)
        hanging = await request_number(stage.backup, len(scripts) + 1)
        stopped = asyncio.get_running_loop().time()
        await client.http.delete(f"/turns/{turn['id']}")
        done = await ended(client, turn["id"], 2)
        assert asyncio.get_running_loop().time() - stopped < 1.0
        assert (done["status"], done["reason"]) == ("interrupted", "requested")
        assert sum(route["attempts"] for route in done["routes"]) == len(scripts), "calls that ended are counted"
        assert (done["usage"]["input_tokens"] > 0) == (len(scripts) > 0)
        assert (await stage.backup.wait_for_end(hanging, 2)).ending is RequestEnd.CLIENT_CLOSED
        await unchanged(client, session, before)
        again = await client.run(session, '[[sim text="Still here."]] and now?')
        assert again[-1].data["output"] == "Still here."
        stage.backup.clear()
        stage.backup.play('text="Nothing."', *[says(SUMMARY)] * 9)
        assert (await compact(client, session))[-1].type == "turn.completed"
        assert problems(stage.provider, stage.backup) == []


async def test_an_interrupt_while_a_chat_turn_is_compacted_leaves_a_valid_history(stage: Stage) -> None:
    stage.backup.play("silent")
    async with compacting(stage) as client:
        session = await client.session(toolsets=[])
        await grown(client, session, turns=11)
        before = await client.messages(session, view="context")
        async with client.turn(session, f"NEWEST {LONG * 2}") as stream:
            started = await stream.until("compaction.started")
            await request_number(stage.backup, 1)
            await client.http.delete(f"/turns/{started.data['turn_id']}")
            frames = await stream.read_to_end()
        assert types(frames) == ["turn.started", "iteration.started", "compaction.started", "turn.interrupted"]
        after = await client.messages(session, view="context")
        assert after[: len(before)] == before
        assert [message["role"] for message in after[len(before) :]] == ["user", "assistant"]
        stage.backup.play(*[says(SUMMARY)] * 2)
        again = await client.run(session, '[[sim text="Still here."]] and now?')
        assert again[-1].data["output"] == "Still here."
        assert compactions(again) == ["started gateway", "completed gateway"]
        assert problems(stage.provider, stage.backup) == []


def systems(stage: Stage) -> list[str]:
    """The system prompt of each request to the session's model."""
    return [str(request.body["messages"][0]["content"]) for request in stage.provider.requests]


async def test_facts_are_written_to_memory_before_they_leave(stage: Stage) -> None:
    stage.backup.play(REMEMBER, says(SUMMARY))
    async with compacting(stage) as client:
        session = await client.session(toolsets=["core"], system_prompt="Be kind.", user="ada")
        await grown(client, session, turns=6)
        assert set(systems(stage)) == {"Be kind."}
        frames = await compact(client, session)
        assert the(frames, "compaction.completed").data["memory"] == "kept"
        flush, asked = stage.backup.requests
        assert [tool["function"]["name"] for tool in flush.body["tools"]] == ["memory"]
        assert "Answer 0." in spoken(flush)
        assert "tools" not in asked.body
        turn = await client.get(frames[0].data["turn_id"])
        assert turn["usage"]["input_tokens"] == the(frames, "compaction.completed").data["usage"]["input_tokens"] > 0
        await client.run(session, '[[sim text="Hello."]]')
        system = systems(stage)[-1]
        assert system.startswith("Be kind.\n\n# Memory\n")
        assert system.index("The user likes tea.") < system.index(MARK)
        await client.run(session, 'q [[sim tool=memory args={"action":"add","content":"The user is called Ada."} text="ok"]]')
        await client.run(session, '[[sim text="Hello."]]')
        assert systems(stage)[-1] == system, "the prompt is frozen again"
        other = await client.session(toolsets=["core"], user="ada")
        await client.run(other, '[[sim text="Hello."]]')
        assert "The user likes tea." in systems(stage)[-1]


@pytest.mark.parametrize(
    ("scripts", "memory"),
    [
        (["hangup"], "failed"),
        (['text="Nothing."'], "nothing"),
        (['calls=[{"name":"memory","arguments":{"action":"replace","old_text":"x","content":"y"}}]'], "failed"),
        (['calls=[{"name":"lookup","arguments":{"q":"x"}}]'], "nothing"),
    ],
    ids=["no answer", "nothing to keep", "a call that fails", "another tool"],
)
async def test_a_memory_that_is_not_written_stops_nothing(stage: Stage, scripts: list[str], memory: str) -> None:
    stage.backup.play(*scripts, says(SUMMARY))
    async with compacting(stage) as client:
        session = await client.session(toolsets=["core"])
        await grown(client, session, turns=6)
        frames = await compact(client, session)
    assert compactions(frames) == ["started manual", "completed manual"]
    assert the(frames, "compaction.completed").data["memory"] == memory
    assert frames[-1].data["output"] == SUMMARY


@every_mode
async def test_open_items_of_the_todo_list_are_shown_again(stage: Stage, mode: ApiMode) -> None:
    stage.backup.play('text="Nothing."', says(SUMMARY))
    items = [{"id": "1", "content": "Peel", "status": "completed"}, {"id": "2", "content": "Boil the water", "status": "in_progress"}]
    async with compacting(stage, mode) as client:
        session = await client.session(toolsets=["core"])
        await client.run(session, f'Cook [[sim tool=todo args={json.dumps({"todos": items})} text="Noted."]]')
        await grown(client, session, turns=5)
        transcript = await transcript_of(client, session)
        assert (await compact(client, session))[-1].type == "turn.completed"
        assert await transcript_of(client, session) == transcript
        for _ in range(2):
            frames = await client.run(session, 'Go on. [[sim text="Yes."]]')
            assert frames[-1].data["output"] == "Yes."
            sent = spoken(stage.provider.requests[-1])
            assert sent.count("- [>] Boil the water") == 1
            assert "Peel" not in sent
        assert problems(stage.provider, stage.backup) == []


@every_mode
async def test_a_call_that_waits_for_its_client_outlives_compactions(stage: Stage, mode: ApiMode) -> None:
    """Each of them puts the open items of the todo list behind the call."""
    items = [{"id": "1", "content": "Ask for the weather", "status": "in_progress"}]
    stage.backup.play(*['text="Nothing."', says(SUMMARY)] * 9)
    async with compacting(stage, mode) as client, openai_of(client) as openai:
        session = await client.session(toolsets=["core"])
        await client.run(session, f'Plan [[sim tool=todo args={json.dumps({"todos": items})} text="Noted."]]')
        await grown(client, session, turns=5)
        bound: Any = {"session_id": session}
        asked = await openai.chat.completions.create(model="default", messages=[user(ASK_WEATHER)], tools=[WEATHER], extra_body=bound)
        assert asked.choices[0].message.tool_calls is not None
        (call,) = asked.choices[0].message.tool_calls
        reasons = [(await compact(client, session))[-1].data["reason"] for _ in range(6)]
        assert (reasons[0], reasons[1], reasons[-1]) == ("answer", "answer", "nothing_to_compact")
        stage.provider.play('text="It rains."')
        told = await openai.chat.completions.create(model="default", messages=[result(call.id, "rain")], tools=[WEATHER], extra_body=bound)
        assert told.choices[0].message.content == "It rains."
        sent = stage.provider.requests[-1]
        assert results_sent(mode, sent.body) == [(call.id, "rain")]
        assert spoken(sent).count("- [>] Ask for the weather") == 1
        assert (await client.run(session, '[[sim text="Still here."]]'))[-1].data["output"] == "Still here."
        assert problems(stage.provider, stage.backup) == []
