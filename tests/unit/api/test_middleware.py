import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import Response
from starlette.responses import StreamingResponse
from typing_extensions import override

from app.api.middleware import access_logger
from tests.unit.api.conftest import ACME_KEY, MAX_BODY_BYTES, Gateway, build, served

PATHS = ["/livez", "/nowhere", "/sessions", "/openapi.json", "/metrics", "/broken"]


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.arrived = asyncio.Event()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.arrived.set()


@pytest.fixture
def access_log() -> Iterator[Records]:
    handler = Records()
    level = access_logger.level
    access_logger.addHandler(handler)
    access_logger.setLevel(logging.INFO)
    yield handler
    access_logger.removeHandler(handler)
    access_logger.setLevel(level)


@pytest.fixture
async def broken() -> AsyncIterator[Gateway]:
    """A gateway with routes that fail: before their response, and in the middle of it."""
    gateway = build()

    async def fail() -> Response:
        msg = "postgresql://user:hunter2@db/inner"
        raise RuntimeError(msg)

    async def half() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            raise RuntimeError

        return StreamingResponse(parts(), media_type="text/event-stream", headers={"Cache-Control": "no-cache, no-transform"})

    gateway.app.add_api_route("/broken", fail)
    gateway.app.add_api_route("/half", half)
    async with served(gateway.app) as url:
        gateway.url = url
        yield gateway


@pytest.mark.parametrize("path", PATHS)
async def test_every_response_has_a_request_id_and_the_security_headers(broken: Gateway, path: str) -> None:
    async with broken.client() as http:
        response = await http.get(path)

    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert "server" not in response.headers
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("given", ["abc-1.2_3", "x" * 128], ids=["plain", "longest"])
async def test_a_sane_request_id_is_kept(client: httpx.AsyncClient, given: str) -> None:
    assert (await client.get("/nowhere", headers={"X-Request-Id": given})).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\xe9", 'a"b'], ids=["empty", "space", "long", "latin", "quote"])
async def test_another_request_id_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    response = await client.get("/nowhere", headers={b"X-Request-Id": given.encode("latin-1")})

    assert response.headers["x-request-id"].startswith("req_")


async def test_an_unexpected_error_is_a_500_that_says_nothing_of_the_inside(broken: Gateway) -> None:
    async with broken.client() as http:
        response = await http.get("/broken")

    assert response.status_code == 500
    assert response.json()["code"] == "internal_error"
    assert "hunter2" not in response.text
    assert "RuntimeError" not in response.text


async def test_an_error_in_the_middle_of_a_stream_cuts_it_visibly(broken: Gateway) -> None:
    async with broken.client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get("/half")


async def test_an_announced_body_that_is_too_large_is_413_and_closes(client: httpx.AsyncClient) -> None:
    response = await client.post("/sessions", content=b"x" * (MAX_BODY_BYTES * 10))

    assert response.status_code == 413
    assert response.json()["code"] == "body_too_large"
    assert response.headers["connection"] == "close"


async def test_a_chunked_body_is_counted(client: httpx.AsyncClient) -> None:
    async def chunks(number: int) -> AsyncIterator[bytes]:
        for _ in range(number):
            yield b" " * 50_000

    fitting = await client.post("/sessions", content=chunks(8))
    large = await client.post("/sessions", content=chunks(12))

    assert fitting.status_code == 422
    assert fitting.json()["code"] == "invalid_json"
    assert large.status_code == 413
    assert large.headers["x-request-id"] == large.json()["request_id"]


async def test_a_client_that_waits_for_100_continue_is_refused_without_its_body(gateway: Gateway) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_head("Content-Length: 99999999", "Expect: 100-continue"))
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 413")


async def test_the_access_log_has_one_line_a_request_without_query(gateway: Gateway, access_log: Records) -> None:
    async with gateway.client() as http:
        await http.get("/sessions?user=ada", headers={"X-Request-Id": "one"})
        await http.get("/nowhere?key=hunter22")

    first, second = (vars(record) for record in access_log.records)
    assert (first["method"], first["path"], first["status"], first["request_id"]) == ("GET", "/sessions", 200, "one")
    assert (second["path"], second["status"]) == ("/nowhere", 404)
    assert first["duration_ms"] >= 0
    assert "hunter22" not in str(second)


async def test_a_client_that_leaves_in_its_body_is_no_error(gateway: Gateway, access_log: Records) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(_head("Content-Length: 100") + b"{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.wait_for(access_log.arrived.wait(), 5)

    assert vars(access_log.records[0])["status"] == 499


async def test_frames_leave_at_once_though_the_client_takes_gzip() -> None:
    gateway = build()
    more = asyncio.Event()

    async def stream() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await more.wait()
            yield b"data: 2\n\n"

        headers = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
        return StreamingResponse(parts(), media_type="text/event-stream", headers=headers)

    gateway.app.add_api_route("/stream", stream)
    received: list[bytes] = []
    async with (
        served(gateway.app) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
        asyncio.timeout(5),
        http.stream("GET", "/stream", headers={"Accept-Encoding": "gzip"}) as response,
    ):
        async for part in response.aiter_raw():
            received.append(part)
            more.set()

    assert received == [b"data: 1\n\n", b"data: 2\n\n"]
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers


def _head(*headers: str) -> bytes:
    return "\r\n".join(("POST /sessions HTTP/1.1", "Host: x", f"Authorization: Bearer {ACME_KEY}", *headers, "", "")).encode()
