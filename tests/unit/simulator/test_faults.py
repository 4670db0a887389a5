"""Every fault a provider can show, as a client sees it."""

import asyncio
import json

import pytest

from app.simulator import RequestEnd, Simulator
from tests.unit.simulator.client import GET_TIME, ChatClient


async def read_all(reader: asyncio.StreamReader, received: bytearray) -> None:
    while piece := await reader.read(65536):
        received += piece


async def test_status_with_headers_and_provider_error(client: ChatClient) -> None:
    answer = await client.ask("[[sim status=429 retry_after=2 header.X-Limit=5 error_code=insufficient_quota]]")
    assert answer.status == 429
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["x-limit"] == "5"
    assert answer.json["error"]["code"] == "insufficient_quota"


async def test_header_value_may_be_quoted(client: ChatClient) -> None:
    answer = await client.ask('[[sim status=503 retry_after="Wed, 21 Oct 2026 07:28:00 GMT"]]')
    assert answer.headers["retry-after"] == "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("body", "raw", "content_type"),
    [
        pytest.param('{"error":{"code":"x"}}', b'{"error":{"code":"x"}}', "application/json", id="json"),
        pytest.param('"plain words"', b"plain words", "text/plain", id="text"),
        pytest.param('""', b"", "text/plain", id="empty"),
    ],
)
async def test_status_with_its_own_body(client: ChatClient, body: str, raw: bytes, content_type: str) -> None:
    answer = await client.ask(f"[[sim status=400 body={body}]]")
    assert (answer.status, answer.raw, answer.headers["content-type"]) == (400, raw, content_type)


async def test_html_page_of_a_proxy(client: ChatClient) -> None:
    answer = await client.ask("[[sim html_status=524]]")
    assert answer.status == 524
    assert answer.headers["content-type"] == "text/html"
    assert answer.raw.startswith(b"<!DOCTYPE html>")


async def test_json_error_with_status_200(client: ChatClient) -> None:
    answer = await client.ask('[[sim json_error error_code=429 error_message="slow down"]]')
    assert answer.status == 200
    assert answer.json["error"]["message"] == "slow down"
    assert answer.json["error"]["code"] == "429"


async def test_fault_for_the_first_requests_only(client: ChatClient) -> None:
    said = "[[sim status=500 times=2 text=fine]]"
    assert [(await client.ask(said)).status for _ in range(4)] == [500, 500, 200, 200]
    assert (await client.ask(said)).text == "fine"


async def test_counts_of_shown_faults_are_kept_by_directive_and_cleared(simulator: Simulator, client: ChatClient) -> None:
    statuses = [(await client.ask(said)).status for said in ("[[sim status=500 times=1]]", "[[sim status=502 times=1]]")]
    simulator.clear()
    assert [*statuses, (await client.ask("[[sim status=500 times=1]]")).status] == [500, 502, 500]


async def test_hangup_before_any_byte(client: ChatClient) -> None:
    assert (await client.ask("[[sim hangup]]")).broken == "ServerDisconnectedError"


async def test_silence(client: ChatClient) -> None:
    answer = await client.ask("[[sim silent]]", within_s=0.2)
    assert (answer.status, answer.broken) == (None, "timeout")


@pytest.mark.parametrize("pace", ["", " pace_ms=1"], ids=["at once", "paced"])
@pytest.mark.parametrize("after", [0, 1, 3, 99])
async def test_stall_shows_exactly_the_tokens_before_it(client: ChatClient, after: int, pace: str) -> None:
    answer = await client.ask(f"[[sim tokens=10 stall_after={after}{pace}]]", within_s=0.3)
    assert (answer.status, answer.broken) == (200, "timeout")
    assert len(answer.text.split()) == min(after, 10)
    assert answer.finish is None
    if after == 0:
        assert answer.raw == b""


async def test_only_comments_prove_the_socket(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=10 comments_after=2 every_ms=20]]", within_s=0.3)
    assert len(answer.text.split()) == 2
    assert answer.raw.count(b": keep-alive\n\n") > 3


async def test_only_empty_deltas(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=10 empty_deltas_after=2 every_ms=20]]", within_s=0.3)
    assert len(answer.text.split()) == 2
    assert answer.deltas[-3:] == [{"content": ""}] * 3


async def test_cut_ends_the_body_properly_without_a_marker(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=10 cut_after=4]]")
    assert answer.broken is None
    assert len(answer.text.split()) == 4
    assert answer.finish is None
    assert not answer.is_done


@pytest.mark.parametrize("pace", ["", " pace_ms=1"], ids=["at once", "paced"])
async def test_drop_closes_in_the_middle_of_a_chunk(client: ChatClient, pace: str) -> None:
    answer = await client.ask(f"[[sim tokens=10 drop_after=4{pace}]]")
    assert answer.broken == "ClientPayloadError"
    assert b'"content":" small"' not in answer.raw


async def test_reset_is_a_tcp_reset_after_the_tokens(simulator: Simulator) -> None:
    port = int(simulator.origin.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "[[sim tokens=9 reset_after=2]]"}]})
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    received = bytearray()
    with pytest.raises(ConnectionResetError):
        await read_all(reader, received)
    writer.close()
    assert received.count(b'"content":"') == 3  # the role with no text, and two tokens


async def test_garbage_between_the_tokens(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=3 garbage_after=2]]")
    assert sum(1 for text in answer.data if text.startswith('{"id": "sim-broken"')) == 1
    assert answer.is_done


async def test_finish_without_done(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=3 no_done]]")
    assert answer.finish == "stop"
    assert not answer.is_done


async def test_done_without_finish(client: ChatClient) -> None:
    answer = await client.ask("[[sim tokens=3 no_finish]]")
    assert answer.finish is None
    assert answer.is_done


async def test_error_object_inside_the_stream(client: ChatClient) -> None:
    answer = await client.ask('[[sim tokens=9 error_after=2 error_code=overloaded error_message="too busy"]]')
    assert answer.status == 200
    assert len(answer.text.split()) == 2
    assert answer.events[-1]["error"] == {"message": "too busy", "type": "server_error", "param": None, "code": "overloaded"}
    assert not answer.is_done


async def test_proper_stream_without_content(client: ChatClient) -> None:
    answer = await client.ask("[[sim tool=get_time empty]]", tools=[GET_TIME])
    assert (answer.text, answer.calls, answer.finish, answer.is_done) == ("", [], "stop", True)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("stall_after=1", "timeout"),
        ("comments_after=1", "timeout"),
        ("empty_deltas_after=1", "timeout"),
        ("drop_after=1", "ClientPayloadError"),
        ("reset_after=1", "ClientPayloadError"),
    ],
)
async def test_whole_answer_that_never_ends_or_breaks(client: ChatClient, fault: str, broken: str) -> None:
    answer = await client.ask(f"[[sim tokens=9 {fault}]]", stream=False, within_s=0.5)
    assert (answer.status, answer.broken) in {(200, broken), (200, "ClientOSError")}


@pytest.mark.parametrize("fault", ["cut_after=1", "garbage_after=1"])
async def test_whole_answer_that_is_half_a_json(client: ChatClient, fault: str) -> None:
    answer = await client.ask(f"[[sim tokens=9 {fault}]]", stream=False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.raw)


@pytest.mark.parametrize(
    ("fault", "finish", "content"),
    [("no_finish", None, "the river"), ("no_done", "stop", "the river"), ("empty", "stop", "")],
)
async def test_whole_answer_without_marker_or_content(client: ChatClient, fault: str, finish: str | None, content: str) -> None:
    choice = (await client.ask(f"[[sim tokens=2 {fault}]]", stream=False)).json["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish, content)


async def test_whole_answer_that_is_an_error_object(client: ChatClient) -> None:
    answer = await client.ask("[[sim error_after=1 error_code=x]]", stream=False)
    assert (answer.status, answer.json["error"]["code"]) == (200, "x")


@pytest.mark.parametrize(
    ("said", "ending"),
    [
        ("hello", RequestEnd.COMPLETED),
        ("[[sim status=500]]", RequestEnd.FAULT),
        ("[[sim cut_after=1]]", RequestEnd.FAULT),
        ("[[sim drop_after=1]]", RequestEnd.FAULT),
        ("[[sim reset_after=1]]", RequestEnd.FAULT),
        ("[[sim hangup]]", RequestEnd.FAULT),
        ("[[sim silent]]", RequestEnd.CLIENT_CLOSED),
        ("[[sim stall_after=1]]", RequestEnd.CLIENT_CLOSED),
    ],
)
async def test_log_says_how_it_ended(simulator: Simulator, client: ChatClient, said: str, ending: RequestEnd) -> None:
    await client.ask(said, within_s=0.2)
    record = (await simulator.wait_for_requests(1, 1))[0]
    await simulator.wait_for_end(record, 1)
    assert record.ending is ending
