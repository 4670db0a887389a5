"""Responses through the official client."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem, ResponseTextDeltaEvent

from tests.e2e.harness import types
from tests.e2e.openai_clients import ASK_WEATHER, FLAT_WEATHER, openai_of, turn_of
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_response_is_an_answer_with_its_counts(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        response = await openai.responses.create(
            model="sim-text", input='[[sim text="Hello there."]] hi', instructions="Be brief.", max_output_tokens=50, metadata={"a": "b"}
        )
        assert (response.output_text, response.status, response.error) == ("Hello there.", "completed", None)
        assert (response.instructions, response.max_output_tokens, response.metadata) == ("Be brief.", 50, {"a": "b"})
        assert response.usage is not None
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0
        (message,) = response.output
        assert isinstance(message, ResponseOutputMessage)
        assert message.status == "completed"
        body = stage.provider.requests[0].body
        assert [(message["role"], message["content"]) for message in body["messages"]] == [
            ("system", "Be brief."),
            ("user", '[[sim text="Hello there."]] hi'),
        ]
        assert body["max_tokens"] == 50
        assert (await client.get(turn_of(response.id)))["metadata"] == {"a": "b"}


async def test_a_stream_tells_of_everything_in_order(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stream = await openai.responses.create(model="default", input="[[sim tokens=3]] hi", stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)) == "the river carried"
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "the river carried"


async def test_reasoning_is_an_item_before_its_message_streamed_or_not(stage: Stage) -> None:
    ask = '[[sim reasoning=2 tool=weather args={"city":"Bern"} preamble="Wait." text="It rains."]] hi'
    async with stage.client() as client, openai_of(client) as openai:
        whole = await openai.responses.create(model="default", input=ask, tools=[FLAT_WEATHER])
        stream = await openai.responses.create(model="default", input=ask, tools=[FLAT_WEATHER], stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events][2:10] == [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
            "response.output_item.added",
        ]
        last = events[-1]
        assert last.type == "response.completed"
        for response in (whole, last.response):
            assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
            thought = response.output[0]
            assert isinstance(thought, ResponseReasoningItem)
            assert [part.text for part in thought.summary] == ["the river"]
        conversation: list[Any] = [{"role": "user", "content": ask}, *(item.model_dump(exclude_none=True) for item in whole.output)]
        conversation.append({"type": "function_call_output", "call_id": whole.output[-1].call_id, "output": "rain"})  # type: ignore[union-attr]
        again = await openai.responses.create(model="default", input=conversation, tools=[FLAT_WEATHER])
        assert again.output_text == "It rains."


async def test_the_clients_own_accumulation_of_a_stream_works(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        tools: Any = [{**FLAT_WEATHER, "strict": True}]
        async with openai.responses.stream(model="default", input=ASK_WEATHER, tools=tools) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        (call,) = final.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"city": "Bern"}


async def test_events_have_their_names_and_no_ids(stage: Stage) -> None:
    async with stage.client() as client:
        body = {"input": "[[sim tokens=1]] hi", "stream": True}
        async with client.http.stream("POST", "/v1/responses", json=body) as response:
            blocks = (await response.aread()).split(b"\n\n")
        assert blocks.pop() == b""
        assert blocks.pop() == b"data: [DONE]"
        for block in blocks:
            event, data = block.split(b"\n")
            assert event.removeprefix(b"event: ").decode() == json.loads(data.removeprefix(b"data: "))["type"]


async def test_tools_of_the_client_are_items_and_come_back_as_items(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        conversation: list[Any] = [{"role": "user", "content": ASK_WEATHER.replace("tool=", 'preamble="Let me see." tool=')}]
        first = await openai.responses.create(model="default", input=conversation, tools=[FLAT_WEATHER])
        assert [item.type for item in first.output] == ["message", "function_call"]
        assert first.status == "completed"
        call = first.output[1]
        assert isinstance(call, ResponseFunctionToolCall)
        conversation += [item.model_dump(exclude_none=True) for item in first.output]
        conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        second = await openai.responses.create(model="default", input=conversation, tools=[FLAT_WEATHER])
        assert second.output_text == "It rains."
        sent = stage.provider.requests[1].body["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert sent[1]["content"] == "Let me see."
        assert stage.provider.requests[1].problems == ()


async def test_a_stream_of_calls_has_their_arguments(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stream = await openai.responses.create(model="default", input=ASK_WEATHER, tools=[FLAT_WEATHER], stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events][2:] == [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
        done = events[4]
        assert done.type == "response.function_call_arguments.done"
        assert json.loads(done.arguments) == {"city": "Bern"}


async def test_each_message_of_a_turn_is_an_item_streamed_or_not(stage: Stage) -> None:
    ask = '[[sim tool=lookup args={"q":"x"} preamble="Wait." text="Found."]] look'
    async with stage.client() as client, openai_of(client) as openai:
        whole = await openai.responses.create(model="default", input=ask, extra_body={"toolsets": ["operator"]})
        stream = await openai.responses.create(model="default", input=ask, extra_body={"toolsets": ["operator"]}, stream=True)
        last = [event async for event in stream][-1]
        assert last.type == "response.completed"
        for response in (whole, last.response):
            assert [item.type for item in response.output] == ["message", "message"]
            assert response.output_text == "Wait.Found."
        assert types(await client.replay(turn_of(whole.id))).count("tool.completed") == 1


async def test_an_answer_that_was_cut_is_incomplete(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        for finish, reason in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
            text = f"[[sim tokens=3 finish={finish}]] go on"
            whole = await openai.responses.create(model="default", input=text, max_output_tokens=16)
            stream = await openai.responses.create(model="default", input=text, max_output_tokens=16, stream=True)
            last = [event async for event in stream][-1]
            assert last.type == "response.incomplete"
            for response in (whole, last.response):
                assert response.status == "incomplete"
                assert response.incomplete_details is not None
                assert response.incomplete_details.reason == reason
                assert response.output_text == "the river carried"


async def test_a_refusal_is_a_part_of_its_own(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        ask = '[[sim reasoning=2 refusal="I will not."]] do it'
        whole = await openai.responses.create(model="default", input=ask)
        last = [event async for event in await openai.responses.create(model="default", input=ask, stream=True)][-1]
        assert last.type == "response.completed"
        for response in (whole, last.response):
            thought, item = response.output
            assert (thought.type, item.type) == ("reasoning", "message")
            assert isinstance(item, ResponseOutputMessage)
            assert [(part.type, part.refusal) for part in item.content if part.type == "refusal"] == [("refusal", "I will not.")]
            assert (response.status, response.output_text) == ("completed", "")


async def test_an_attempt_that_says_something_else_fails_the_response(stage: Stage) -> None:
    async with stage.client(stage.provider.base_url, stage.backup.base_url) as client, openai_of(client) as openai:
        stage.provider.play('text="alpha beta gamma delta" drop_after=3 pace_ms=30')
        stream = await openai.responses.create(model="default", input='[[sim text="Something else."]] go', stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        assert events[-1].response.status == "failed"
        assert events[-1].response.error is not None
        assert str(events[-1].response.error.code) == "answer_diverged"


async def test_images_and_formats_are_passed_on(stage: Stage) -> None:
    content: Any = [
        {"type": "input_text", "text": "[[sim tokens=2]] what is this?"},
        {"type": "input_image", "image_url": "https://example.test/a.png", "detail": "high"},
    ]
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    async with stage.client() as client, openai_of(client) as openai:
        await openai.responses.create(
            model="default",
            input=[{"role": "user", "content": content}],
            text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        )
        body = stage.provider.requests[0].body
        assert body["messages"][0]["content"][1] == {
            "type": "image_url",
            "image_url": {"url": "https://example.test/a.png", "detail": "high"},
        }
        assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
