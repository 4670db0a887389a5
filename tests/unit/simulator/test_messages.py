"""The Messages mode: scripted answers and faults, streamed and not, over real HTTP."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from app.simulator import RequestEnd, Script, ScriptedCall, Simulator
from app.simulator.signatures import sign
from tests.unit.simulator.client import Answer

LOOKUP = {"name": "lookup", "input_schema": {"type": "object"}}


class MessagesClient:
    """Talks to one simulator."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url}/messages"

    async def ask(self, said: str | list[dict[str, Any]] = "hello", *, within_s: float = 10.0, **fields: Any) -> Answer:
        """Send one user text (or a whole history); stop reading after ``within_s`` (broken = "timeout")."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        answer = Answer()
        try:
            async with asyncio.timeout(within_s):
                await self._read({"model": "m", "max_tokens": 9, "stream": True, "messages": messages, **fields}, answer)
        except TimeoutError:
            answer.broken = "timeout"
        except (aiohttp.ClientError, ConnectionError) as error:
            answer.broken = type(error).__name__
        return answer

    async def _read(self, body: dict[str, Any], answer: Answer) -> None:
        async with self._session.post(self._url, json=body) as response:
            answer.status, answer.headers = response.status, {name.lower(): value for name, value in response.headers.items()}
            async for piece in response.content.iter_any():
                answer.raw += piece


@pytest.fixture
async def client(simulator: Simulator, session: aiohttp.ClientSession) -> MessagesClient:
    return MessagesClient(session, simulator.base_url)


def whole_events(answer: Answer) -> list[dict[str, Any]]:
    """The events as their names and data agree on them."""
    events = answer.events
    assert [line.removeprefix("event: ") for line in answer.lines if line.startswith("event: ")] == [event["type"] for event in events]
    return events


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    """The blocks, put together as a client does; every one must be closed."""
    blocks: list[dict[str, Any]] = []
    pieces = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "partial_json"}
    closed = 0
    for event in whole_events(answer):
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks) == closed
                blocks.append(event["content_block"])
            case "content_block_delta":
                member = pieces[event["delta"]["type"]]
                blocks[event["index"]][member] = blocks[event["index"]].get(member, "") + event["delta"][member]
            case "content_block_stop":
                closed += 1
            case _:
                pass
    assert closed == len(blocks)
    return blocks


def text_of(answer: Answer) -> str:
    return "".join(event["delta"].get("text", "") for event in answer.events if event["type"] == "content_block_delta")


def types_of(answer: Answer) -> list[str]:
    return [event["type"] for event in answer.events]


async def test_a_stream_of_text(client: MessagesClient) -> None:
    answer = await client.ask("[[sim tokens=3 usage=11/7]]")
    first, ping, start, *deltas, stop, end, last = whole_events(answer)
    assert (first["type"], first["message"]["role"], first["message"]["content"], first["message"]["stop_reason"]) == (
        "message_start",
        "assistant",
        [],
        None,
    )
    assert (first["message"]["usage"]["input_tokens"], first["message"]["usage"]["output_tokens"]) == (11, 1)
    assert (ping, start["content_block"]) == ({"type": "ping"}, {"type": "text", "text": ""})
    assert [delta["delta"] for delta in deltas] == [{"type": "text_delta", "text": word} for word in ("the", " river", " carried")]
    assert (stop["type"], last) == ("content_block_stop", {"type": "message_stop"})
    assert (end["delta"], end["usage"]) == ({"stop_reason": "end_turn", "stop_sequence": None}, {"output_tokens": 7})
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_reasoning_is_a_signed_block(client: MessagesClient) -> None:
    answer = await client.ask("[[sim reasoning=3 text=Hey]]", model="m2")
    thinking, text = blocks_of(answer)
    assert thinking == {"type": "thinking", "thinking": "the river carried", "signature": sign("m2", "the river carried")}
    assert text == {"type": "text", "text": "Hey"}
    end = types_of(answer).index("content_block_stop")
    assert answer.events[end - 1]["delta"]["type"] == "signature_delta"


async def test_calls_come_in_pieces_with_ids_of_their_own(client: MessagesClient) -> None:
    said = '[[sim tool=lookup parallel=2 chunk_args=3 preamble="Wait." args={"call":"$call"}]]'
    answer, other = [await client.ask(said, tools=[LOOKUP]) for _ in range(2)]
    preamble, *calls = blocks_of(answer)
    assert preamble == {"type": "text", "text": "Wait."}
    assert [(call["name"], call["input"], call["partial_json"]) for call in calls] == [
        ("lookup", {}, '{"call":"1"}'),
        ("lookup", {}, '{"call":"2"}'),
    ]
    ids = {call["id"] for call in calls + blocks_of(other)[1:]}
    assert len(ids) == 4
    assert answer.events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_rounds_are_counted_behind_the_newest_words_of_the_user(client: MessagesClient) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "[[sim tool=lookup rounds=2 text=done]]"}]}]
    round_ = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "lookup", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "[[sim text=ignored]]"}]},
    ]
    answers = [await client.ask(said + round_ * count, tools=[LOOKUP]) for count in range(3)]
    assert [blocks_of(answer)[0]["type"] for answer in answers] == ["tool_use", "tool_use", "text"]
    assert text_of(answers[-1]) == "done"
    assert text_of(await client.ask(said, tools=[LOOKUP], tool_choice={"type": "none"})) == "done"
    assert text_of(await client.ask(said)) == "done"


@pytest.mark.parametrize(
    ("directive", "text", "reason"),
    [
        ("text=a finish=length", "a", "max_tokens"),
        ("text=a finish=content_filter", "a", "refusal"),
        ("text=a finish=tool_calls", "a", "tool_use"),
    ],
    ids=["length", "content_filter", "tool_calls"],
)
async def test_stop_reasons(client: MessagesClient, directive: str, text: str, reason: str) -> None:
    answer = await client.ask(f"[[sim {directive}]]")
    assert (text_of(answer), answer.events[-2]["delta"]["stop_reason"]) == (text, reason)


async def test_a_refusal_explains_itself_and_is_no_text(client: MessagesClient) -> None:
    answer = await client.ask('[[sim refusal="I won\'t."]]')
    delta = answer.events[-2]["delta"]
    assert (text_of(answer), delta["stop_reason"], delta["stop_details"]["explanation"]) == ("", "refusal", "I won't.")
    whole = (await client.ask('[[sim refusal="I won\'t."]]', stream=False)).json
    assert (whole["content"], whole["stop_reason"], whole["stop_details"]["explanation"]) == ([], "refusal", "I won't.")


async def test_an_answer_that_is_not_streamed(client: MessagesClient) -> None:
    said = '[[sim reasoning=2 tool=lookup preamble="Wait." args={"q":1} usage=11/7]]'
    answer = await client.ask(said, stream=False, tools=[LOOKUP])
    body = answer.json
    thinking, text, call = body["content"]
    assert (thinking["thinking"], thinking["signature"]) == ("the river", sign("m", "the river"))
    assert (text, call["type"], call["name"], call["input"]) == ({"type": "text", "text": "Wait."}, "tool_use", "lookup", {"q": 1})
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "tool_use")
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (11, 7)


async def test_cut_arguments_go_out_as_they_are(simulator: Simulator, client: MessagesClient) -> None:
    script = Script(calls=(ScriptedCall(name="lookup", arguments='{"q":"a"}', id="c9"),), finish="length")
    simulator.play(script, script)
    (streamed,) = blocks_of(await client.ask())
    assert (streamed["id"], streamed["partial_json"]) == ("c9", '{"q"')
    assert (await client.ask(stream=False)).json["content"][0]["input"] == '{"q"'


async def test_an_empty_answer(client: MessagesClient) -> None:
    assert types_of(await client.ask("[[sim empty]]")) == ["message_start", "ping", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ],
)
async def test_statuses_have_errors_of_this_protocol(client: MessagesClient, status: int, kind: str) -> None:
    answer = await client.ask(f"[[sim status={status} error_message=Oh header.retry-after=2]]")
    assert (answer.status, answer.headers["retry-after"]) == (status, "2")
    assert answer.json == {"type": "error", "error": {"type": kind, "message": "Oh"}}


async def test_an_error_within_status_200(client: MessagesClient) -> None:
    answer = await client.ask("[[sim json_error error_type=overloaded_error]]")
    assert (answer.status, answer.json["error"]["type"]) == (200, "overloaded_error")


async def test_an_error_within_the_stream(client: MessagesClient) -> None:
    answer = await client.ask("[[sim tokens=9 error_after=2 error_type=overloaded_error error_message=Overloaded]]")
    assert len(text_of(answer).split()) == 2
    assert whole_events(answer)[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert "message_stop" not in types_of(answer)


async def test_stalls_comments_and_empty_deltas(client: MessagesClient) -> None:
    stalled = await client.ask("[[sim tokens=9 stall_after=2]]", within_s=0.2)
    commented = await client.ask("[[sim tokens=9 comments_after=2 every_ms=10]]", within_s=0.2)
    emptied = await client.ask("[[sim tokens=9 empty_deltas_after=2 every_ms=10]]", within_s=0.2)
    assert [(len(text_of(answer).split()), answer.broken) for answer in (stalled, commented, emptied)] == [(2, "timeout")] * 3
    assert commented.raw.count(b": keep-alive\n\n") > 3
    assert emptied.events[-1]["delta"] == {"type": "text_delta", "text": ""}


async def test_streams_that_break_off(client: MessagesClient) -> None:
    cut = await client.ask("[[sim tokens=9 cut_after=2]]")
    dropped = await client.ask("[[sim tokens=9 drop_after=2]]")
    reset = await client.ask("[[sim tokens=9 reset_after=2]]")
    hung = await client.ask("[[sim hangup]]")
    silent = await client.ask("[[sim silent]]", within_s=0.2)
    assert (cut.broken, types_of(cut)[-1], len(text_of(cut).split())) == (None, "content_block_delta", 2)
    assert [dropped.broken, hung.broken, silent.broken] == ["ClientPayloadError", "ServerDisconnectedError", "timeout"]
    assert reset.broken is not None


async def test_garbage_between_the_tokens(client: MessagesClient) -> None:
    answer = await client.ask("[[sim tokens=3 garbage_after=2]]")
    assert sum(1 for text in answer.data if text.startswith('{"id": "sim-broken"')) == 1
    assert answer.data[-1] == '{"type":"message_stop"}'


async def test_missing_marks_of_the_end(client: MessagesClient) -> None:
    assert types_of(await client.ask("[[sim tokens=1 no_done]]"))[-2:] == ["content_block_stop", "message_delta"]
    assert types_of(await client.ask("[[sim tokens=1 no_finish]]"))[-2:] == ["content_block_stop", "message_stop"]
    assert (await client.ask("[[sim tokens=1 no_finish]]", stream=False)).json["stop_reason"] is None


@pytest.mark.parametrize("fault", ["cut_after=2", "drop_after=2", "error_after=2", "stall_after=2"])
async def test_faults_of_an_answer_that_is_not_streamed(client: MessagesClient, fault: str) -> None:
    answer = await client.ask(f"[[sim tokens=9 {fault}]]", stream=False, within_s=0.3)
    assert b'"usage"' not in answer.raw


async def test_paced_tokens_leave_one_by_one(simulator: Simulator, client: MessagesClient) -> None:
    began = time.monotonic()
    answer = await client.ask("[[sim tokens=5 first_ms=50 pace_ms=20]]")
    assert time.monotonic() - began >= 0.12
    assert len(text_of(answer).split()) == 5
    (record,) = simulator.requests
    assert (record.path, record.status, record.ending) == ("/v1/messages", 200, RequestEnd.COMPLETED)


async def test_strict_refuses_foreign_thinking(client: MessagesClient) -> None:
    thinking, call = blocks_of(await client.ask("[[sim reasoning=3 tool=lookup]]", tools=[LOOKUP]))
    call = {"type": "tool_use", "id": call["id"], "name": "lookup", "input": {}}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "x"}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "[[sim picky text=done]]"},
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result]},
    ]
    assert text_of(await client.ask(history, tools=[LOOKUP])) == "done"
    without = [history[0], {"role": "assistant", "content": [call]}, history[2]]
    for answer in (await client.ask(history, tools=[LOOKUP], model="other"), await client.ask(without, tools=[LOOKUP])):
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert "thinking" in answer.json["error"]["message"]


@pytest.mark.parametrize("body", [{"messages": "x"}, {"messages": None}])
async def test_what_is_no_request_is_refused(client: MessagesClient, body: dict[str, Any]) -> None:
    answer = await client.ask(**body)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "messages",
    [[], [7], [{"role": "user"}], [{"role": "user", "content": 7}], [{"role": "user", "content": [7]}]],
    ids=["none", "number", "no content", "odd content", "odd block"],
)
async def test_odd_messages_get_the_default(client: MessagesClient, messages: list[Any]) -> None:
    assert "simulator" in text_of(await client.ask(messages, model=7))
