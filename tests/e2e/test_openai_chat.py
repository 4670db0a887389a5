"""Chat completions through the official client: it works by changing the base URL."""

import asyncio
import json
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from app.simulator import RawEnd, raw_script
from tests.e2e import wire
from tests.e2e.chains import Link, chain
from tests.e2e.harness import types
from tests.e2e.openai_clients import ASK_WEATHER, WEATHER, finish_of, openai_of, result, spoken, streamed_text, turn_of, user
from tests.e2e.prefix import prefix_breaks
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
SYSTEM: Any = {"role": "system", "content": "Be brief."}


async def test_a_plain_call_is_one_model_call_with_its_own_messages(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        answer = await openai.chat.completions.create(
            model="sim-text", messages=[SYSTEM, user('[[sim text="Hello there."]] hi')], temperature=0.5, user="somebody", seed=7
        )
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello there.", "stop")
        assert choice.message.tool_calls is None
        assert (answer.object, answer.model) == ("chat.completion", "sim-text")
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
        (request,) = stage.provider.requests
        assert [message["role"] for message in request.body["messages"]] == ["system", "user"]
        assert "tools" not in request.body
        assert request.problems == ()


async def test_the_turn_behind_a_call_can_be_read_like_any_other(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        raw = await openai.chat.completions.with_raw_response.create(model="default", messages=[user("[[sim tokens=3]] hi")])
        turn_id = raw.headers["x-turn-id"]
        assert raw.headers["location"] == f"/turns/{turn_id}"
        assert raw.headers["x-request-id"]
        assert turn_of(raw.parse().id) == turn_id
        turn = await client.get(turn_id)
        assert (turn["session_id"], turn["status"], turn["reason"]) == (None, "completed", "answer")
        frames = await client.replay(turn_id)
        assert types(frames) == ["turn.started", "iteration.started", "message.delta", "message.completed", "turn.completed"]
        assert frames[0].data["session_id"] is None
        assert frames[-1].data["session_id"] is None


async def test_a_stream_is_chunks_usage_and_done(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stream = await openai.chat.completions.create(
            model="sim-text",
            messages=[user("[[sim tokens=5 reasoning=2]] hi")],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert streamed_text(chunks) == "the river carried a small"
        assert finish_of(chunks) == "stop"
        assert [chunk.choices for chunk in chunks].count([]) == 1
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 7
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        thought = [chunk.choices[0].delta.model_extra for chunk in chunks[:-1]]
        assert "".join((extra or {}).get("reasoning_content", "") for extra in thought) == "the river"


async def test_the_bytes_of_a_stream_are_data_lines_alone(stage: Stage) -> None:
    async with stage.client() as client:
        body = {"messages": [user("[[sim tokens=2]] hi")], "stream": True}
        async with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache, no-transform"
            assert response.headers["x-accel-buffering"] == "no"
            blocks = (await response.aread()).split(b"\n\n")
        assert blocks.pop() == b""
        assert blocks.pop() == b"data: [DONE]"
        assert all(block.startswith(b"data: {") and b"\n" not in block for block in blocks)
        first = json.loads(blocks[0].removeprefix(b"data: "))
        assert set(first) == {"id", "object", "created", "model", "system_fingerprint", "choices"}


async def test_tools_of_the_client_end_the_call_and_come_back_with_the_next(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        first = await openai.chat.completions.create(model="default", messages=[user(ASK_WEATHER)], tools=[WEATHER])
        (choice,) = first.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})
        turn = await client.get(turn_of(first.id))
        assert (turn["status"], turn["reason"]) == ("completed", "tool_calls")
        second = await openai.chat.completions.create(
            model="default", messages=[user(ASK_WEATHER), spoken(choice.message), result(call.id, "rain")], tools=[WEATHER]
        )
        assert second.choices[0].message.content == "It rains."
        assert [request.problems for request in stage.provider.requests] == [(), ()]
        sent = stage.provider.requests[1].body["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert sent[2] == {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        assert stage.provider.requests[1].body["tools"] == [WEATHER]


async def test_parallel_calls_stream_as_deltas_with_their_places(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        text = '[[sim tool=weather args={"city":"Bern$call"} parallel=3 preamble="Let me see."]] Where does it rain?'
        stream = await openai.chat.completions.create(model="default", messages=[user(text)], tools=[WEATHER], stream=True)
        chunks = [chunk async for chunk in stream]
        assert streamed_text(chunks) == "Let me see."
        assert finish_of(chunks) == "tool_calls"
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert [call.index for call in calls] == [0, 1, 2]
        assert len({call.id for call in calls}) == 3
        assert [json.loads(call.function.arguments or "") for call in calls if call.function] == [{"city": f"Bern{n}"} for n in (1, 2, 3)]


async def test_our_own_tools_run_in_the_gateway_when_they_are_asked_for(stage: Stage) -> None:
    ask = '[[sim tool=lookup args={"q":"x"} preamble="Wait." text="Found."]] look'
    async with stage.client() as client, openai_of(client) as openai:
        whole = await openai.chat.completions.create(model="default", messages=[user(ask)], extra_body={"toolsets": ["operator"]})
        assert whole.choices[0].message.content == "Found."
        assert whole.choices[0].finish_reason == "stop"
        stream = await openai.chat.completions.create(
            model="default", messages=[user(ask)], extra_body={"toolsets": ["operator"]}, stream=True
        )
        assert streamed_text([chunk async for chunk in stream]) == "Wait.\n\nFound."
        assert types(await client.replay(turn_of(whole.id))).count("tool.completed") == 1


async def test_a_reply_that_mixes_our_tools_with_the_clients_goes_on(stage: Stage) -> None:
    calls = '[{"name":"lookup","arguments":{"q":"a"}},{"name":"weather","arguments":{"city":"b"}}]'
    async with stage.client() as client, openai_of(client) as openai:
        answer = await openai.chat.completions.create(
            model="default",
            messages=[user(f'[[sim calls={calls} text="So."]] both')],
            tools=[WEATHER],
            extra_body={"toolsets": ["operator"]},
        )
        assert answer.choices[0].message.content == "So."
        outputs = [message["content"] for message in stage.provider.requests[1].body["messages"] if message["role"] == "tool"]
        assert outputs[0] == "found a"
        assert outputs[1].startswith("Not run: this tool runs at the client")


async def test_options_reach_the_provider(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        await openai.chat.completions.create(
            model="default",
            messages=[user("[[sim tokens=2]] hi")],
            tools=[WEATHER],
            tool_choice="none",
            temperature=0.25,
            top_p=0.5,
            stop=["END"],
            max_tokens=99,
            parallel_tool_calls=False,
        )
        body = stage.provider.requests[0].body
        sent = {name: body.get(name) for name in ("tool_choice", "temperature", "top_p", "stop", "max_tokens", "parallel_tool_calls")}
        assert sent == {
            "tool_choice": "none",
            "temperature": 0.25,
            "top_p": 0.5,
            "stop": ["END"],
            "max_tokens": 99,
            "parallel_tool_calls": False,
        }


async def test_images_are_passed_on(stage: Stage) -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
    content: Any = [{"type": "text", "text": "[[sim tokens=2]] what is this?"}, picture]
    async with stage.client() as client, openai_of(client) as openai:
        await openai.chat.completions.create(model="default", messages=[{"role": "user", "content": content}])
        assert stage.provider.requests[0].body["messages"][0]["content"][1] == picture


async def test_an_answer_that_was_cut_says_so(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        for finish in ("length", "content_filter"):
            text = f"[[sim tokens=3 finish={finish}]] go on"
            answer = await openai.chat.completions.create(model="default", messages=[user(text)], max_tokens=3)
            assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("the river carried", finish)
            stream = await openai.chat.completions.create(model="default", messages=[user(text)], max_tokens=3, stream=True)
            chunks = [chunk async for chunk in stream]
            assert (streamed_text(chunks), finish_of(chunks)) == ("the river carried", finish)


async def test_a_refusal_is_an_answer(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        answer = await openai.chat.completions.create(model="default", messages=[user('[[sim refusal="I will not."]] do it')])
        message = answer.choices[0].message
        assert (message.content, message.refusal, answer.choices[0].finish_reason) == (None, "I will not.", "stop")
        stream = await openai.chat.completions.create(model="default", messages=[user('[[sim refusal="I will not."]]')], stream=True)
        chunks = [chunk async for chunk in stream]
        assert (streamed_text(chunks), finish_of(chunks)) == ("I will not.", "stop")
        assert [chunk.choices[0].delta.refusal for chunk in chunks if chunk.choices[0].delta.refusal] == ["I will not."]


async def test_the_end_names_the_model_that_answered(stage: Stage) -> None:
    """Also after a fallback in the middle of a stream, whose chunks named the model that was asked first."""
    links = (Link(url=stage.provider.base_url), Link(url=stage.backup.base_url, model="sim-echo"))
    async with chain(stage, *links) as client, openai_of(client) as openai:
        stage.provider.play(*['text="alpha beta gamma" cut_after=2'] * 2)
        stage.backup.play('text="alpha beta gamma"')
        stream = await openai.chat.completions.create(model="default", messages=[user("go")], stream=True)
        chunks = [chunk async for chunk in stream]
        assert streamed_text(chunks) == "alpha beta gamma"
        assert (chunks[0].model, chunks[-1].model) == ("sim-text", "sim-echo")


async def test_a_model_of_the_chain_is_asked_first(stage: Stage) -> None:
    async with stage.client(stage.provider.base_url, stage.backup.base_url, model="sim-echo") as client, openai_of(client) as openai:
        assert [model.id for model in (await openai.models.list()).data] == ["sim-echo", "default"]
        assert (await openai.models.retrieve("sim-echo")).owned_by == "p1"
        answer = await openai.chat.completions.create(model="sim-echo", messages=[user("say it")])
        assert (answer.choices[0].message.content, answer.model) == ("say it", "sim-echo")


async def test_a_repeated_call_with_its_key_is_the_same_turn(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        create = openai.chat.completions.with_raw_response.create
        key = {"Idempotency-Key": "k-1"}
        first = await create(model="default", messages=[user("[[sim tokens=3]] hi")], extra_headers=key)
        again = await create(model="default", messages=[user("[[sim tokens=3]] hi")], extra_headers=key)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.parse() == first.parse()
        assert len(stage.provider.requests) == 1
        other = await client.http.post("/v1/chat/completions", json={"messages": [user("else")]}, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_mismatch")
        unread = {"model": "default", "messages": [user("[[sim tokens=3]] hi")], "seed": 7}
        other = await client.http.post("/v1/chat/completions", json=unread, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_mismatch"), (
            "a parameter that is not looked at counts"
        )
        elsewhere = await client.http.post("/v1/responses", json={"input": "[[sim tokens=1]]"}, headers=key)
        assert elsewhere.status_code == 200


async def test_the_attempt_after_a_failure_goes_on_silently_when_it_repeats_the_text(stage: Stage) -> None:
    text = 'text="alpha beta gamma delta epsilon zeta"'
    async with stage.client(stage.provider.base_url, stage.backup.base_url) as client, openai_of(client) as openai:
        stage.provider.play(f"{text} drop_after=3 pace_ms=30")
        stream = await openai.chat.completions.create(model="default", messages=[user(f"[[sim {text}]] go")], stream=True)
        chunks = [chunk async for chunk in stream]
        assert streamed_text(chunks) == "alpha beta gamma delta epsilon zeta"
        assert finish_of(chunks) == "stop"
        assert "attempt.reset" in types(await client.replay(turn_of(chunks[0].id)))


async def test_as_a_whole_an_answer_is_that_of_the_attempt_that_succeeded(stage: Stage) -> None:
    async with stage.client(stage.provider.base_url, stage.backup.base_url) as client, openai_of(client) as openai:
        stage.provider.play('text="alpha beta gamma" drop_after=2')
        answer = await openai.chat.completions.create(model="default", messages=[user('[[sim text="Another text."]] go')])
        assert answer.choices[0].message.content == "Another text."


async def test_many_calls_at_once_are_answered_each_on_its_own(stage: Stage) -> None:
    async with stage.client(model="sim-echo") as client, openai_of(client) as openai:
        answers = await asyncio.gather(
            *(openai.chat.completions.create(model="default", messages=[user(f"number {index}")]) for index in range(20))
        )
        assert [answer.choices[0].message.content for answer in answers] == [f"number {index}" for index in range(20)]


async def test_a_long_answer_comes_whole(stage: Stage) -> None:
    long = "x" * 70_000
    async with stage.client() as client, openai_of(client) as openai:
        for stream in (False, True):
            stage.provider.play(raw_script(wire.chunk({"content": long}) + wire.chunk(finish="stop") + wire.DONE, end=RawEnd.COMPLETE))
            body: Any = {"model": "default", "messages": [user("long")]}
            if stream:
                chunks: list[ChatCompletionChunk] = [chunk async for chunk in await openai.chat.completions.create(**body, stream=True)]
                assert streamed_text(chunks) == long
            else:
                assert (await openai.chat.completions.create(**body)).choices[0].message.content == long


async def test_the_client_without_asyncio_works_too(stage: Stage) -> None:
    def talk(url: str, key: str) -> tuple[str | None, str]:
        with OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0) as openai:
            whole = openai.chat.completions.create(model="default", messages=[user("[[sim tokens=2]] hi")])
            stream = openai.chat.completions.create(model="default", messages=[user("[[sim tokens=2]] hi")], stream=True)
            return whole.choices[0].message.content, streamed_text(list(stream))

    async with stage.client() as client:
        key = client.http.headers["authorization"].removeprefix("Bearer ")
        assert await asyncio.to_thread(talk, stage.replica.url, key) == ("the river", "the river")


async def test_reasoning_goes_back_with_its_calls_to_a_model_that_wants_it(stage: Stage) -> None:
    link = Link(url=stage.provider.base_url, model="deepseek-chat")
    async with chain(stage, link) as client, openai_of(client) as openai:
        session = await client.session()
        await client.run(session, '[[sim reasoning=2 tool=lookup args={"q":"x"} rounds=2 text="So."]] look')
        await client.run(session, "[[sim tokens=2]] and?")
        *_, last = stage.provider.requests
        said = [message for message in last.body["messages"] if message["role"] == "assistant"]
        assert [message.get("reasoning_content") for message in said] == ["the river", "the river", None]
        assert prefix_breaks(stage.provider.requests) == []

        ask = user('[[sim reasoning=2 tool=weather args={"city":"Bern"} text="It rains."]] hi')
        first = (await openai.chat.completions.create(model="default", messages=[ask], tools=[WEATHER])).choices[0].message
        assert first.tool_calls is not None
        conversation = [ask, spoken(first), result(first.tool_calls[0].id, "rain")]
        await openai.chat.completions.create(model="default", messages=conversation, tools=[WEATHER])
        *_, last = stage.provider.requests
        assert last.body["messages"][1]["reasoning_content"] == "the river", "as the client sent it"
        assert last.problems == ()
