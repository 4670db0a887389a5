"""What the official client raises, and when: before anything was said a status, afterwards an error in the stream."""

import asyncio
from typing import Any

import openai as sdk
import pytest
from openai import AsyncOpenAI

from app.domain.model import ApiMode
from tests.e2e import operator_tools
from tests.e2e.chains import CHAT, MESSAGES, RESPONSES, Link, chain, every_mode
from tests.e2e.openai_clients import finish_of, openai_of, streamed_text, turn_of, user
from tests.e2e.scenes import ended
from tests.e2e.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def chat(openai: AsyncOpenAI, text: str = "[[sim tokens=2]] hi", **more: Any) -> Any:
    """One call."""
    return await openai.chat.completions.create(**{"model": "default", "messages": [user(text)], **more})


async def read_to_error(stream: Any) -> tuple[list[Any], sdk.APIError]:
    """The chunks of a stream that fails in its middle, and the error."""
    chunks: list[Any] = []
    try:
        async for chunk in stream:
            chunks += [chunk]
    except sdk.APIError as error:
        return chunks, error
    raise AssertionError("the stream ended without an error")


async def test_a_bad_key_is_an_authentication_error(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client, api_key="agw_wrong-0123456789abcdef") as openai:
        with pytest.raises(sdk.AuthenticationError) as raised:
            await openai.models.list()
        assert raised.value.code == "invalid_api_key"
        assert raised.value.request_id


async def test_an_unknown_model_is_not_found(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        for ask in (chat(openai, model="gpt-none"), openai.models.retrieve("org/none"), openai.responses.create(model="x", input="y")):
            with pytest.raises(sdk.NotFoundError) as raised:
                await ask
            assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
        assert len(stage.provider.requests) == 0


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": 9}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].image_url.url"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"extra_body": {"session_id": "sess_a"}, "extra_headers": {"X-Session-Id": "sess_b"}}, "session_id"),
        ({"extra_body": {"toolsets": ["nothing"]}}, "toolsets"),
        ({"extra_body": {"session_id": 5}}, "session_id"),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_a_bad_request(stage: Stage, members: dict[str, Any], param: str) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        with pytest.raises(sdk.BadRequestError) as raised:
            await chat(openai, **members)
        assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")
        assert len(stage.provider.requests) == 0


@pytest.mark.parametrize(
    ("members", "param", "words"),
    [
        ({"input": []}, "input", "at least 1 item"),
        ({"input": " "}, "input", "Must not be empty"),
        ({"input": "x", "max_output_tokens": 15}, "max_output_tokens", "greater than or equal to 16"),
        (
            {
                "input": [
                    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "https://x.test/i"}]}
                ]
            },
            "input[0].output[0]",
            "Only text",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input", "message of the user"),
    ],
    ids=str,
)
async def test_what_a_response_cannot_be_made_of_is_a_bad_request(stage: Stage, members: dict[str, Any], param: str, words: str) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        with pytest.raises(sdk.BadRequestError) as raised:
            await openai.responses.create(**{"model": "default", **members})
        assert raised.value.param == param
        assert words in raised.value.message
        assert len(stage.provider.requests) == 0


@pytest.mark.parametrize(
    ("mode", "members", "param"),
    [
        (RESPONSES, {"stop": ["END"]}, "stop"),
        (MESSAGES, {"stop": "\n"}, "stop"),
        (MESSAGES, {"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=str,
)
async def test_what_the_provider_has_no_word_for_is_a_bad_request(stage: Stage, mode: ApiMode, members: dict[str, Any], param: str) -> None:
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode)) as client, openai_of(client) as openai:
        with pytest.raises(sdk.BadRequestError) as raised:
            await chat(openai, **members)
        assert raised.value.param == param
        assert len(stage.provider.requests) == 0


async def test_what_one_provider_has_no_word_for_is_asked_of_the_next(stage: Stage) -> None:
    links = (
        Link(url=stage.provider.base_url, mode=RESPONSES, model="first"),
        Link(url=stage.backup.base_url, mode=CHAT, model="second"),
    )
    async with chain(stage, *links) as client, openai_of(client) as openai:
        answer = await chat(openai, stop=["END"])
        assert answer.model == "second"
        (asked,) = stage.backup.requests
        assert (asked.body["stop"], len(stage.provider.requests)) == (["END"], 0)
        with pytest.raises(sdk.BadRequestError) as raised:
            await chat(openai, model="first", stop=["END"])
        assert raised.value.param == "stop"


async def test_an_effort_that_the_model_cannot_be_told_is_a_bad_request_where_the_call_has_it(stage: Stage) -> None:
    async with (
        chain(stage, Link(url=stage.provider.base_url, mode=MESSAGES, model="claude-sonnet-4-5")) as client,
        openai_of(client) as openai,
    ):
        with pytest.raises(sdk.BadRequestError) as raised:
            await openai.responses.create(model="default", input="x", reasoning={"effort": "low"})
        assert raised.value.param == "reasoning.effort"


@every_mode
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_text_that_a_filter_cut_is_none_of_an_answer(stage: Stage, mode: ApiMode, stream: bool) -> None:
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode)) as client, openai_of(client) as openai:
        ask = "[[sim tokens=3 finish=content_filter]] go on"
        answer = await chat(openai, ask, stream=stream)
        if stream:
            chunks = [chunk async for chunk in answer]
            assert (streamed_text(chunks), finish_of(chunks)) == ("the river carried", "content_filter")
        else:
            (choice,) = answer.choices
            assert (choice.message.content, choice.finish_reason) == ("the river carried", "content_filter")
        end = (await client.run(await client.session(), ask))[-1]
        assert (end.type, end.data["reason"], end.data["output"]) == ("turn.failed", "content_filtered", "the river carried")


@every_mode
async def test_a_refusal_in_words_is_one_whatever_the_protocol(stage: Stage, mode: ApiMode) -> None:
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode)) as client, openai_of(client) as openai:
        (choice,) = (await chat(openai, '[[sim refusal="I will not."]]')).choices
        assert (choice.message.content, choice.message.refusal, choice.finish_reason) == (None, "I will not.", "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_no_provider_is_unavailable_with_a_time_to_come_back(stage: Stage, stream: bool) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stage.provider.play("status=429 retry_after=400")
        with pytest.raises(sdk.InternalServerError) as raised:
            await chat(openai, stream=stream)
        error = raised.value
        assert (error.status_code, error.code, error.type) == (503, "provider_unavailable", "server_error")
        assert 390 <= int(error.response.headers["retry-after"]) <= 401
        turn = await client.get(error.response.headers["x-turn-id"])
        assert (turn["status"], turn["reason"]) == ("failed", "provider_unavailable")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_no_repeat_can_mend_is_not_repeated_by_clients(stage: Stage, stream: bool) -> None:
    async with stage.client() as client, openai_of(client, max_retries=2) as openai:
        stage.provider.play("status=401")
        with pytest.raises(sdk.InternalServerError) as raised:
            await chat(openai, stream=stream)
        assert raised.value.response.headers["x-should-retry"] == "false"
        assert len(stage.provider.requests) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_the_provider_calls_invalid_is_a_bad_request_in_its_words(stage: Stage, stream: bool) -> None:
    async with stage.client() as client, openai_of(client, max_retries=2) as openai:
        stage.provider.play('status=400 error_message="top_k must be positive"')
        with pytest.raises(sdk.BadRequestError) as raised:
            await chat(openai, stream=stream)
        assert (raised.value.code, raised.value.type) == ("request_refused", "invalid_request_error")
        assert "top_k must be positive" in raised.value.message
        assert len(stage.provider.requests) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_came_to_nothing_is_run_anew_under_its_key(stage: Stage, stream: bool) -> None:
    key = {"Idempotency-Key": "k-again"}
    async with stage.client(max_attempts=1) as client, openai_of(client) as openai:
        stage.provider.play("status=500", "status=500")
        for _ in range(2):
            with pytest.raises(sdk.InternalServerError) as raised:
                await chat(openai, stream=stream, extra_headers=key)
            assert "idempotency-replayed" not in raised.value.response.headers
        for _ in range(2):
            answer = await chat(openai, stream=stream, extra_headers=key)
            said = streamed_text([chunk async for chunk in answer]) if stream else answer.choices[0].message.content
            assert said == "the river"
        assert len(stage.provider.requests) == 3, "the answer is found again"


async def test_two_repeats_at_once_share_the_next_try(stage: Stage) -> None:
    async with stage.client(max_attempts=1) as client, openai_of(client) as openai:
        stage.provider.play("status=500")
        key = {"Idempotency-Key": "k-both"}
        with pytest.raises(sdk.InternalServerError):
            await chat(openai, extra_headers=key)
        answers = await asyncio.gather(*(chat(openai, extra_headers=key) for _ in range(4)))
        assert len({answer.id for answer in answers}) == 1
        assert len(stage.provider.requests) == 2


async def test_a_client_that_left_and_comes_again_under_its_key_is_answered(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        key = {"Idempotency-Key": "k-left"}
        stage.provider.play("tokens=200 pace_ms=20")
        stream = await chat(openai, stream=True, extra_headers=key)
        left = turn_of((await anext(stream)).id)
        await stream.close()
        assert (await ended(client, left, 2))["reason"] == "client_gone"
        chunks = [chunk async for chunk in await chat(openai, stream=True, extra_headers=key)]
        assert streamed_text(chunks) == "the river"
        assert turn_of(chunks[0].id) != left


async def test_a_failure_that_no_repeat_can_mend_stays_under_its_key(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stage.provider.play("status=401")
        for replayed in (None, "true"):
            with pytest.raises(sdk.InternalServerError) as raised:
                await chat(openai, extra_headers={"Idempotency-Key": "k-stays"})
            assert raised.value.response.headers.get("idempotency-replayed") == replayed
        assert len(stage.provider.requests) == 1


async def test_a_failure_behind_a_tool_stays_under_its_key(stage: Stage) -> None:
    async with stage.client(max_attempts=1) as client, openai_of(client) as openai:
        stage.provider.play('tool=lookup args={"q":"x"}', "status=500")
        for _ in range(2):
            with pytest.raises(sdk.InternalServerError):
                await chat(openai, "look", extra_headers={"Idempotency-Key": "k-tool"}, extra_body={"toolsets": ["operator"]})
        assert operator_tools.runs.begun["lookup"] == 1


async def test_a_conversation_that_does_not_fit_is_a_bad_request(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stage.provider.play("status=400 error_code=context_length_exceeded")
        with pytest.raises(sdk.BadRequestError) as raised:
            await chat(openai)
        assert raised.value.code == "context_length_exceeded"


async def test_a_provider_that_dies_amid_its_text_is_an_error_in_the_stream(stage: Stage) -> None:
    async with stage.client(max_attempts=1) as client, openai_of(client) as openai:
        stream = await chat(openai, '[[sim text="alpha beta gamma delta" drop_after=3 pace_ms=30]]', stream=True)
        chunks, error = await read_to_error(stream)
        assert streamed_text(chunks) == "alpha beta gamma"
        assert not isinstance(error, sdk.APIStatusError)
        assert error.type == "server_error"


async def test_another_answer_than_was_begun_ends_the_stream_and_the_turn(stage: Stage) -> None:
    async with stage.client(stage.provider.base_url, stage.backup.base_url) as client, openai_of(client) as openai:
        stage.provider.play('text="alpha beta gamma delta" drop_after=3 pace_ms=30')
        for simulator in (stage.provider, stage.backup):
            simulator.play('text="alpha gamma and a lot more to say" pace_ms=200')
        chunks, error = await read_to_error(await chat(openai, "go", stream=True))
        assert error.code == "answer_diverged"
        assert streamed_text(chunks) == "alpha beta gamma"
        turn = await ended(client, turn_of(chunks[0].id), 2)
        assert (turn["status"], turn["reason"]) == ("interrupted", "client_gone")


async def test_a_turn_that_is_interrupted_from_elsewhere_ends_its_stream(stage: Stage) -> None:
    async with stage.client() as client, openai_of(client) as openai:
        stream = await chat(openai, "[[sim tokens=200 pace_ms=20]]", stream=True)
        first = await anext(stream)
        await client.http.delete(f"/turns/{turn_of(first.id)}")
        _, error = await read_to_error(stream)
        assert error.code == "turn_interrupted_requested"
