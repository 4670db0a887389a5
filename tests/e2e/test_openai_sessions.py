"""Calls of OpenAI's clients that are turns of our sessions."""

import json
from itertools import product
from typing import Any

import openai as sdk
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall

from tests.e2e.openai_clients import ASK_WEATHER, FLAT_WEATHER, WEATHER, openai_of, result, spoken, turn_of, user
from tests.e2e.scenes import assert_goes_on
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


def call_of(message: ChatCompletionMessage) -> str:
    """The id of the message's one tool call."""
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    return call.id


async def test_a_call_adds_what_is_new_in_it_to_the_session(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(system_prompt="Session's own.", toolsets=[])
        first = await openai.chat.completions.create(
            model="default",
            messages=[{"role": "system", "content": "Client's."}, user('[[sim text="One."]] first')],
            extra_body={"session_id": session},
        )
        await openai.chat.completions.create(
            model="default",
            messages=[user('[[sim text="One."]] first'), spoken(first.choices[0].message), user('[[sim text="Two."]] second')],
            extra_headers={"X-Session-Id": session},
        )
        assert [(message["role"], message["content"]) for message in stage.provider.requests[1].body["messages"]] == [
            ("system", "Session's own."),
            ("user", '[[sim text="One."]] first'),
            ("assistant", "One."),
            ("user", '[[sim text="Two."]] second'),
        ]
        assert [message["role"] for message in await client.messages(session)] == ["user", "assistant"] * 2
        assert (await client.get(turn_of(first.id)))["session_id"] == session
        await assert_goes_on(client, stage.provider, session)


async def test_a_session_has_its_own_tools_and_the_clients_beside_them(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=["operator"])
        await openai.chat.completions.create(
            model="default", messages=[user("[[sim tokens=1]]")], tools=[WEATHER], extra_body={"session_id": session}
        )
        names = [tool["function"]["name"] for tool in stage.provider.requests[0].body["tools"]]
        assert {"lookup", "weather"} <= set(names)
        assert names == sorted(names)


async def test_results_of_client_tools_come_with_the_next_call(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        bound: Any = {"session_id": session}
        first = await openai.chat.completions.create(model="default", messages=[user(ASK_WEATHER)], tools=[WEATHER], extra_body=bound)
        call_id = call_of(first.choices[0].message)
        assert [message["role"] for message in await client.messages(session)] == ["user", "assistant"]
        second = await openai.chat.completions.create(
            model="default", messages=[result(call_id, "rain")], tools=[WEATHER], extra_body=bound
        )
        assert second.choices[0].message.content == "It rains."
        stored = await client.messages(session)
        assert [(message["role"], message["content"]) for message in stored] == [
            ("user", ASK_WEATHER),
            ("assistant", ""),
            ("tool", "rain"),
            ("assistant", "It rains."),
        ]
        assert [request.problems for request in stage.provider.requests] == [(), ()]
        first_sent, second_sent = (request.body["messages"] for request in stage.provider.requests)
        assert second_sent[: len(first_sent)] == first_sent
        await assert_goes_on(client, stage.provider, session)


async def test_a_session_whose_results_never_come_goes_on(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        first = await openai.chat.completions.create(
            model="default", messages=[user(ASK_WEATHER)], tools=[WEATHER], extra_body={"session_id": session}
        )
        call_id = call_of(first.choices[0].message)
        sent = await assert_goes_on(client, stage.provider, session)
        assert [message["role"] for message in sent[1:]] == ["user", "assistant", "tool", "user"]
        assert sent[3]["tool_call_id"] == call_id
        before = await client.messages(session)
        for late in ([result(call_id, "rain")], [result(call_id, "rain"), user("there")]):
            with pytest.raises(sdk.BadRequestError, match="answers no call"):  # the model was told that there is no result
                await openai.chat.completions.create(model="default", messages=late, extra_body={"session_id": session})
        assert await client.messages(session) == before
        await assert_goes_on(client, stage.provider, session)


async def test_one_result_of_two_is_refused_and_both_can_follow(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        ask = '[[sim tool=weather args={"city":"$call"} parallel=2 text="Both."]] both'
        bound: Any = {"session_id": session}
        first = await openai.chat.completions.create(model="default", messages=[user(ask)], tools=[WEATHER], extra_body=bound)
        calls = first.choices[0].message.tool_calls
        assert calls is not None
        results = [result(call.id, "sun") for call in calls]
        with pytest.raises(sdk.BadRequestError, match="Every call needs its result"):
            await openai.chat.completions.create(model="default", messages=results[1:], tools=[WEATHER], extra_body=bound)
        both = await openai.chat.completions.create(model="default", messages=results, tools=[WEATHER], extra_body=bound)
        assert both.choices[0].message.content == "Both."
        await assert_goes_on(client, stage.provider, session)


async def test_results_that_are_sent_again_under_their_key_find_their_turn(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        bound: Any = {"extra_body": {"session_id": session}, "tools": [WEATHER], "model": "default"}
        first = await openai.chat.completions.create(messages=[user(ASK_WEATHER)], **bound)
        answer = result(call_of(first.choices[0].message), "rain")
        keyed: Any = {**bound, "extra_headers": {"Idempotency-Key": "k-1"}}
        twice = [await openai.chat.completions.create(messages=[answer], **keyed) for _ in range(2)]
        assert [turn_of(one.id) for one in twice] == [turn_of(twice[0].id)] * 2
        assert twice[1].choices[0].message.content == "It rains."
        assert len(stage.provider.requests) == 2
        with pytest.raises(sdk.BadRequestError, match="another body"):
            await openai.chat.completions.create(messages=[answer, user("more")], **keyed)


async def test_some_results_and_a_new_question_may_come_together(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        ask = '[[sim tool=weather args={"city":"$call"} parallel=2]] both'
        first = await openai.chat.completions.create(
            model="default", messages=[user(ask)], tools=[WEATHER], extra_body={"session_id": session}
        )
        calls = first.choices[0].message.tool_calls
        assert calls is not None
        await openai.chat.completions.create(
            model="default",
            messages=[spoken(first.choices[0].message), result(calls[1].id, "sun"), user("[[sim tokens=1]] never mind the first")],
            tools=[WEATHER],
            extra_body={"session_id": session},
        )
        sent = stage.provider.requests[1].body["messages"]
        results = [message["content"] for message in sent if message["role"] == "tool"]
        assert results[1] == "sun"
        assert "Interrupted" in results[0]
        assert stage.provider.requests[1].problems == ()


async def test_a_refused_call_leaves_no_results_behind(stage: Stage) -> None:
    """What a provider refuses leaves the context; the call that it was to answer stays answerable."""
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        bound: Any = {"session_id": session}
        first = await openai.chat.completions.create(model="default", messages=[user(ASK_WEATHER)], tools=[WEATHER], extra_body=bound)
        call_id = call_of(first.choices[0].message)
        stage.provider.play("status=400 error_message=no")
        with pytest.raises(sdk.APIStatusError):
            await openai.chat.completions.create(model="default", messages=[result(call_id, "bad")], tools=[WEATHER], extra_body=bound)
        again = await openai.chat.completions.create(model="default", messages=[result(call_id, "rain")], tools=[WEATHER], extra_body=bound)
        assert again.choices[0].message.content == "It rains."
        assert "bad" not in json.dumps(stage.provider.requests[-1].body)
        await assert_goes_on(client, stage.provider, session)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param([result("call_nobody_made", "x")], "answers no call", id="unknown call"),
        pytest.param([user("x"), {"role": "assistant", "content": "y"}], "nothing new", id="nothing new"),
    ],
)
async def test_what_adds_nothing_to_a_session_is_refused(stage: Stage, messages: list[Any], text: str) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session()
        with pytest.raises(sdk.BadRequestError, match=text):
            await openai.chat.completions.create(model="default", messages=messages, extra_body={"session_id": session})
        assert await client.messages(session) == []


async def test_a_busy_session_is_a_conflict(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session()
        async with client.turn(session, "[[sim tokens=200 pace_ms=20]]") as running:
            turn_id = (await running.until("message.delta")).data["turn_id"]
            with pytest.raises(sdk.ConflictError) as raised:
                await openai.chat.completions.create(model="default", messages=[user("x")], extra_body={"session_id": session})
            assert raised.value.code == "turn_in_progress"
            assert raised.value.response.headers["location"] == f"/turns/{turn_id}"
            await client.http.delete(f"/turns/{turn_id}")


async def test_another_tenants_session_is_an_unknown_one(stage: Stage) -> None:
    async with stage.client() as owner, stage.client() as stranger, openai_of(stranger) as openai:
        session = await owner.session()
        response = await openai_create_response(owner, session)
        names = (session, "sess_00000000000000000000000000", "nonsense")
        for name, message in product(names, (user("x"), result("call_1", "x"))):
            with pytest.raises(sdk.NotFoundError):
                await openai.chat.completions.create(model="default", messages=[message], extra_body={"session_id": name})
        with pytest.raises(sdk.NotFoundError):
            await openai.responses.create(model="default", input="x", previous_response_id=response)
        assert len(await owner.messages(session)) == 2


async def openai_create_response(client: Any, session: str) -> str:
    """A response in a session; its id."""
    answer = await client.http.post("/v1/responses", json={"input": "[[sim tokens=1]]", "conversation": session})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def test_responses_go_on_in_their_conversation(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session(toolsets=[])
        first = await openai.responses.create(model="default", input=ASK_WEATHER, tools=[FLAT_WEATHER], conversation=session)
        assert first.conversation is not None
        assert first.conversation.id == session
        call = first.output[0]
        assert isinstance(call, ResponseFunctionToolCall)
        second = await openai.responses.create(
            model="default",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
            tools=[FLAT_WEATHER],
        )
        assert (second.output_text, second.previous_response_id) == ("It rains.", first.id)
        third = await openai.responses.create(model="default", previous_response_id=second.id, input='[[sim text="Bye."]] bye')
        assert third.output_text == "Bye."
        assert [message["role"] for message in await client.messages(session)] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]


async def test_a_response_of_no_session_cannot_be_gone_on_from(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        first = await openai.responses.create(model="default", input="[[sim tokens=1]] x")
        with pytest.raises(sdk.BadRequestError, match="belongs to no session") as raised:
            await openai.responses.create(model="default", input="y", previous_response_id=first.id)
        assert raised.value.param == "previous_response_id"
        for unknown in ("resp_00000000000000000000000000", "resp_x"):
            with pytest.raises(sdk.NotFoundError):
                await openai.responses.create(model="default", input="y", previous_response_id=unknown)


async def test_the_model_of_a_call_is_for_its_turn_alone(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        session = await client.session()
        await openai.chat.completions.create(model="sim-text", messages=[user("[[sim tokens=1]]")], extra_body={"session_id": session})
        assert (await client.http.get(f"/sessions/{session}")).json()["model"] is None
