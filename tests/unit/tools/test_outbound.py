"""The guard: nothing that is not public is reached, whatever it is called, and the connection goes where it was looked."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.domain.outbound import OutboundPolicy
from app.tools.outbound import NOT_PUBLIC, Outbound, OutboundRefusedError, read_url
from tests.fakes.web_server import Answer, WebServer, web_server

LOOPBACK = OutboundPolicy("127.0.0.0/8")


class Names:
    """A resolver of the test's: answers in turn, the last one again and again; what it has no entry for does not exist."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.replace(".", "").isdigit():
            return (host,)
        answers = self._answers.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known: inner-dns-7.example")
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        running.pages["/"] = Answer(body=b"secret of the inside")
        yield running


async def get(outbound: Outbound, url: str) -> httpx.Response:
    async with outbound.client() as client:
        return await client.get(read_url(url))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST", "localhost.", "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.1", "017700000001",
     "0", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"],
)  # fmt: skip
async def test_no_spelling_of_loopback_reaches_a_listener_there(server: WebServer, host: str) -> None:
    with pytest.raises(OutboundRefusedError) as refused:
        await get(Outbound(OutboundPolicy()), server.url(host=host))
    assert str(refused.value) == NOT_PUBLIC
    assert server.connections == 0


@pytest.mark.parametrize(
    "url",
    ["http://0177.0.0.1/", "http://127.0.0.1:99999/", "http://[::1/", "http://a b.example:x/", "http://①②⑦.⓪.⓪.①/", "http://a\nb/", ""],
)
async def test_what_is_no_address_gets_a_clear_refusal(url: str) -> None:
    with pytest.raises(OutboundRefusedError):
        await get(Outbound(OutboundPolicy()), url)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host.example/", "gopher://127.0.0.1/", "data:text/plain,hi", "//host.example"]
)
async def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(OutboundRefusedError, match="Only addresses with http"):
        read_url(url)


def test_credentials_in_an_address_are_refused() -> None:
    with pytest.raises(OutboundRefusedError, match="user name or password") as refused:
        read_url("http://user:hunter2@host.example/")
    assert "hunter2" not in str(refused.value)


def test_an_endless_address_is_refused() -> None:
    with pytest.raises(OutboundRefusedError, match="longer than"):
        read_url("http://host.example/" + "a" * 5_000)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "fd00:ec2::254", "100.64.0.9"])
async def test_a_name_is_judged_by_all_it_resolves_to(server: WebServer, address: str) -> None:
    for found in ([address], ["8.8.8.8", address]):
        with pytest.raises(OutboundRefusedError, match=NOT_PUBLIC):
            await get(Outbound(OutboundPolicy(), Names(evil_example=[found])), server.url(host="evil.example"))
    assert server.connections == 0


async def test_a_name_that_does_not_exist_is_told_like_an_inner_one(server: WebServer) -> None:
    with pytest.raises(OutboundRefusedError) as refused:
        await get(Outbound(OutboundPolicy(), Names()), server.url(host="nowhere.example"))
    assert str(refused.value) == NOT_PUBLIC


async def test_a_name_that_changes_between_check_and_connection_stays_where_it_was_checked(server: WebServer) -> None:
    names = Names(evil_example=[["127.0.0.2"], ["127.0.0.1"]])  # only the first is allowed; the listener is at the second
    outbound = Outbound(OutboundPolicy("127.0.0.2/32"), names)

    with pytest.raises(httpx.ConnectError):
        await get(outbound, server.url(host="evil.example"))

    assert names.asked == ["evil.example"]
    assert server.connections == 0


async def test_every_request_is_judged_anew(server: WebServer) -> None:
    names = Names(evil_example=[["127.0.0.1"], ["10.0.0.1"]])
    async with Outbound(LOOPBACK, names).client() as client:
        assert (await client.get(server.url(host="evil.example"))).status_code == 200
        with pytest.raises(OutboundRefusedError):
            await client.get(server.url(host="evil.example"))
    assert server.connections == 1


async def test_the_host_header_keeps_the_name_and_the_next_address_is_tried(server: WebServer) -> None:
    names = Names(tools_example=[["127.0.0.2", "127.0.0.1"]])
    response = await get(Outbound(LOOPBACK, names), server.url("/?a=%20b", host="tools.example"))
    assert response.status_code == 404
    assert server.received[0].headers["host"] == f"tools.example:{server.port}"
    assert server.received[0].target == "/?a=%20b"


async def test_redirects_are_not_followed(server: WebServer) -> None:
    server.pages["/away"] = Answer(302, headers=(("Location", server.url("/")),))
    assert (await get(Outbound(LOOPBACK), server.url("/away"))).status_code == 302
    assert len(server.received) == 1


async def test_a_proxy_of_the_environment_is_not_used(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        monkeypatch.setenv("http_proxy", proxy.url())
        assert (await get(Outbound(LOOPBACK), server.url())).status_code == 200
        assert proxy.connections == 0


async def test_a_resolver_that_hangs_ends_with_the_time_to_connect() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    async with Outbound(LOOPBACK, never).client(timeout=httpx.Timeout(5.0, connect=0.01)) as client:
        with pytest.raises(httpx.ConnectTimeout):
            await client.get("http://slow.example/")


async def test_a_certificate_is_checked_against_the_name_not_the_address(tmp_path: Path) -> None:
    serving, trusting = certificates(tmp_path, "tools.example")
    names = Names(tools_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    async with web_server(serving) as server:
        server.pages["/"] = Answer(body=b"hello")
        outbound = Outbound(LOOPBACK, names, tls=trusting)
        assert (await get(outbound, server.url(host="tools.example"))).text == "hello"
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await get(outbound, server.url(host="other.example"))
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await get(outbound, server.url())
        assert len(server.received) == 1


def certificates(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A context that serves as ``host`` and one that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("192.0.2.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(public + private)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(folder / "server.pem")
    return serving, ssl.create_default_context(cadata=public.decode())
