"""Fetching: every hop is judged, and neither size nor packing nor slowness gets past the limits."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from app.domain.outbound import OutboundPolicy
from app.tools.http_body import body_of
from app.tools.outbound import NOT_PUBLIC, Outbound
from app.tools.web_fetch import MAX_REDIRECTS, Fetched, FetchError, fetch
from tests.fakes.web_server import Answer, WebServer, web_server

LIMIT = 10_000


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@pytest.fixture
def outbound(server: WebServer) -> Outbound:
    async def resolve(host: str, port: int) -> list[str]:
        return {"inner.example": ["10.0.0.1"], "metadata.example": ["169.254.169.254"]}.get(host, ["127.0.0.1"])

    return Outbound(OutboundPolicy("127.0.0.0/8"), resolve)


async def fetched(outbound: Outbound, url: str, limit: int = LIMIT) -> Fetched:
    return await fetch(outbound, url, limit=limit, accept="*/*")


async def test_what_is_there_comes_back(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(body="grün".encode())
    found = await fetched(outbound, server.url())
    assert (found.url, found.body.text(), found.body.cut) == (server.url(), "grün", False)


async def test_redirects_are_followed_to_their_end(server: WebServer, outbound: Outbound) -> None:
    for number in range(MAX_REDIRECTS):
        server.pages[f"/{number}"] = Answer(302, headers=(("Location", f"/{number + 1}"),))
    server.pages[f"/{MAX_REDIRECTS}"] = Answer(body=b"end")
    found = await fetched(outbound, server.url("/0"))
    assert (found.url, found.body.data) == (server.url(f"/{MAX_REDIRECTS}"), b"end")


async def test_a_circle_of_redirects_ends(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(307, headers=(("Location", "/"),))
    with pytest.raises(FetchError, match="redirects more than 5 times"):
        await fetched(outbound, server.url())
    assert len(server.received) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("http://inner.example/", NOT_PUBLIC),
        ("http://metadata.example/latest/meta-data/", NOT_PUBLIC),
        ("http://10.1.2.3/", NOT_PUBLIC),
        ("//[fd00:ec2::254]/", NOT_PUBLIC),
        ("file:///etc/passwd", "Only addresses with http"),
        ("gopher://127.0.0.1:70/", "Only addresses with http"),
        ("http://user:hunter2@inner.example/", "user name or password"),
        ("http://[::1/", "was not HTTP"),
    ],
)
async def test_no_redirect_leads_inside(server: WebServer, target: str, said: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["169.254.169.254"] if "metadata" in host else ["10.0.0.1"] if "inner" in host else [host.strip("[]")]

    server.pages["/"] = Answer(302, headers=(("Location", target),))
    with pytest.raises(FetchError, match=said) as failure:
        await fetched(Outbound(OutboundPolicy("127.0.0.1/32"), resolve), server.url())
    assert "hunter2" not in str(failure.value)
    assert len(server.received) == 1


async def test_a_redirect_back_to_loopback_under_another_name_is_refused(server: WebServer) -> None:
    answers = {"public.example": ["127.0.0.1"], "rebound.example": ["127.0.0.3"]}

    async def resolve(host: str, port: int) -> list[str]:
        return answers[host]

    server.pages["/"] = Answer(302, headers=(("Location", server.url("/inner", host="rebound.example")),))
    with pytest.raises(FetchError, match=NOT_PUBLIC):
        await fetched(Outbound(OutboundPolicy("127.0.0.1/32"), resolve), server.url(host="public.example"))
    assert [one.target for one in server.received] == ["/"]


async def test_a_body_is_read_up_to_the_limit(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(body=b"x" * (LIMIT + 1))
    body = (await fetched(outbound, server.url())).body
    assert (len(body.data), body.cut) == (LIMIT, True)
    assert not (await fetched(outbound, server.url(), LIMIT + 1)).body.cut


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_packed_body_is_unpacked(server: WebServer, outbound: Outbound, encoding: str) -> None:
    packed = gzip.compress(b"hello") if encoding == "gzip" else zlib.compress(b"hello")
    server.pages["/"] = Answer(body=packed, headers=(("Content-Encoding", encoding),))
    assert (await fetched(outbound, server.url())).body.data == b"hello"
    assert server.received[0].headers["accept-encoding"] == "gzip"


async def test_a_bomb_is_unpacked_no_further_than_the_limit(server: WebServer, outbound: Outbound) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000, compresslevel=9)
    assert len(bomb) < 100_000
    server.pages["/"] = Answer(body=bomb, headers=(("Content-Encoding", "gzip"),))
    tracemalloc.start()
    try:
        body = (await fetched(outbound, server.url())).body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(body.data), body.cut) == (LIMIT, True)
    assert peak < 10_000_000


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_a_packing_nobody_asked_for_is_refused(server: WebServer, outbound: Outbound, encoding: str) -> None:
    server.pages["/"] = Answer(body=b"whatever", headers=(("Content-Encoding", encoding),))
    with pytest.raises(FetchError, match="not asked for"):
        await fetched(outbound, server.url())


async def test_a_broken_packing_is_told(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(body=b"this is no gzip", headers=(("Content-Encoding", "gzip"),))
    with pytest.raises(FetchError, match="packing is broken"):
        await fetched(outbound, server.url())


@pytest.mark.parametrize(("answer", "said"), [(Answer(404), "answered 404"), (Answer(500), "answered 500"), (Answer(304), "answered 304")])
async def test_an_error_status_is_told(server: WebServer, outbound: Outbound, answer: Answer, said: str) -> None:
    server.pages["/"] = answer
    with pytest.raises(FetchError, match=said):
        await fetched(outbound, server.url())


async def test_a_connection_that_breaks_or_never_comes_about_is_told_without_addresses(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(body=b"half", cut=True)
    with pytest.raises(FetchError, match="connection broke"):
        await fetched(outbound, server.url())
    with pytest.raises(FetchError, match="No connection") as failure:
        await fetched(outbound, "http://nobody.example:1/")
    assert "127.0.0.1" not in str(failure.value)


async def test_cancelling_closes_the_socket(server: WebServer, outbound: Outbound) -> None:
    server.pages["/"] = Answer(hold=True)
    fetching = asyncio.create_task(fetched(outbound, server.url()))
    await server.arrived.wait()
    fetching.cancel()
    await server.left.wait()
    with pytest.raises(asyncio.CancelledError):
        await fetching


@pytest.mark.parametrize(
    ("content_type", "data", "text"),
    [
        ("text/plain", "grün".encode(), "grün"),
        ("text/plain; charset=latin-1", "grün".encode("latin-1"), "grün"),
        ('text/html; charset="windows-1252"', "„grün“".encode("cp1252"), "„grün“"),
        ("text/html", b'<meta charset="iso-8859-1">gr\xfcn', '<meta charset="iso-8859-1">grün'),
        ("text/plain; charset=base64", b"plain", "plain"),
        ("text/plain; charset=idna", b"pl\xffain", "pl\ufffdain"),
        ("text/plain; charset=no-such", b"\xff", "\ufffd"),
        ("application/problem+json", b"{}", "{}"),
        ("image/png", b"text", None),
        ("text/plain", b"a\x00b", None),
        ("text/plain; charset=utf-16", "grün".encode("utf-16"), "grün"),
        ("text/plain", b"\xef\xbb\xbfhello", "hello"),
        ("", "grün".encode(), "grün"),
        ("", b"\xff\xd8\xff\xe0", None),
        ("", b"x" * (LIMIT - 1) + "ü".encode(), "x" * (LIMIT - 1)),
    ],
)
def test_text_is_decoded_by_what_is_said_of_it(content_type: str, data: bytes, text: str | None) -> None:
    assert body_of(httpx.Headers({"content-type": content_type}), data, LIMIT).text() == text
