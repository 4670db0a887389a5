"""The Responses mode: what scripted answers say, and the faults they show."""

from typing import Any

import aiohttp
import pytest

from app.simulator import Simulator
from tests.unit.simulator.responses_client import GET_TIME, ResponsesClient


@pytest.fixture
async def client(simulator: Simulator, session: aiohttp.ClientSession) -> ResponsesClient:
    return ResponsesClient(session, simulator.base_url)


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text" if role == "user" else "output_text", "text": text}]}


def answered_call(call_id: str) -> list[dict[str, Any]]:
    """One round of the history: a call and its output."""
    return [
        {"type": "function_call", "call_id": call_id, "name": "get_time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "12:00"},
    ]


async def test_the_events_of_a_text(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim text="hi you" usage=11/7]]')
    assert [event["type"].removeprefix("response.") for event in answer.events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert all(f"event: {event['type']}" in answer.lines for event in answer.events)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.said == "hi you"
    assert answer.response["status"] == "completed"
    assert answer.output[0]["content"][0]["text"] == "hi you"
    usage = answer.response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 7, 18)
    assert len({event["response"]["id"] for event in answer.events if "response" in event}) == 1


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        pytest.param("sim-echo", "two  words é🦀", "two  words é🦀", id="text alone"),
        pytest.param("sim-echo", [{"role": "user", "content": "short form"}], "short form", id="message without a type"),
        pytest.param("sim-echo", [message("parts")], "parts", id="parts"),
        pytest.param("sim:tokens=3", "x", "the river carried", id="directives in the model name"),
        pytest.param("m", [message("[[sim text=old]]"), message("old", "assistant"), message("[[sim text=new]]")], "new", id="newest"),
    ],
)
async def test_script_is_chosen_as_everywhere(client: ResponsesClient, model: str, given: Any, text: str) -> None:
    assert (await client.ask(given, model=model)).said == text


async def test_reasoning_is_an_item_with_summary_and_encrypted_content(client: ResponsesClient) -> None:
    answer = await client.ask("[[sim reasoning=3 text=done]]")
    assert answer.deltas_of("reasoning_summary_text") == ["the", " river", " carried"]
    assert [item["type"] for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0]["encrypted_content"]
    assert answer.response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


async def test_refusal(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim refusal="I would rather not"]]')
    assert "".join(answer.deltas_of("refusal")) == "I would rather not"
    assert answer.output[0]["content"] == [{"type": "refusal", "refusal": "I would rather not"}]


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
async def test_how_a_response_ends(client: ResponsesClient, finish: str, status: str, reason: str | None) -> None:
    answer = await client.ask(f"[[sim tokens=2 finish={finish}]]")
    assert answer.events[-1]["type"] == f"response.{status}"
    assert answer.response["incomplete_details"] == (None if reason is None else {"reason": reason})


async def test_tool_rounds_then_the_final_text(client: ResponsesClient) -> None:
    said = message('[[sim tool=get_time args={"n":"$round"} parallel=2 rounds=2 preamble="wait" text="late"]]')
    two_answered = [item for pair in zip(answered_call("a"), answered_call("b"), strict=True) for item in pair]
    first = await client.ask([said], tools=[GET_TIME])
    second = await client.ask([said, *two_answered], tools=[GET_TIME])
    third = await client.ask([said, *two_answered, *answered_call("c")], tools=[GET_TIME])
    assert first.called == [("get_time", '{"n":"1"}')] * 2
    assert first.said == "wait"
    assert second.called == [("get_time", '{"n":"2"}')] * 2
    assert (third.called, third.said) == ([], "late")


@pytest.mark.parametrize("fields", [{}, {"tools": [GET_TIME], "tool_choice": "none"}], ids=["no tools", "tool_choice none"])
async def test_no_call_is_made_without_tools_to_call(client: ResponsesClient, fields: dict[str, Any]) -> None:
    answer = await client.ask("[[sim tool=get_time rounds=9 text=bye]]", **fields)
    assert (answer.called, answer.said) == ([], "bye")


async def test_calls_have_ids_of_their_own_and_arguments_in_pieces(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim tool=get_time parallel=2 args={"zone":"UTC"} chunk_args=5]]', tools=[GET_TIME])
    assert answer.called == [("get_time", '{"zone":"UTC"}')] * 2
    assert len(answer.deltas_of("function_call_arguments")) == 10
    assert len({item["call_id"] for item in answer.output}) == 2
    assert [item["arguments"] for item in answer.output] == ['{"zone":"UTC"}'] * 2


async def test_truncated_call_has_half_of_its_arguments(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim tool=get_time args={"a":12345} finish=length]]', tools=[GET_TIME])
    assert answer.called == [("get_time", '{"a":')]
    assert answer.output[0]["status"] == "incomplete"


async def test_a_call_without_arguments_text(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim tool=get_time args=""]]', tools=[GET_TIME])
    assert answer.called == [("get_time", "")]
    assert [event["type"] for event in answer.events].count("response.output_item.done") == 1


async def test_whole_answer_of_the_same_script(client: ResponsesClient) -> None:
    script = '[[sim reasoning=2 text="all at once" usage=5/6]]'
    streamed, whole = await client.ask(script), await client.ask(script, stream=False)
    assert whole.json["object"] == "response"
    assert whole.json["output"][1]["content"] == streamed.output[1]["content"]
    assert whole.json["output"][0]["encrypted_content"] == streamed.output[0]["encrypted_content"]
    assert (whole.json["status"], whole.json["usage"]) == ("completed", streamed.response["usage"])


@pytest.mark.parametrize("pace", ["", " pace_ms=1"], ids=["at once", "paced"])
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_stall_shows_exactly_the_tokens_before_it(client: ResponsesClient, after: int, pace: str) -> None:
    answer = await client.ask(f"[[sim tokens=10 stall_after={after}{pace}]]", within_s=0.3)
    assert (answer.status, answer.broken) == (200, "timeout")
    assert len(answer.deltas_of("output_text")) == after
    assert (answer.raw == b"") is (after == 0)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [("cut_after=2", None), ("drop_after=2", "ClientPayloadError"), ("reset_after=2", "ClientPayloadError")],
)
async def test_streams_that_break_off(client: ResponsesClient, fault: str, broken: str | None) -> None:
    answer = await client.ask(f"[[sim tokens=10 {fault}]]")
    whole = answer.raw[: answer.raw.rfind(b"\n\n") + 2]
    assert whole.count(b"output_text.delta\ndata") == 2
    assert b"response.completed" not in answer.raw
    assert answer.broken == broken or (broken is not None and answer.broken is not None)


async def test_only_comments_or_empty_deltas(client: ResponsesClient) -> None:
    comments = await client.ask("[[sim tokens=10 comments_after=2 every_ms=10]]", within_s=0.5)
    empty = await client.ask("[[sim tokens=10 empty_deltas_after=2 every_ms=10]]", within_s=0.5)
    assert comments.raw.count(b": keep-alive\n\n") > 2
    assert empty.deltas_of("output_text")[2:5] == [""] * 3


async def test_garbage_between_the_tokens(client: ResponsesClient) -> None:
    answer = await client.ask("[[sim tokens=3 garbage_after=1]]")
    assert sum(1 for text in answer.data if text.startswith('{"id": "sim-broken"')) == 1
    assert b"response.completed" in answer.raw


async def test_an_error_in_the_stream_has_no_envelope(client: ResponsesClient) -> None:
    answer = await client.ask('[[sim tokens=3 error_after=1 error_code=rate_limit_exceeded error_message="slow down"]]')
    assert answer.events[-1] == {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None}
    assert len(answer.deltas_of("output_text")) == 1


async def test_marks_that_are_missing(client: ResponsesClient) -> None:
    unfinished, done = await client.ask("[[sim tokens=1 no_finish]]"), await client.ask("[[sim tokens=1 no_done]]")
    assert unfinished.data[-1] == "[DONE]"
    assert b"response.completed" not in unfinished.raw
    assert done.response["status"] == "completed"


async def test_an_empty_response(client: ResponsesClient) -> None:
    answer = await client.ask("[[sim empty]]")
    assert answer.output == []
    assert answer.events[-1]["type"] == "response.completed"


async def test_statuses_and_documents(client: ResponsesClient) -> None:
    limited = await client.ask("[[sim status=429 retry_after=2 error_code=insufficient_quota]]")
    inside = await client.ask("[[sim json_error error_message=no]]")
    assert (limited.status, limited.headers["retry-after"], limited.json["error"]["code"]) == (429, "2", "insufficient_quota")
    assert (inside.status, inside.json["error"]["message"]) == (200, "no")
    assert (await client.ask("[[sim hangup]]")).broken == "ServerDisconnectedError"
    assert (await client.ask("[[sim silent]]", within_s=0.2)).status is None


@pytest.mark.parametrize("fault", ["error_after=1", "cut_after=1", "no_finish"])
async def test_faults_of_a_whole_answer(client: ResponsesClient, fault: str) -> None:
    answer = await client.ask(f"[[sim tokens=3 {fault}]]", stream=False)
    match fault:
        case "error_after=1":
            assert answer.json["error"]["code"] == "server_error"
        case "cut_after=1":
            assert not answer.raw.endswith(b"}")
        case _:
            assert answer.json["status"] == "in_progress"


async def test_reasoning_that_comes_back_is_checked_in_strict_mode(client: ResponsesClient) -> None:
    first = await client.ask("[[sim reasoning=3 text=done]]")
    thought, said = first.output
    history = [message("x"), {key: value for key, value in thought.items() if key != "id"}, message("done", "assistant")]
    assert said["content"][0]["text"] == "done"
    own = await client.ask([*history, message("[[sim strict]]")])
    other_model = await client.ask([*history, message("[[sim strict]]")], model="m-other")
    history[1] = {**history[1], "encrypted_content": "gAAAAAforeign"}
    foreign = await client.ask([*history, message("[[sim strict]]")])
    assert own.status == 200
    for refused in (other_model, foreign):
        assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_encrypted_content")


async def test_other_problems_have_the_usual_code(client: ResponsesClient) -> None:
    refused = await client.ask([message("[[sim strict]]"), answered_call("a")[0]])
    assert (refused.status, refused.json["error"]["code"]) == (400, "invalid_request")
    assert "no tool output found" in refused.json["error"]["message"]


async def test_a_body_of_another_protocol_is_refused(client: ResponsesClient) -> None:
    refused = await client.ask({"messages": []})
    assert refused.status == 400
