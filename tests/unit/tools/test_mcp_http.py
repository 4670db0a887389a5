"""The SDK's requests over the gateway's client: what fails is an answer, so that one broken request ends no session."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest

from app.domain.outbound import OutboundPolicy
from app.tools.mcp_http import BROKEN, DENIED, MAX_ANSWER_BYTES, UNREACHED, BridgedTransport
from app.tools.outbound import Outbound
from tests.e2e.processes import free_port

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OUTBOUND = Outbound(OutboundPolicy("127.0.0.0/8"))


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """A server that reads one request's head and answers it as told, byte for byte."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


def bridged(outbound: Outbound = OUTBOUND) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=BridgedTransport(outbound.client()), headers={"X-Team": "blue"}, trust_env=False)


def says(head: str, body: bytes = b"", length: int | None = None) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body)
        await writer.drain()

    return answer


def failure(response: httpx2.Response) -> tuple[int, str]:
    assert response.status_code == 503
    assert response.json()["id"] is None
    error = response.json()["error"]
    return error["code"], error["message"]


async def test_requests_and_answers_pass_as_they_are() -> None:
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        heard.append(await reader.readexactly(9))
        writer.write(b"HTTP/1.1 418 Teapot\r\nX-Kind: pot\r\nContent-Length: 2\r\n\r\nok")

    async with listening(answer) as url, bridged() as client:
        response = await client.post(url, json={"a": 1.5})
    assert (response.status_code, response.headers["X-Kind"], response.content) == (418, "pot", b"ok")
    assert heard[0].startswith(b"POST /mcp HTTP/1.1\r\n")
    assert heard[0].lower().count(b"\r\nhost: ") == heard[0].lower().count(b"\r\ncontent-length: ") == 1
    assert b"\r\nX-Team: blue\r\n" in heard[0]
    assert json.loads(heard[1]) == {"a": 1.5}


async def test_a_server_that_nobody_reaches_is_an_answer() -> None:
    async with bridged() as client:
        assert failure(await client.post(f"http://127.0.0.1:{free_port()}/mcp")) == (UNREACHED, "It cannot be reached.")


async def test_a_refused_address_is_an_answer_with_the_guards_words() -> None:
    async with listening(says("200 OK")) as url, bridged(Outbound(OutboundPolicy())) as client:
        code, reason = failure(await client.post(url))
    assert code == UNREACHED
    assert "no public address" in reason
    assert "127.0.0.1" not in reason


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


CUT: dict[str, Answer] = {
    "before the answer": hang_up,
    "inside the body": says("200 OK\r\nContent-Type: application/json", b'{"half', 100),
    "no HTTP": says("hello"),
}


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
async def test_a_connection_that_breaks_is_an_answer(answer: Answer) -> None:
    async with listening(answer) as url, bridged() as client:
        assert failure(await client.post(url)) == (BROKEN, "The connection broke.")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_credential_that_is_not_accepted_is_said_so(status: int) -> None:
    async with listening(says(f"{status} No", b"go away")) as url, bridged() as client:
        assert failure(await client.post(url)) == (DENIED, "It does not accept the credential.")


async def test_an_answer_without_end_is_cut_off() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        try:
            for _ in range(MAX_ANSWER_BYTES // 65_536 * 4):
                writer.write(bytes(65_536))
                await writer.drain()
        except ConnectionError:
            return

    async with listening(flood) as url, bridged() as client:
        code, reason = failure(await client.post(url))
    assert code == BROKEN
    assert str(MAX_ANSWER_BYTES) in reason


async def test_a_packed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(1_000_000))
    async with listening(says("200 OK\r\nContent-Encoding: gzip", packed)) as url, bridged() as client:
        assert failure(await client.post(url))[0] == BROKEN


async def test_a_stream_is_handed_on_while_it_comes_and_ends_with_an_error_where_it_breaks() -> None:
    go_on = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: 1\n\n")
        await go_on.wait()

    async with listening(stream) as url, bridged() as client, client.stream("GET", url) as response:
        chunks = response.aiter_bytes()
        assert await anext(chunks) == b"data: 1\n\n"
        go_on.set()
        with pytest.raises(httpx2.ReadError):
            await anext(chunks)


async def test_the_client_beneath_is_closed_with_it() -> None:
    inner = httpx.AsyncClient()
    async with httpx2.AsyncClient(transport=BridgedTransport(inner)):
        assert not inner.is_closed
    assert inner.is_closed
