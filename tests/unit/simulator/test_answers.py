"""What scripted answers say, streamed and not."""

import time
from typing import Any

import pytest

from app.simulator import Script, ScriptedCall, Simulator
from tests.unit.simulator.client import GET_TIME, ChatClient


def assistant_call(call_id: str) -> list[dict[str, Any]]:
    """Write one round of the history: a call and its result."""
    call = {"id": call_id, "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "12:00"},
    ]


async def test_default_answer_says_who_answers_and_quotes_the_user(client: ChatClient) -> None:
    answer = await client.ask("is anybody there?")
    assert "simulator" in answer.text
    assert "not a language model" in answer.text
    assert '"is anybody there?"' in answer.text
    assert answer.finish == "stop"
    assert answer.is_done
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("model", "said", "text"),
    [
        pytest.param("sim-echo", "two  words\nand é🦀", "two  words\nand é🦀", id="echo keeps every character"),
        pytest.param("sim:tokens=3", "x", "the river carried", id="directives in the model name"),
        pytest.param("any/name:text=yes", "x", "yes", id="any model name may carry directives"),
        pytest.param("sim:tokens=3", "[[sim tokens=1]]", "the", id="the message decides over the model"),
        pytest.param("m", '[[sim text="a ]] b"]]', "a ]] b", id="quoted brackets"),
        pytest.param("m", "[[sim tokens=5]] [[sim tokens=2]]", "the river", id="the last directive counts"),
        pytest.param("sim-echo:pace_ms=1", "said so", "said so", id="base name and directives together"),
    ],
)
async def test_script_is_chosen_by_message_then_model(client: ChatClient, model: str, said: str, text: str) -> None:
    assert (await client.ask(said, model=model)).text == text


async def test_model_with_an_ordinary_tag_gets_the_default(client: ChatClient) -> None:
    assert "simulator" in (await client.ask("x", model="llama:8b")).text


async def test_sim_text_answers_with_fifty_tokens(client: ChatClient) -> None:
    assert len((await client.ask(model="sim-text")).text.split()) == 50


async def test_directive_is_read_from_content_parts(client: ChatClient) -> None:
    parts = [{"type": "text", "text": "[[sim text=parts]]"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    assert (await client.ask([{"role": "user", "content": parts}])).text == "parts"


async def test_directive_of_an_older_message_is_not_used(client: ChatClient) -> None:
    history = [{"role": "user", "content": "[[sim text=old]]"}, {"role": "assistant", "content": "old"}, {"role": "user", "content": "new"}]
    assert '"new"' in (await client.ask(history)).text


async def test_tokens_leave_as_one_event_each(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=200]]")
    assert sum(1 for delta in answer.deltas if delta.get("content")) == 200
    assert answer.deltas[0]["role"] == "assistant"
    assert len({event["id"] for event in answer.events}) == 1


async def test_ids_differ_between_answers(client: ChatClient) -> None:
    first, second = await client.ask("x"), await client.ask("x")
    assert first.events[0]["id"] != second.events[0]["id"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_usage_comes_only_when_asked_for(client: ChatClient) -> None:
    silent = await client.ask("[[sim usage=11/7]]")
    asked = await client.ask("[[sim usage=11/7]]", stream_options={"include_usage": True})
    assert not any("usage" in event for event in silent.events)
    last = asked.events[-1]
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (11, 7, 18)


async def test_usage_is_counted_when_not_scripted(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=12]]", stream_options={"include_usage": True})
    assert answer.events[-1]["usage"]["completion_tokens"] == 12
    assert answer.events[-1]["usage"]["prompt_tokens"] > 10


async def test_reasoning_comes_before_the_text(client: ChatClient) -> None:
    answer = await client.ask("[[sim reasoning=3 text=done]]")
    assert answer.joined("reasoning_content") == "the river carried"
    assert answer.text == "done"


async def test_refusal(client: ChatClient) -> None:
    answer = await client.ask('[[sim refusal="I would rather not"]]')
    assert answer.joined("refusal") == "I would rather not"
    assert answer.text == ""


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "tool_calls"])
async def test_finish_reason_is_as_scripted(client: ChatClient, finish: str) -> None:
    assert (await client.ask(f"[[sim tokens=2 finish={finish}]]")).finish == finish


async def test_tool_rounds_then_the_final_text(client: ChatClient) -> None:
    said = {"role": "user", "content": '[[sim tool=get_time args={"n":"$round"} rounds=2 preamble="wait" text="late"]]'}
    first = await client.ask([said], tools=[GET_TIME])
    second = await client.ask([said, *assistant_call("a")], tools=[GET_TIME])
    third = await client.ask([said, *assistant_call("a"), *assistant_call("b")], tools=[GET_TIME])
    assert first.calls == [("get_time", '{"n":"1"}')]
    assert first.text == "wait"
    assert first.finish == "tool_calls"
    assert second.calls == [("get_time", '{"n":"2"}')]
    assert third.calls == []
    assert third.text == "late"
    assert third.finish == "stop"


async def test_rounds_start_again_with_a_new_user_message(client: ChatClient) -> None:
    said = {"role": "user", "content": "[[sim tool=get_time]]"}
    answer = await client.ask([said, *assistant_call("a"), {"role": "assistant", "content": "ok"}, said], tools=[GET_TIME])
    assert len(answer.calls) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": [GET_TIME], "tool_choice": "none"}], ids=["no tools", "tool_choice none"])
async def test_no_call_is_made_without_tools_to_call(client: ChatClient, fields: dict[str, Any]) -> None:
    answer = await client.ask("[[sim tool=get_time rounds=9 text=bye]]", **fields)
    assert answer.calls == []
    assert answer.text == "bye"


async def test_parallel_calls_have_ids_of_their_own(client: ChatClient) -> None:
    answer = await client.ask('[[sim tool=get_time parallel=3 args={"i":"$call"}]]', tools=[GET_TIME])
    ids = [piece["id"] for delta in answer.deltas for piece in delta.get("tool_calls", []) if "id" in piece]
    assert len(set(ids)) == 3
    assert [arguments for _, arguments in answer.calls] == ['{"i":"1"}', '{"i":"2"}', '{"i":"3"}']


async def test_listed_calls_go_out_as_written(client: ChatClient) -> None:
    listed = '[{"name":"a","arguments":{"q":1}},{"name":"b","arguments":"{broken","id":"call_b"}]'
    answer = await client.ask(f"[[sim calls={listed}]]", tools=[GET_TIME])
    assert answer.calls == [("a", '{"q":1}'), ("b", "{broken")]
    assert any(piece.get("id") == "call_b" for delta in answer.deltas for piece in delta.get("tool_calls", []))


async def test_arguments_in_pieces(client: ChatClient) -> None:
    answer = await client.ask('[[sim tool=get_time args={"zone":"Europe/Berlin"} chunk_args=5]]', tools=[GET_TIME])
    assert answer.calls == [("get_time", '{"zone":"Europe/Berlin"}')]
    assert sum(1 for delta in answer.deltas if "tool_calls" in delta) == 6


async def test_truncated_call_has_half_of_its_arguments(client: ChatClient) -> None:
    answer = await client.ask('[[sim tool=get_time args={"a":12345} finish=length]]', tools=[GET_TIME])
    assert answer.calls == [("get_time", '{"a":')]
    assert answer.finish == "length"


async def test_whole_answer_of_the_same_script(client: ChatClient) -> None:
    answer = await client.ask('[[sim reasoning=2 text="all at once" usage=5/6]]', stream=False)
    completion = answer.json
    assert completion["object"] == "chat.completion"
    assert completion["choices"][0]["message"]["content"] == "all at once"
    assert completion["choices"][0]["message"]["reasoning_content"] == "the river"
    assert completion["choices"][0]["finish_reason"] == "stop"
    assert completion["usage"]["total_tokens"] == 11


async def test_whole_answer_with_calls(client: ChatClient) -> None:
    answer = await client.ask('[[sim tool=get_time args={"a":1}]]', stream=False, tools=[GET_TIME])
    message = answer.json["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "get_time", "arguments": '{"a":1}'}
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"


async def test_queue_goes_first_and_in_order(simulator: Simulator, client: ChatClient) -> None:
    simulator.play("text=one", Script(text="two"), Script(calls=(ScriptedCall(name="get_time"),)))
    assert (await client.ask("[[sim text=directive]]")).text == "one"
    assert (await client.ask()).text == "two"
    assert (await client.ask()).calls == [("get_time", "{}")]
    assert (await client.ask("[[sim text=directive]]")).text == "directive"


async def test_first_token_and_pace_take_their_time(client: ChatClient) -> None:
    started = time.monotonic()
    await client.ask("[[sim tokens=6 first_ms=100 pace_ms=20]]")
    assert 0.19 <= time.monotonic() - started < 1.0


async def test_headers_go_out_at_once_unless_delayed(simulator: Simulator, client: ChatClient) -> None:
    early = await client.ask("[[sim first_ms=5000]]", within_s=0.3)
    late = await client.ask("[[sim headers_ms=5000]]", within_s=0.3)
    assert (early.status, early.broken) == (200, "timeout")
    assert (late.status, late.broken) == (None, "timeout")


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        pytest.param("[[sim tokns=3]]", "unknown key tokns", id="unknown key"),
        pytest.param("[[sim tokens=x]]", "tokens must be a whole number", id="bad number"),
        pytest.param("[[sim tokens=999999999]]", "tokens must be a whole number", id="too many"),
        pytest.param("[[sim hangup silent]]", "one fault", id="two faults"),
        pytest.param("[[sim tokens=3", "cannot read", id="not closed"),
        pytest.param('[[sim text="open]]', "bad JSON", id="open quote"),
        pytest.param("[[sim args={}]]", "need tool", id="arguments without a tool"),
        pytest.param("[[sim retry_after=3]]", "need status", id="header without a status"),
        pytest.param("[[sim finish=maybe]]", "finish must be one of", id="unknown finish"),
    ],
)
async def test_bad_directive_is_answered_with_its_reason(client: ChatClient, said: str, complaint: str) -> None:
    answer = await client.ask(said)
    assert answer.status == 400
    assert answer.json["error"]["message"].startswith("simulator: ")
    assert complaint in answer.json["error"]["message"]
