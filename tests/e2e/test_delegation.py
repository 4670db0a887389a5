"""Sub-agents over sockets: what the parent is told, what the child knows, and a history that every provider takes."""

import json
from typing import Any

import msgspec
import pytest

from app.domain.model import ApiMode
from app.domain.tenants import TenantSettings
from app.simulator import raw_script
from tests.e2e.chains import every_mode, goes_on
from tests.e2e.delegating import TOOLSETS, calls, cards, check, child_turns, delegates, looks_up, of_children, results, says
from tests.e2e.harness import tenant
from tests.e2e.openai_clients import openai_of, user
from tests.e2e.operator_tools import runs
from tests.e2e.prefix import prefix_breaks
from tests.e2e.scenes import of_type
from tests.e2e.stage import Stage
from tests.e2e.steady import steady
from tests.e2e.wire_modes import WRITERS, Call

pytestmark = pytest.mark.asyncio(loop_scope="module")


@every_mode
async def test_a_sub_agent_answers_its_parent_and_the_session_goes_on(stage: Stage, mode: ApiMode) -> None:
    async with steady(stage, mode) as client:
        session = await client.session(system_prompt="Be brief.", toolsets=TOOLSETS)
        frames = await client.run(session, delegates(looks_up(2, "There are forty-two."), context="The archive is in the attic."))

        started, completed = of_type(frames, "subagent.started"), of_type(frames, "subagent.completed")
        assert [(frame.data["depth"], frame.data["tool_call_id"]) for frame in started] == [(1, completed[0].data["tool_call_id"])]
        assert (completed[0].data["status"], completed[0].data["reason"]) == ("completed", "answer")
        assert (completed[0].data["output"], completed[0].data["iterations"]) == ("There are forty-two.", 3)
        (result,) = await results(client, session)
        assert "There are forty-two." in result
        assert completed[0].data["child_turn_id"] in result
        assert frames[-1].data["output"] == "All done."
        assert frames[-1].data["iterations"] == 2
        assert frames[-1].data["children"]["turns"] == 1
        await check(client, stage.provider, session, frames)

        (child,) = await child_turns(client, frames)
        assert (child["status"], child["output"], child["children"]) == ("completed", "There are forty-two.", None)
        assert child["session_id"] == started[0].data["child_session_id"]
        own = await client.replay(child["id"])
        assert own[-1].data["output"] == "There are forty-two."
        said = await client.messages(child["session_id"])
        assert said[0]["content"].endswith("\n\nContext:\nThe archive is in the attic.")
        assert len(of_children(stage.provider)) == 3
        assert b"Be brief." not in b"".join(request.raw for request in of_children(stage.provider))
        assert prefix_breaks(of_children(stage.provider)) == []
        await goes_on(client, session, stage.provider)
        listed = (await client.http.get("/sessions")).json()["data"]
        assert [one["id"] for one in listed] == [session]


async def test_several_at_once_and_those_beyond_the_limit_are_not_run(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        together = [calls(("meet", {"party": "trio", "size": 3}), text=f"Part {number}.") for number in range(3)]
        frames = await client.run(session, delegates(*together, says("Never.")))
        assert len(of_type(frames, "subagent.started")) == 3
        *run, surplus = await results(client, session)
        for number, result in enumerate(run):
            assert f"Part {number}." in result
        assert surplus == "Not run: at most 3 sub-agents run at the same time. Ask again when one has ended."
        assert [frame.data["is_error"] for frame in of_type(frames, "tool.completed")].count(True) == 1
        assert runs.begun["meet trio"] == 3
        assert [card["state"] for card in await cards(client, session)] == ["done"] * 3
        await check(client, stage.provider, session, frames)
        again = await client.run(session, delegates(says("Now."), says("And now.")))
        assert [frame.data["output"] for frame in of_type(again, "subagent.completed")] in (["Now.", "And now."], ["And now.", "Now."])
        await check(client, stage.provider, session, again)


async def test_one_that_fails_costs_its_siblings_nothing(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates(says("Fine."), "[[sim status=400]]"))
        fine, broken = await results(client, session)
        assert "Fine." in fine
        assert broken.startswith("[sub-agent failed: ")
        assert sorted(card["state"] for card in await cards(client, session)) == ["done", "failed"]
        assert frames[-1].data["reason"] == "answer"
        assert frames[-1].data["children"]["turns"] == 2
        await check(client, stage.provider, session, frames)
        await goes_on(client, session, stage.provider)


async def test_sub_agents_of_sub_agents_down_to_the_limit(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        inner = delegates(says("Too deep."), text="I had to do it myself.")
        frames = await client.run(session, delegates(delegates(inner, text="Passed on.")))
        (first, second) = await child_turns(client, frames)
        assert (first["output"], first["children"]["turns"]) == ("Passed on.", 1)
        assert second["output"] == "I had to do it myself."
        (refused,) = await results(client, second["session_id"])
        assert "delegate_task" in refused
        assert frames[-1].data["children"]["turns"] == 2
        assert frames[-1].data["children"]["iterations"] == 4
        offered = [{tool["function"]["name"] for tool in request.body["tools"]} for request in of_children(stage.provider)]
        assert [("delegate_task" in names) for names in offered].count(True) == 2
        assert all("memory" not in names and "clarify" not in names for names in offered)
        await check(client, stage.provider, session, frames)


async def test_a_tenant_sets_how_many_how_deep_and_how_long(stage: Stage) -> None:
    spec = tenant("narrow", "agw_test-key-of-narrow-0123456789", [stage.provider.base_url])
    settings = TenantSettings(max_concurrent_children=1, max_delegation_depth=1, max_child_iterations=2)
    await stage.replica.gateway.tenants.apply(msgspec.structs.replace(spec, settings=settings), generate_key=False)
    async with stage.replica.client("agw_test-key-of-narrow-0123456789") as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates(looks_up(5, "Done."), says("Second.")))
        (completed,) = of_type(frames, "subagent.completed")
        assert (completed.data["reason"], completed.data["iterations"]) == ("budget_exhausted", 2)
        long, surplus = await results(client, session)
        assert "budget_exhausted" in long
        assert surplus.startswith("Not run: at most 1 sub-agent")
        assert len(of_children(stage.provider)) == 2
        assert all(b'"delegate_task"' not in request.raw for request in of_children(stage.provider))
        await check(client, stage.provider, session, frames)


async def test_a_sub_agent_has_a_part_of_its_parents_tools(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=["delegation", "core"])
        asked: list[dict[str, Any]] = [{"toolsets": ["core"]}, {"toolsets": ["operator"]}, {"toolsets": []}, {"toolsets": ["attic"]}]
        goals = [("delegate_task", {"goal": says("Fine."), **one}) for one in asked]
        for goal in goals:
            await client.run(session, calls(goal))
        *fine, unknown = await results(client, session)
        assert all("Fine." in result for result in fine)
        assert unknown.startswith("Not run: unknown toolsets 'attic'.")
        bodies = [request.body for request in of_children(stage.provider)]
        named = [sorted(tool["function"]["name"] for tool in body.get("tools", ())) for body in bodies]
        assert named == [["get_time", "session_search", "todo"], [], []]


BAD = {
    "no goal": "{}",
    "an empty goal": '{"goal": "  "}',
    "a goal that is none": '{"goal": 7}',
    "a list": "[]",
    "no JSON": '{"goal": ',
}


async def test_what_cannot_be_delegated_is_answered(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        for arguments in BAD.values():
            listed = json.dumps([{"name": "delegate_task", "arguments": arguments}])
            frames = await client.run(session, f'[[sim calls={listed} text="Never mind."]]')
            assert frames[-1].data["output"] == "Never mind.", frames[-1].data
            await check(client, stage.provider, session, frames)
        assert [result.startswith("Not run: ") for result in await results(client, session)] == [True] * len(BAD)
        assert of_children(stage.provider) == []


async def test_a_long_answer_is_cut_for_the_parent_and_whole_at_the_child(stage: Stage) -> None:
    async with steady(stage, output_tokens=20_000) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates("[[sim tokens=9000]]"))
        (result,) = await results(client, session)
        assert 24_000 < len(result) < 24_400
        assert result.endswith("characters]")
        (child,) = await child_turns(client, frames)
        whole = (await client.messages(child["session_id"]))[-1]["content"]
        assert len(whole) > 40_000
        assert whole[:24_000] in result
        await check(client, stage.provider, session, frames)


async def test_in_the_background_the_parent_goes_on_and_waits_for_the_card(stage: Stage) -> None:
    provider, writer = stage.provider, WRITERS[ApiMode.CHAT_COMPLETIONS]
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        goal = calls(("meet", {"party": "child", "size": 2}), text="At last.")
        both = calls(("delegate_task", {"goal": goal, "background": True}), ("meet", {"party": "parent", "size": 2}), text="I waited.")
        async with client.turn(session, both) as stream:
            card_id = (await stream.until("subagent.started")).data["card_id"]
            await runs.wait_begun("meet child")
            show = Call("kanban_show", json.dumps({"card_id": card_id, "wait_s": 30}), "call_show", index=1)
            provider.play(raw_script(writer.start() + writer.calls(show) + writer.end()))
            runs.begin("meet parent")
            await stream.until("tool.started")
            runs.begin("meet child")
            frames = await stream.read_to_end()
        begun, _, shown = await results(client, session)
        assert card_id in begun
        card = json.loads(shown)
        assert (card["state"], card["result"], card["owner"]) == ("done", "At last.", "sub-agent")
        assert frames[-1].data["output"] == "I waited."
        assert [frame.data["status"] for frame in of_type(frames, "subagent.completed")] == ["completed"]
        await check(client, provider, session, frames)


async def test_what_still_runs_in_the_background_ends_before_its_parent(stage: Stage) -> None:
    async with steady(stage) as client:
        session = await client.session(toolsets=TOOLSETS)
        frames = await client.run(session, delegates(calls(("slow", {})), background=True, text="Enough."))
        (completed,) = of_type(frames, "subagent.completed")
        assert (completed.data["status"], completed.data["reason"]) == ("interrupted", "requested")
        assert [card["state"] for card in await cards(client, session)] == ["cancelled"]
        assert (frames[-1].data["reason"], frames[-1].data["output"]) == ("answer", "Enough.")
        assert runs.ended["slow"] == 0
        await check(client, stage.provider, session, frames)


async def test_an_openai_client_sees_no_more_of_a_sub_agent_than_the_answer(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=TOOLSETS)
        text = delegates(says("Found."), text="It was found.")
        stream = await openai.chat.completions.create(
            model="default", messages=[user(text)], stream=True, extra_body={"session_id": session}
        )
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        assert said == "It was found."
        answered = await openai.responses.create(model="default", input=text, extra_body={"session_id": session})
        assert answered.output_text == "It was found."
        assert len(of_children(stage.provider)) == 2
        stateless = await openai.chat.completions.create(model="default", messages=[user(text)], extra_body={"toolsets": ["delegation"]})
        assert stateless.choices[0].message.content == "It was found."
        assert len(of_children(stage.provider)) == 2, "a call without a session has no sub-agents"
