"""The server itself: connections, raw bodies, the log, its own pages."""

import asyncio
import base64
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from app.simulator import RawEnd, RawPiece, RawScript, RequestEnd, ScriptError, Simulator, raw_script, run_simulator
from tests.unit.simulator.client import ChatClient

USER = {"role": "user", "content": "hi"}
QUIRKS = ': hello\r\n\r\ndata:{"choices":[{"index":0,"delta":{"content":"é🦀"},"finish_reason":null}]}\r\n\r\ndata:[DONE]\r\n\r\n'.encode()


def request_bytes(said: str, *, close: bool = False) -> bytes:
    body = json.dumps({"model": "sim-echo", "stream": True, "messages": [{"role": "user", "content": said}]}).encode()
    connection = "connection: close\r\n" if close else ""
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{connection}content-length: {len(body)}\r\n\r\n".encode() + body


async def connect(simulator: Simulator) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(simulator.origin.rpartition(":")[2]))


async def test_one_byte_per_chunk_arrives_byte_for_byte(simulator: Simulator, client: ChatClient) -> None:
    simulator.play(raw_script(QUIRKS, piece_bytes=1))
    answer = await client.ask()
    assert (answer.raw, answer.broken) == (QUIRKS, None)


async def test_raw_chunks_are_as_many_as_the_pieces(simulator: Simulator) -> None:
    simulator.play(raw_script(b"abc", piece_bytes=1))
    reader, writer = await connect(simulator)
    writer.write(request_bytes("x"))
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"
    writer.close()


async def test_raw_pieces_keep_their_pauses(simulator: Simulator, client: ChatClient) -> None:
    pieces = (RawPiece(data=b"data: now\n\n"), RawPiece(data=b"data: later\n\n", pause_s=5))
    simulator.play(RawScript(pieces=pieces))
    answer = await client.ask(within_s=0.3)
    assert (answer.raw, answer.broken) == (b"data: now\n\n", "timeout")


@pytest.mark.parametrize(
    ("end", "broken"),
    [
        (RawEnd.COMPLETE, {None}),
        (RawEnd.CLOSE, {"ClientPayloadError"}),
        (RawEnd.RESET, {"ClientPayloadError", "ClientOSError"}),
        (RawEnd.HOLD, {"timeout"}),
    ],
)
async def test_raw_script_ends_as_it_says(simulator: Simulator, client: ChatClient, end: RawEnd, broken: set[str | None]) -> None:
    simulator.play(raw_script(b"data: x\n\n", end=end))
    assert (await client.ask(within_s=0.5)).broken in broken


async def test_connection_is_used_again(simulator: Simulator) -> None:
    reader, writer = await connect(simulator)
    for said in ("first", "second"):
        writer.write(request_bytes(said))
        assert said.encode() in await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    assert len(simulator.requests) == 2


async def test_pipelined_requests_are_answered_in_order(simulator: Simulator) -> None:
    reader, writer = await connect(simulator)
    said = [f"number{number}" for number in range(50)]
    writer.write(b"".join(request_bytes(text) for text in said))
    answers = [await reader.readuntil(b"0\r\n\r\n") for _ in said]
    assert all(text.encode() in answer for text, answer in zip(said, answers, strict=True))
    writer.close()


async def test_request_may_arrive_byte_by_byte(simulator: Simulator) -> None:
    reader, writer = await connect(simulator)
    for byte in request_bytes("slow"):
        writer.write(bytes([byte]))
        await writer.drain()
    assert b"slow" in await reader.readuntil(b"0\r\n\r\n")
    writer.close()


async def test_connection_closes_when_the_client_asks_for_it(simulator: Simulator) -> None:
    reader, writer = await connect(simulator)
    writer.write(request_bytes("bye", close=True))
    assert (await asyncio.wait_for(reader.read(), 2)).endswith(b"0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x00\x00"], ids=["no HTTP", "TLS to a plain port"])
async def test_what_is_no_http_is_refused(simulator: Simulator, sent: bytes) -> None:
    reader, writer = await connect(simulator)
    writer.write(sent)
    assert (await asyncio.wait_for(reader.read(), 2)).startswith(b"HTTP/1.1 400")
    writer.close()


@pytest.mark.parametrize(
    "said", ["[[sim tokens=1000 pace_ms=10]]", "[[sim silent]]", "[[sim stall_after=1]]", "[[sim comments_after=1 every_ms=10]]"]
)
async def test_client_closing_its_socket_is_noticed_at_once(simulator: Simulator, said: str) -> None:
    _, writer = await connect(simulator)
    writer.write(request_bytes(said))
    record = (await simulator.wait_for_requests(1, 2))[0]
    left_at = asyncio.get_running_loop().time()
    writer.close()
    await simulator.wait_for_end(record, 1)
    assert record.ending is RequestEnd.CLIENT_CLOSED
    assert record.ended_at is not None
    assert 0 <= record.ended_at - left_at < 0.5


async def test_client_that_does_not_read_holds_the_stream_back(simulator: Simulator) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, ("127.0.0.1", int(simulator.origin.rpartition(":")[2])))
        await loop.sock_sendall(slow, request_bytes("[[sim tokens=60000]]"))
        record = (await simulator.wait_for_requests(1, 2))[0]
        with pytest.raises(TimeoutError):
            await simulator.wait_for_end(record, 0.2)
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            received += await loop.sock_recv(slow, 1 << 20)
        assert (await simulator.wait_for_end(record, 1)).ending is RequestEnd.COMPLETED
        assert received.count(b'"content":" ') == 59_999


async def test_log_keeps_what_was_sent(simulator: Simulator, session: aiohttp.ClientSession) -> None:
    headers = {"Authorization": "Bearer sk-test", "X-Trace": "abc"}
    body = {"model": "m", "messages": [USER], "temperature": 0}
    async with session.post(f"{simulator.base_url}/chat/completions?v=1", json=body, headers=headers) as response:
        await response.read()
    record = simulator.requests[0]
    assert (record.method, record.path, record.body, record.status) == ("POST", "/v1/chat/completions", body, 200)
    assert (record.headers["authorization"], record.headers["x-trace"]) == ("Bearer sk-test", "abc")
    assert record.ended_at is not None
    assert record.ended_at >= record.received_at


async def test_log_is_bounded(session: aiohttp.ClientSession) -> None:
    simulator = Simulator(log_size=2)
    await simulator.start()
    client = ChatClient(session, simulator.base_url)
    for said in ("a", "b", "c"):
        await client.ask(said)
    assert [record.body["messages"][0]["content"] for record in simulator.requests] == ["b", "c"]
    assert len(await simulator.wait_for_requests(3, 0.1)) == 2
    await simulator.stop()


async def test_waiting_for_requests_that_do_not_come_times_out(simulator: Simulator) -> None:
    with pytest.raises(TimeoutError):
        await simulator.wait_for_requests(1, 0.05)


async def test_strict_server_refuses_and_logs_the_problems(session: aiohttp.ClientSession) -> None:
    simulator = Simulator(strict=True)
    await simulator.start()
    answer = await ChatClient(session, simulator.base_url).ask([USER, {"role": "tool", "tool_call_id": "x", "content": "?"}])
    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert "messages[1]" in answer.json["error"]["message"]
    assert "messages[1]" in simulator.requests[0].problems[0]
    await simulator.stop()


@pytest.mark.parametrize(("flag", "status"), [("", 200), ("strict", 200), ("picky", 400)])
async def test_one_request_may_be_judged_by_directive(client: ChatClient, flag: str, status: int) -> None:
    said = {"role": "user", "content": f"[[sim {flag}]]"}
    assert (await client.ask([USER, said])).status == status


@pytest.mark.parametrize("data", [b"{not json", b"[1]", b'"text"', b"\xff\xfe", b"", b'{"messages": 3}', b"[" * 100_000])
async def test_bad_body_is_a_json_400(simulator: Simulator, session: aiohttp.ClientSession, data: bytes) -> None:
    async with session.post(f"{simulator.base_url}/chat/completions", data=data) as response:
        assert response.status == 400
        assert "error" in await response.json()


@pytest.mark.parametrize(
    "messages", [[None], ["x"], [{"role": ["user"]}], [{"role": "user", "content": {"a": 1}}], [{"role": "user", "content": [1, None]}]]
)
async def test_odd_history_is_answered_without_strict(client: ChatClient, messages: list[Any]) -> None:
    assert (await client.ask(messages)).status == 200


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("GET /", 404),
        ("POST /v1/embeddings", 404),
        ("GET /v1/chat/completions", 405),
        ("PUT /_simulator/requests", 405),
        ("GET /_simulator/requests?after=x", 400),
        ("GET /livez", 200),
        ("GET /v1/models", 200),
    ],
)
async def test_every_path_is_answered_in_json(simulator: Simulator, session: aiohttp.ClientSession, call: str, status: int) -> None:
    method, path = call.split()
    async with session.request(method, simulator.origin + path) as response:
        assert response.status == status
        assert isinstance(await response.json(), dict)


async def test_log_over_http(simulator: Simulator, client: ChatClient, session: aiohttp.ClientSession) -> None:
    pages = f"{simulator.origin}/_simulator/requests"
    await client.ask("a")
    await client.ask("b")
    async with session.get(pages) as response:
        first, second = (await response.json())["requests"]
    async with session.get(f"{pages}?after={first['number']}") as response:
        assert (await response.json())["requests"] == [second]
    assert (second["body"]["messages"][0]["content"], second["ending"]) == ("b", "completed")
    async with session.delete(pages) as response:
        assert await response.json() == {"cleared": 2}
    assert not simulator.requests


async def test_scripts_over_http(simulator: Simulator, client: ChatClient, session: aiohttp.ClientSession) -> None:
    encoded = base64.b64encode(b"\xf0\x9f").decode()
    raw = {"raw": ["data: a\n\n", {"base64": encoded, "pause_ms": 1}], "content_type": "text/x", "status": 201, "headers": {"x-a": "b"}}
    scripts = ["text=one", {"tokens": 2, "calls": [{"name": "f"}]}, raw]
    async with session.post(f"{simulator.origin}/_simulator/scripts", json={"scripts": scripts}) as response:
        assert await response.json() == {"queued": 3}
    assert (await client.ask()).text == "one"
    assert (await client.ask()).calls == [("f", "{}")]
    answer = await client.ask()
    assert (answer.status, answer.headers["content-type"], answer.headers["x-a"]) == (201, "text/x", "b")
    assert answer.raw == b"data: a\n\n\xf0\x9f"


@pytest.mark.parametrize("body", [[], {}, {"scripts": "text=a"}], ids=["list", "no scripts", "text"])
async def test_scripts_must_be_a_list(simulator: Simulator, session: aiohttp.ClientSession, body: object) -> None:
    async with session.post(f"{simulator.origin}/_simulator/scripts", json=body) as response:
        assert response.status == 400


@pytest.mark.parametrize(
    "script",
    [
        5,
        "a b=c",
        {"nope": 1},
        {"strict": []},
        {"pace_ms": "nan"},
        {"text": 1},
        {"usage": "1"},
        {"status": 204},
        {"status": 500, "header.a b": "x"},
        {"calls": [{"name": "f", "id": 3}]},
        {"calls": [{}]},
        {"calls": {}},
        {"calls": [], "tool": "x"},
        {"body": "x"},
        {"raw": "x"},
        {"raw": [], "end": "x"},
        {"raw": [], "status": "x"},
        {"raw": [], "more": 1},
        {"raw": [3]},
        {"raw": [{"base64": "?"}]},
    ],
    ids=str,
)
async def test_bad_scripts_over_http_are_refused(simulator: Simulator, session: aiohttp.ClientSession, script: object) -> None:
    async with session.post(f"{simulator.origin}/_simulator/scripts", json={"scripts": ["text=fine", script]}) as response:
        assert response.status == 400
        assert "error" in await response.json()
    assert "simulator" in (await ChatClient(session, simulator.base_url).ask()).text  # the good one beside it was not enqueued


def test_bad_words_are_refused_when_played() -> None:
    with pytest.raises(ScriptError, match="unknown key"):
        Simulator().play("nonsense=1")


async def test_stopping_ends_open_streams_and_frees_the_port(simulator: Simulator, client: ChatClient) -> None:
    asking = asyncio.create_task(client.ask("[[sim silent]]"))
    record = (await simulator.wait_for_requests(1, 2))[0]
    await simulator.stop()
    assert (await asking).broken is not None
    assert record.ending is RequestEnd.STOPPED
    await simulator.start(port=int(simulator.origin.rpartition(":")[2]))
    assert (await client.ask("[[sim text=again]]")).text == "again"


async def test_run_simulator_serves_until_cancelled(session: aiohttp.ClientSession) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(run_simulator("127.0.0.1", 0, strict=True, announce=told.put_nowait))
    base_url = await asyncio.wait_for(told.get(), 2)
    assert (await ChatClient(session, base_url).ask([])).status == 400
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await ChatClient(session, base_url).ask()).status is None


async def test_tls(session: aiohttp.ClientSession, certificate: Path) -> None:
    served, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=certificate)
    served.load_cert_chain(certificate)
    simulator = Simulator()
    await simulator.start(ssl_context=served)
    assert simulator.base_url.startswith("https://127.0.0.1:")
    body = {"model": "sim:text=secret,reset_after=9", "stream": True, "messages": [USER]}
    with pytest.raises(aiohttp.ClientError):
        await read_body(session, f"{simulator.base_url}/chat/completions", body, trusted)
    body["model"] = "sim:text=secret"
    assert b'"content":"secret"' in await read_body(session, f"{simulator.base_url}/chat/completions", body, trusted)
    await simulator.stop()


async def read_body(session: aiohttp.ClientSession, url: str, body: object, trusted: ssl.SSLContext) -> bytes:
    async with session.post(url, json=body, ssl=trusted) as response:
        return await response.read()


async def ask_each(said: list[str]) -> list[str | None]:
    """Ask a simulator of its own; returns how each request ended."""
    simulator = Simulator()
    await simulator.start()
    async with aiohttp.ClientSession() as session:
        for text in said:
            await ChatClient(session, simulator.base_url).ask(text, within_s=0.5)
            await simulator.wait_for_end(simulator.requests[-1], 1)
    await simulator.stop()
    return [record.ending for record in simulator.requests]


def test_other_event_loop() -> None:
    said = ["hello", "[[sim tokens=9 pace_ms=2 first_ms=5]]", "[[sim reset_after=1]]", "[[sim hangup]]", "[[sim silent]]"]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask_each(said)) == ["completed", "completed", "fault", "fault", "client_closed"]


async def test_two_hundred_paced_streams_at_once(simulator: Simulator, client: ChatClient) -> None:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    answers = await asyncio.gather(*(client.ask("[[sim tokens=50 first_ms=100 pace_ms=20]]") for _ in range(200)))
    assert all(answer.is_done and len(answer.text.split()) == 50 for answer in answers)
    assert loop.time() - started_at < 5
    assert {record.ending for record in simulator.requests} == {RequestEnd.COMPLETED}
