"""Quirks of provider streams through the whole service; each ends with a plain turn that a strict provider takes."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.simulator import RawEnd, raw_script
from app.simulator.server import Simulator
from tests.e2e.harness import Client, Frame, text_of, types
from tests.e2e.operator_tools import runs
from tests.e2e.stage import Stage
from tests.e2e.wire import DONE, bare, call, calls, chunk, data, usage

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def provider(stage: Stage) -> Simulator:
    return stage.provider


@pytest_asyncio.fixture(loop_scope="module")
async def client(stage: Stage) -> AsyncIterator[Client]:
    """Of a tenant with a single route, tried once."""
    async with stage.client(max_attempts=1) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def client_of_two(stage: Stage) -> AsyncIterator[Client]:
    """Of a tenant with two routes on the same simulator, so that scripts are used up in the order of the requests."""
    url = stage.provider.base_url
    async with stage.client(url, url, max_attempts=1) as client:
        yield client


async def next_turn_works(client: Client, session: str, provider: Simulator) -> None:
    """The session takes a plain turn, and the strict provider has nothing against its history."""
    frames = await client.run(session, '[[sim text="Still here."]]')
    assert frames[-1].type == "turn.completed"
    assert text_of(frames) == "Still here."
    assert [request.problems for request in provider.requests if request.problems] == []


def results(frames: list[Frame]) -> list[tuple[str, str]]:
    return sorted((frame.data["tool_call_id"], frame.data["output"]) for frame in frames if frame.type == "tool.completed")


async def test_chunks_without_choices_carry_usage_and_no_text(client: Client, provider: Simulator) -> None:
    stream = (
        bare(prompt_filter_results=[{"prompt_index": 0}])
        + chunk({"role": "assistant", "content": None})
        + chunk({"content": "Good "})
        + bare()
        + chunk({"content": "day"})
        + chunk(finish="stop")
        + usage(11, 7)
        + DONE
    )
    provider.play(raw_script(stream))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["output"] == text_of(frames) == "Good day"
    assert frames[-1].data["usage"]["input_tokens"] == 11
    assert frames[-1].data["usage"]["output_tokens"] == 7
    await next_turn_works(client, session, provider)


async def test_a_new_id_on_a_used_index_is_another_call(client: Client, provider: Simulator) -> None:
    stream = (
        calls(call("lookup", "", index=0, id="call_x"))
        + calls({"index": 0, "function": {"arguments": '{"q":"x"}'}})
        + calls(call("lookup", '{"q":"y"}', index=0, id="call_y"))
        + chunk(finish="tool_calls")
        + DONE
    )
    provider.play(raw_script(stream))
    session = await client.session()
    frames = await client.run(session)
    assert results(frames) == [("call_x", "found x"), ("call_y", "found y")]
    sent = provider.requests[1].body["messages"]
    assert [item["id"] for item in sent[-3]["tool_calls"]] == ["call_x", "call_y"]
    assert [(item["tool_call_id"], item["content"]) for item in sent[-2:]] == [("call_x", "found x"), ("call_y", "found y")]
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client, session, provider)


async def test_calls_without_index_and_id_and_with_an_object_for_arguments_run(client: Client, provider: Simulator) -> None:
    stream = (
        calls(call("lookup", {"q": "first"}, id="call_1"))
        + calls(call("lookup", {"q": "second"}, id=""))
        + chunk(finish="tool_calls")
        + DONE
    )
    provider.play(raw_script(stream))
    session = await client.session()
    frames = await client.run(session)
    answered = {output: call_id for call_id, output in results(frames)}
    assert answered.keys() == {"found first", "found second"}
    stored = [message["tool_calls"] for message in await client.messages(session) if message.get("tool_calls")]
    assert [item["id"] for item in stored[0]] == [answered["found first"], answered["found second"]]
    assert len(set(answered.values())) == 2
    assert all(answered.values())
    sent = provider.requests[1].body["messages"][-3]["tool_calls"]
    assert len({item["id"] for item in sent}) == 2
    assert all(item["id"] for item in sent)
    assert [json.loads(item["function"]["arguments"]) for item in sent] == [{"q": "first"}, {"q": "second"}]
    await next_turn_works(client, session, provider)


async def test_empty_arguments_mean_none(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(calls(call("now", "", index=0, id="call_now")) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert results(frames) == [("call_now", "12:00")]
    assert provider.requests[1].body["messages"][-2]["tool_calls"][0]["function"]["arguments"] == "{}"
    stored = [message for message in await client.messages(session) if message.get("tool_calls")]
    assert stored[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    await next_turn_works(client, session, provider)


async def test_calls_run_although_the_label_says_stop(client: Client, provider: Simulator) -> None:
    stream = (
        chunk({"content": "Let me see."})
        + calls(call("lookup", '{"q":"1"}', index=0, id="c1"), call("lookup", '{"q":"2"}', index=1, id="c2"))
        + chunk(finish="stop")
        + DONE
    )
    provider.play(raw_script(stream), 'text="There you are."')
    session = await client.session()
    frames = await client.run(session)
    assert results(frames) == [("c1", "found 1"), ("c2", "found 2")]
    assert frames[-1].data["output"] == "There you are."
    assert [message["content"] for message in await client.messages(session)][1] == "Let me see."
    await next_turn_works(client, session, provider)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_a_cut_call_never_runs(client: Client, provider: Simulator, finish: str) -> None:
    stream = calls(call("save", '{"path":"a","text":"whole"}', index=0, id="c1")) + chunk(finish=finish) + DONE
    provider.play(*[raw_script(stream)] * 4)  # a call cut at the length limit is asked for three more times
    session = await client.session()
    frames = await client.run(session)
    provider.clear()
    assert runs.begun["save"] == 0
    assert frames[-1].type == "turn.failed"
    assert frames[-1].data["reason"] == {"length": "output_truncated", "content_filter": "content_filtered"}[finish]
    assert [message["role"] for message in await client.messages(session)] == ["user"]
    await next_turn_works(client, session, provider)


ANNOUNCED = chunk({"role": "assistant", "content": ""}) + chunk(finish="tool_calls") + DONE


async def test_announced_calls_that_never_came_end_in_a_typed_error(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(ANNOUNCED))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.failed"
    assert frames[-1].data["reason"] == "invalid_response"
    assert len(provider.requests) == 1
    assert [message["role"] for message in await client.messages(session)] == ["user"]
    await next_turn_works(client, session, provider)


async def test_announced_calls_that_never_came_go_to_the_next_route(client_of_two: Client, provider: Simulator) -> None:
    provider.play(raw_script(ANNOUNCED), 'text="Better."')
    session = await client_of_two.session()
    frames = await client_of_two.run(session)
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["output"] == "Better."
    assert frames[-1].data["route"]["provider"] == "p2"
    assert len(provider.requests) == 2
    await next_turn_works(client_of_two, session, provider)


BEFORE_TEXT = {
    "error as text": (data({"error": "You exceeded your current quota, please check your plan and billing details"}), "billing", None),
    "json body": (json.dumps({"error": {"message": "Slow down", "code": 429}}).encode(), "rate_limit", 429),
    "comments only": (b": ping\n\n: ping\n\n", "invalid_response", None),
    "error event": (b"event: error\n" + data({"error": {"type": "overloaded_error", "message": "Overloaded"}}), "overloaded", None),
    "nothing at all": (b"", "invalid_response", None),
}


@pytest.mark.parametrize(("body", "reason", "status"), BEFORE_TEXT.values(), ids=BEFORE_TEXT)
async def test_a_failure_inside_status_200_goes_to_the_next_route(
    client_of_two: Client, provider: Simulator, *, body: bytes, reason: str, status: int | None
) -> None:
    provider.play(raw_script(body), 'text="From the second."')
    session = await client_of_two.session()
    frames = await client_of_two.run(session)
    failed = [frame for frame in frames if frame.type == "attempt.failed"]
    assert [frame.data["reason"] for frame in failed] == [reason]
    assert [frame.data["status"] for frame in failed] == [status]
    assert "attempt.reset" not in types(frames)
    assert frames[-1].data["output"] == text_of(frames) == "From the second."
    assert frames[-1].data["route"]["provider"] == "p2"
    await next_turn_works(client_of_two, session, provider)


AFTER_TEXT = {
    "error chunk": (chunk({"content": "Par"}) + bare(error={"code": 502, "message": "upstream died"}), "server_error"),
    "error event": (
        chunk({"content": "Par"}) + b"event: error\n" + data({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
        "overloaded",
    ),
    "error label": (chunk({"content": "Par"}) + chunk(finish="error") + DONE, "server_error"),
    "end without a marker": (chunk({"content": "Par"}), "incomplete_stream"),
    "done without a finish": (chunk({"content": "Par"}) + DONE, "incomplete_stream"),
    "half a chunk": (chunk({"content": "Par"}) + chunk({"content": "tial"})[:-20], "incomplete_stream"),
}


@pytest.mark.parametrize(("body", "reason"), AFTER_TEXT.values(), ids=AFTER_TEXT)
async def test_half_an_answer_is_never_an_answer(client: Client, provider: Simulator, body: bytes, reason: str) -> None:
    provider.play(raw_script(body))
    session = await client.session()
    frames = await client.run(session)
    assert types(frames) == ["turn.started", "iteration.started", "message.delta", "attempt.failed", "attempt.reset", "turn.failed"]
    assert frames[-3].data["reason"] == reason
    assert text_of(frames) == ""
    assert [message["role"] for message in await client.messages(session)] == ["user"]
    assert "Par" not in json.dumps(await client.messages(session, view="context"))
    await next_turn_works(client, session, provider)


@pytest.mark.parametrize(("body", "reason"), AFTER_TEXT.values(), ids=AFTER_TEXT)
async def test_half_an_answer_is_replaced_by_the_next_route(client_of_two: Client, provider: Simulator, body: bytes, reason: str) -> None:
    provider.play(raw_script(body), 'text="Whole."')
    session = await client_of_two.session()
    frames = await client_of_two.run(session)
    failed = next(frame for frame in frames if frame.type == "attempt.failed")
    assert failed.data["reason"] == reason
    assert frames[frames.index(failed) + 1].type == "attempt.reset"
    assert text_of(frames) == frames[-1].data["output"] == "Whole."
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client_of_two, session, provider)


@pytest.mark.parametrize("piece_bytes", [1, 7, None], ids=["one byte at a time", "seven bytes", "at once"])
async def test_bytes_may_come_in_any_pieces_and_lines_end_in_any_way(client: Client, provider: Simulator, piece_bytes: int | None) -> None:
    arguments = json.dumps({"q": "苏州"}, ensure_ascii=False)
    stream = (
        b": welcome\n\n"
        + chunk({"content": "您好🐳 "})
        + chunk({"content": "ü"})
        + calls(call("lookup", arguments, index=0, id="c1"))
        + chunk(finish="tool_calls")
        + DONE
    )
    windows = stream.replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
    provider.play(raw_script(windows, piece_bytes=piece_bytes))
    session = await client.session()
    frames = await client.run(session)
    assert "".join(frame.data["text"] for frame in frames if frame.type == "message.delta" and frame.data["attempt"] == 1) == "您好🐳 ü"
    assert results(frames) == [("c1", "found 苏州")]
    assert frames[-1].type == "turn.completed"
    await next_turn_works(client, session, provider)


async def test_a_finished_reply_needs_no_done(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(chunk({"content": "All of it."}) + chunk(finish="stop"), end=RawEnd.COMPLETE))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].data["output"] == "All of it."
    await next_turn_works(client, session, provider)


async def test_a_finished_reply_is_not_lost_when_the_connection_breaks_behind_it(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(chunk({"content": "All of it."}) + chunk(finish="stop") + DONE, end=RawEnd.RESET))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["output"] == "All of it."
    await next_turn_works(client, session, provider)


async def test_thinking_in_tags_is_reasoning_and_later_tags_are_text(client: Client, provider: Simulator) -> None:
    pieces = ["<th", "ink>hid", "den</thi", "nk>\n\nSHOWN: 1 <", " 2 and `<think", ">` is a tag"]
    provider.play(raw_script(b"".join(chunk({"content": piece}) for piece in pieces) + chunk(finish="stop") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert text_of(frames) == frames[-1].data["output"] == "SHOWN: 1 < 2 and `<think>` is a tag"
    assert "".join(frame.data["text"] for frame in frames if frame.type == "reasoning.delta") == "hidden"
    await next_turn_works(client, session, provider)
    assert b"hidden" not in provider.requests[-1].raw


async def test_an_unclosed_thinking_tag_does_not_swallow_the_answer(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(chunk({"content": "<think>The answer is 4."}) + chunk(finish="stop") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    assert frames[-1].data["output"] == "The answer is 4."
    await next_turn_works(client, session, provider)


async def test_replies_that_count_their_call_ids_from_zero_each_get_their_own_results(client: Client, provider: Simulator) -> None:
    for query in ("one", "two"):
        stream = calls(call("lookup", json.dumps({"q": query}), index=0, id="call_0")) + chunk(finish="tool_calls") + DONE
        provider.play(raw_script(stream))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].type == "turn.completed"
    sent = provider.requests[2].body["messages"]
    answers = {item["tool_call_id"]: item["content"] for item in sent if item["role"] == "tool"}
    asked = [item["tool_calls"][0] for item in sent if item.get("tool_calls")]
    assert len(answers) == 2
    assert [(item["function"]["arguments"], answers[item["id"]]) for item in asked] == [
        ('{"q": "one"}', "found one"),
        ('{"q": "two"}', "found two"),
    ]
    await next_turn_works(client, session, provider)


async def test_a_whole_completion_instead_of_a_stream_is_an_answer(client: Client, provider: Simulator) -> None:
    message = {"role": "assistant", "content": "In one piece.", "tool_calls": None}
    completion = {
        "id": "chatcmpl-hand",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }
    provider.play(raw_script(json.dumps(completion).encode()))
    session = await client.session()
    frames = await client.run(session)
    assert frames[-1].data["output"] == text_of(frames) == "In one piece."
    assert frames[-1].data["usage"]["input_tokens"] == 5
    await next_turn_works(client, session, provider)


NO_STREAM = {
    "a page": b"<!DOCTYPE html><html><body>Welcome, please sign in to proxy.corp.example</body></html>",
    "a list": b"[]",
    "a number": b"data: 7\n\n",
    "plain text": b"upstream is sleeping",
    "a broken document": b'{"id": "x", "choices": [',
    "choices of another shape": data({"choices": "none"}),
}


@pytest.mark.parametrize("body", NO_STREAM.values(), ids=NO_STREAM)
async def test_what_is_no_reply_at_all_is_an_invalid_response(client: Client, provider: Simulator, body: bytes) -> None:
    provider.play(raw_script(body))
    session = await client.session()
    frames = await client.run(session)
    assert types(frames) == ["turn.started", "iteration.started", "attempt.failed", "turn.failed"]
    assert frames[-1].data["reason"] == "invalid_response"
    assert b"proxy" not in b"".join(frame.raw for frame in frames)
    await next_turn_works(client, session, provider)


async def test_a_long_answer_is_cut_in_events_and_whole_in_the_transcript(client: Client, provider: Simulator) -> None:
    text = "long " * 20_000 + "end"
    provider.play(raw_script(chunk({"content": text}) + chunk(finish="stop") + DONE))
    session = await client.session()
    frames = await client.run(session)
    completed = next(frame for frame in frames if frame.type == "message.completed")
    assert completed.data["message"]["content_truncated"]
    assert text.startswith(completed.data["message"]["content"])
    assert len(completed.data["message"]["content"]) == 65_536
    assert (await client.messages(session))[1]["content"] == text
    await next_turn_works(client, session, provider)
    assert provider.requests[-1].body["messages"][2]["content"] == text


PIECES = {
    "name in two pieces": [call("look", "", index=0, id="c1"), {"index": 0, "function": {"name": "up", "arguments": '{"q":"a"}'}}],
    "name repeated": [call("lookup", '{"q"', index=0, id="c1"), {"index": 0, "function": {"name": "lookup", "arguments": ':"a"}'}}],
    "id repeated": [call("lookup", '{"q"', index=0, id="c1"), call("", ':"a"}', index=0, id="c1")],
    "arguments encoded twice": [call("lookup", json.dumps('{"q":"a"}'), index=0, id="c1")],
    "index from one": [call("lookup", '{"q":"a"}', index=1, id="c1")],
    "nulls": [
        {"index": 0, "id": "c1", "type": None, "function": {"name": "lookup", "arguments": None}},
        {"index": 0, "id": None, "function": {"name": None, "arguments": '{"q":"a"}'}},
    ],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
async def test_a_call_is_put_together_from_its_pieces(client: Client, provider: Simulator, pieces: list[dict[str, object]]) -> None:
    provider.play(raw_script(b"".join(calls(piece) for piece in pieces) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert results(frames) == [("c1", "found a")]
    assert runs.begun["lookup"] == 1
    await next_turn_works(client, session, provider)


async def test_two_calls_without_index_and_id_are_two(client: Client, provider: Simulator) -> None:
    provider.play(raw_script(calls(call("now", ""), call("now", "")) + chunk(finish="tool_calls") + DONE))
    session = await client.session()
    frames = await client.run(session)
    assert [output for _, output in results(frames)] == ["12:00", "12:00"]
    await next_turn_works(client, session, provider)
