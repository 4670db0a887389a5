"""Tool calls as they are bounded, recorded, kept whole, and shown without secrets: of operators, webhooks and clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.domain.tenant_tools import WebhookToolSpec
from app.domain.tenants import TenantChange
from app.simulator.server import Simulator
from tests.e2e import secret_tools
from tests.e2e.harness import ADMIN_KEY, OTHER_KEY, Client, Replica, text_of
from tests.e2e.operator_tools import runs
from tests.e2e.scenes import TOOL_MODULES, assert_goes_on, first_turn_id, of_type, opened
from tests.e2e.waiting import answer, asks_for, decides, gives, post, results_sent, turn_of, wait_for
from tests.e2e.webhook_process import SECRET, webhook_process

MODULES = f"{TOOL_MODULES},tests.e2e.approval_tools,{secret_tools.MODULE}"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
HIDDEN = "hunter2-4711"
LOGIN = ("login", {"user": "ann", "password": HIDDEN})
CLIENT_LOGIN: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "sign",
        "description": "Signs at the client.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}, "text": {"type": "string"}}},
    },
}


@pytest.fixture
async def stage(database_url: str, provider: Simulator) -> AsyncIterator[tuple[Replica, Client]]:
    async with opened(database_url, provider, tool_modules=MODULES, tool_pool_size=4, outbound_allow="127.0.0.0/8") as found:
        yield found


@pytest.fixture
def client(stage: tuple[Replica, Client]) -> Client:
    return stage[1]


async def test_every_call_is_recorded_with_how_it_ended(client: Client, provider: Simulator) -> None:
    wanted: tuple[tuple[str, dict[str, object]], ...] = (("lookup", {"q": "z"}), ("boom", {}), ("lookup", {"q": 7}), ("no_such_thing", {}))
    frames = await client.run(await client.session(), asks_for(*wanted))
    calls = (await client.get(first_turn_id(frames)))["tool_calls"]
    assert [(call["tool_call_id"], call["name"], call["toolset"], call["outcome"]) for call in calls] == [
        ("c0", "lookup", "operator", "ok"),
        ("c1", "boom", "operator", "error"),
        ("c2", "lookup", "operator", "refused"),
        ("c3", "no_such_thing", None, "refused"),
    ]
    assert calls[0]["arguments"] == '{"q":"z"}'
    assert calls[0]["started_at"] is not None
    texts = [(await client.http.get(call["output_url"])).text for call in calls]
    assert texts == [output for _, output in results_sent(provider)]


async def test_an_interrupted_call_is_recorded_as_such(client: Client) -> None:
    session_id = await client.session()
    async with client.turn(session_id, asks_for(("slow", {}), LOGIN)) as stream:
        await stream.until("tool.completed")
        await runs.wait_begun("slow")
        turn_id = stream.frames[0].data["turn_id"]
        await client.http.delete(f"/turns/{turn_id}")
        await stream.read_to_end()
    calls = (await client.get(turn_id))["tool_calls"]
    assert [(call["name"], call["outcome"], call["started_at"] is None) for call in calls] == [
        ("slow", "interrupted", False),
        ("login", "ok", False),
    ]


async def test_a_tool_that_takes_too_long_is_recorded_as_timed_out(database_url: str, provider: Simulator) -> None:
    async with opened(database_url, provider, tool_timeout_s=0.05) as (_, client):
        frames = await client.run(await client.session(), asks_for(("slow", {})))
        (call,) = (await client.get(first_turn_id(frames)))["tool_calls"]
    assert call["outcome"] == "timeout"


async def test_a_cut_result_is_kept_whole_and_only_for_its_tenant(stage: tuple[Replica, Client], provider: Simulator) -> None:
    running, client = stage
    session_id = await client.session()
    frames = await client.run(session_id, asks_for(("giant", {"size": 300_000})))
    (event,) = of_type(frames, "tool.completed")
    (sent,) = (output for _, output in results_sent(provider))
    assert len(sent) <= 100_000
    assert sent.startswith("HEAD")
    assert sent.endswith("TAIL")
    assert event.data["output_truncated"]
    whole = await client.http.get(event.data["output_url"])
    assert (len(whole.text), whole.headers["content-type"]) == (300_000, "text/plain; charset=utf-8")
    async with running.client(OTHER_KEY) as other:
        assert (await other.http.get(event.data["output_url"])).status_code == 404
        unknown = await other.http.get("/turns/turn_00000000000000000000000000/tool_results/c0")
        assert unknown.status_code == 404
    assert (await client.http.get(f"/turns/{first_turn_id(frames)}/tool_results/nobody")).status_code == 404
    await assert_goes_on(client, provider, session_id)


async def test_a_stateless_call_keeps_what_its_events_cannot_hold(client: Client) -> None:
    said = asks_for(("giant", {"size": 80_000}))
    body = {"model": "default", "toolsets": ["operator"], "messages": [{"role": "user", "content": said}]}
    response = await client.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    frames = await client.replay(response.headers["location"].rpartition("/")[2])
    (event,) = of_type(frames, "tool.completed")
    assert len((await client.http.get(event.data["output_url"])).text) == 80_000


async def test_a_repeated_call_id_names_each_result_by_its_place(client: Client) -> None:
    session_id = await client.session()
    first = await client.run(session_id, "[[sim tool=now rounds=2]]")
    calls = (await client.get(first_turn_id(first)))["tool_calls"]
    assert len(calls) == 2
    assert len({call["output_url"] for call in calls}) == 2
    assert [(await client.http.get(call["output_url"])).status_code for call in calls] == [200, 200]


def shows_nothing(*shown: object) -> None:
    for one in shown:
        assert HIDDEN not in json.dumps(one)


async def test_an_operators_secret_is_in_no_event_no_log_and_no_turn(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    session_id = await client.session()
    misfit = ("login", {"user": 7, "password": HIDDEN})
    unknown = ("enter_building", {"password": HIDDEN})
    with caplog.at_level("DEBUG"):
        frames = await client.run(session_id, asks_for(LOGIN, misfit, unknown, ("login", {"user": "ann", "password": [HIDDEN]})))
    assert [frame.data["is_error"] for frame in of_type(frames, "tool.completed")].count(False) == 1
    turn = await client.get(first_turn_id(frames))
    shows_nothing([frame.data for frame in frames], turn)
    assert turn["tool_calls"][0]["arguments"] == '{"user":"ann","password":"***"}'
    assert of_type(frames, "tool.started")[0].data["arguments"] == '{"user":"ann","password":"***"}'
    assert HIDDEN not in "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("app"))
    said = [message for message in await client.messages(session_id) if message.get("tool_calls")]
    assert HIDDEN in said[0]["tool_calls"][0]["function"]["arguments"], "the model's own history keeps it"


async def test_a_secret_is_not_shown_to_who_approves_and_the_tool_gets_it(client: Client, provider: Simulator) -> None:
    frames = await wait_for(client, await client.session(), ("unlock", {"pin": HIDDEN}))
    turn_id = turn_of(frames)
    waiting = await client.get(turn_id)
    assert waiting["requires_action"]["calls"][0]["arguments"] == '{"pin":"***"}'
    rest = await answer(client, turn_id, decides("c0", "approve"))
    assert results_sent(provider) == [("c0", f"unlocked with {len(HIDDEN)} digits")]
    turn = await client.get(turn_id)
    shows_nothing([frame.data for frame in [*frames, *rest]], waiting, turn)
    assert [(call["name"], call["outcome"]) for call in turn["tool_calls"]] == [("unlock", "ok")]


async def test_a_secret_of_a_clients_tool_is_in_the_transcript_alone(client: Client) -> None:
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("sign", {"key": HIDDEN, "text": "t"}), tools=[CLIENT_LOGIN])
    waiting = await client.get(turn_of(frames))
    assert waiting["requires_action"]["calls"][0]["arguments"] == '{"key":"***","text":"t"}'
    rest = await answer(client, turn_of(frames), gives("c0", "signed"))
    turn = await client.get(turn_of(frames))
    shows_nothing([frame.data for frame in [*frames, *rest]], waiting, turn)
    assert [(call["toolset"], call["outcome"]) for call in turn["tool_calls"]] == [("client", "ok")]
    assert HIDDEN in json.dumps(await client.messages(session_id))


async def test_over_the_openai_facade_a_client_gets_its_call_whole(client: Client) -> None:
    said = asks_for(("sign", {"key": HIDDEN}))
    body = {"model": "default", "tools": [CLIENT_LOGIN], "messages": [{"role": "user", "content": said}]}
    answered = (await client.http.post("/v1/chat/completions", json=body)).json()
    assert HIDDEN in answered["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]


async def test_a_denied_call_and_an_expired_wait_are_recorded(client: Client) -> None:
    frames = await wait_for(client, await client.session(), ("unlock", {"pin": HIDDEN}))
    await answer(client, turn_of(frames), decides("c0", "deny"))
    assert (await client.get(turn_of(frames)))["tool_calls"][0]["outcome"] == "refused"
    session_id = await client.session()
    frames = await wait_for(client, session_id, ("sign", {"key": HIDDEN}), ("unlock", {"pin": HIDDEN}), tools=[CLIENT_LOGIN])
    await post(client, turn_of(frames), gives("c0", "signed"))
    await client.http.delete(f"/turns/{turn_of(frames)}")
    await client.replay(turn_of(frames))
    turn = await client.get(turn_of(frames))
    assert [(call["name"], call["outcome"]) for call in turn["tool_calls"]] == [("sign", "ok"), ("unlock", "refused")]
    shows_nothing(turn)


async def test_a_webhooks_calls_are_recorded_and_its_secrets_hidden(stage: tuple[Replica, Client], provider: Simulator) -> None:
    running, client = stage
    async with webhook_process() as hooks:
        tool = WebhookToolSpec(
            name="answer",
            description="Answers.",
            url=f"{hooks.base_url}/broken",
            parameters={"type": "object", "properties": {"q": {"type": "string"}, "key": {"type": "string"}}},
            secret=SECRET,
            secret_arguments=("key",),
        )
        await running.gateway.tenants.change("acme", TenantChange(tools=(tool,)))
        session_id = await client.session(toolsets=["webhooks"])
        frames = await client.run(session_id, asks_for(("answer", {"q": "a", "key": HIDDEN})))
        assert (await hooks.next_call())["body"]["arguments"]["key"] == HIDDEN
    (call,) = (await client.get(first_turn_id(frames)))["tool_calls"]
    assert (call["toolset"], call["outcome"], call["arguments"]) == ("webhooks", "error", '{"q":"a","key":"***"}')
    shows_nothing([frame.data for frame in frames])
    await assert_goes_on(client, provider, session_id)


async def test_a_name_that_is_nearly_right_is_run_and_an_ambiguous_one_is_not(client: Client, provider: Simulator) -> None:
    session_id = await client.session()
    orders = [{"type": "function", "function": {"name": name}} for name in ("place_order", "place_orders")]
    wanted: tuple[tuple[str, dict[str, object]], ...] = (("Lookup_tool", {"q": "z"}), ("place_ordr", {}), ("look-up", {"q": "y"}))
    frames = await client.run(session_id, asks_for(*wanted), tools=orders)
    outputs = [output for _, output in results_sent(provider)]
    assert outputs == [
        "found z",
        "There is no tool 'place_ordr'. Did you mean place_order or place_orders? Call it by its name.",
        "found y",
    ]
    calls = (await client.get(first_turn_id(frames)))["tool_calls"]
    assert [(call["name"], call["outcome"]) for call in calls] == [("lookup", "ok"), ("place_ordr", "refused"), ("lookup", "ok")]
    await assert_goes_on(client, provider, session_id)


async def test_the_pool_bounds_all_turns_and_is_resized_under_way(stage: tuple[Replica, Client]) -> None:
    _, client = stage
    crowd = [("meet", {"party": "all", "size": 12})] * 6
    assert (await client.http.get("/admin/tools/pool", headers=ADMIN)).json() == {"size": 4, "running": 0, "waiting": 0}
    sessions = [await client.session(), await client.session()]
    turns = [asyncio.create_task(client.run(session_id, asks_for(*crowd))) for session_id in sessions]
    await runs.wait_begun("meet all", 4)
    async with asyncio.timeout(5):
        while (now := (await client.http.get("/admin/tools/pool", headers=ADMIN)).json())["waiting"] < 8:
            await asyncio.sleep(0.01)
    assert (now, runs.begun["meet all"]) == ({"size": 4, "running": 4, "waiting": 8}, 4)
    grown = await client.http.put("/admin/tools/pool", headers=ADMIN, json={"size": 12})
    assert (grown.status_code, grown.json()["size"]) == (200, 12)
    for frames in await asyncio.gather(*turns):
        assert text_of(frames) == "Done."
        assert [frame.data["output"] for frame in of_type(frames, "tool.completed")] == ["met all"] * 6
    refused = [await client.http.put("/admin/tools/pool", headers=ADMIN, json=body) for body in ({"size": 0}, {"size": 5_000}, {})]
    assert [response.status_code for response in refused] == [422, 422, 422]
    assert (await client.http.put("/admin/tools/pool", json={"size": 5})).status_code in (401, 403)


async def test_two_hundred_calls_of_one_answer_run_together(client: Client) -> None:
    await client.http.put("/admin/tools/pool", headers=ADMIN, json={"size": 200})
    frames = await client.run(await client.session(), asks_for(*[("meet", {"party": "crowd", "size": 200})] * 200))
    assert [frame.data["output"] for frame in of_type(frames, "tool.completed")] == ["met crowd"] * 200
