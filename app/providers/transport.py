"""The HTTP client of the token path: one aiohttp session per process.

aiohttp is the well-kept client whose price per token and whose pool stay small with many open streams. Its exceptions carry addresses and
headers in their texts, so none leaves this module: they become the two errors below, raised outside the handler that caught them.

TLS memory: uvloop reserves 256 kB for each TLS connection but touches only what a read fills, so a paced stream costs a few pages. The
standard event loop fills that buffer with zeros when the connection opens; use uvloop where memory matters.
"""

import asyncio
import io
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import aiohttp
import msgspec
from typing_extensions import override

from app.domain.tenants import Provider, Route
from app.providers.mode import Mode

READ_BUFFER_BYTES: Final = 64 * 1024
"""A stream that is not read stops its socket at twice this size."""
_KEEPALIVE_S: Final = 30.0
_DNS_TTL_S: Final = 60
_LARGE_BODY_BYTES: Final = 1024 * 1024
"""Larger bodies are written piece by piece, so that they do not hold up other streams."""


class ConnectFailedError(Exception):
    """No connection came about. ``permanent``: trying again cannot help (address or certificate are wrong)."""

    def __init__(self, *, permanent: bool = False) -> None:
        super().__init__("no connection to the provider")
        self.permanent = permanent


class ConnectionBrokenError(Exception):
    """The connection died, or did not speak HTTP, after the request was sent."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how to send a route's requests. Holds credentials: never shown, never logged."""

    url: str
    headers: dict[str, str]
    timeout: aiohttp.ClientTimeout
    secrets: tuple[str, ...]
    """What must not appear in any text."""

    @override
    def __repr__(self) -> str:
        return "Endpoint(…)"


def endpoint_of(route: Route, mode: Mode) -> Endpoint:
    """Prepare what all requests of ``route`` share. A query in the base URL is kept."""
    provider = route.provider
    parts = _split(provider.base_url)
    url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + mode.path, fragment=""))
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "User-Agent": "agent-gateway",
        **mode.headers(provider),
        **provider.headers,
    }
    timeout = aiohttp.ClientTimeout(total=None, connect=route.connect_timeout_s, sock_connect=None, sock_read=None, ceil_threshold=600)
    return Endpoint(url=url, headers=headers, timeout=timeout, secrets=_secrets(provider))


class ResponseStream:
    """A response whose head has arrived."""

    __slots__ = ("_response", "_resting", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._resting: asyncio.TimerHandle | None = None
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Looked up without regard to case."""

    @property
    def ended(self) -> bool:
        """Whether the whole response has arrived; its connection then serves other requests."""
        return self._response.content.is_eof()

    async def read(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; empty at the end. Raises ConnectionBrokenError."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError):  # RuntimeError: aiohttp's word for a connection that is already gone
            pass
        raise ConnectionBrokenError

    def rest(self, for_s: float) -> None:
        """Leave what arrives to the socket for so long: it is then read, parsed and passed on together."""
        connection = self._response.connection
        if connection is None or connection.transport is None:
            return  # all of it has arrived
        connection.transport.pause_reading()
        self._resting = asyncio.get_running_loop().call_later(for_s, connection.transport.resume_reading)

    def close(self) -> None:
        """Close the socket at once, unless the response was read to its end. Wakes a pending ``read``. Idempotent."""
        if self._resting is not None:
            self._resting.cancel()
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()  # a TLS goodbye would wait for the peer
        self._response.close()


class ProviderTransport:
    """Opens streams to providers. Made inside the running event loop; ``tls`` is for operators with their own authorities."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        connector = aiohttp.TCPConnector(
            limit=0, ssl=tls or ssl.create_default_context(), keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=_DNS_TTL_S
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER_BYTES,
            trust_env=False,
        )

    async def open(self, endpoint: Endpoint, body: bytes) -> ResponseStream:
        """Send ``body`` and return when the response's head is there, whatever its status; redirects are not followed.

        Raises ConnectFailedError or ConnectionBrokenError. Cancellation closes the socket.
        """
        try:
            response = await self._session.post(
                endpoint.url,
                data=body if len(body) <= _LARGE_BODY_BYTES else io.BytesIO(body),
                headers=endpoint.headers,
                timeout=endpoint.timeout,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = _translate(error)
        else:
            return ResponseStream(response)
        raise failure

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


def _translate(error: Exception) -> ConnectFailedError | ConnectionBrokenError:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ConnectFailedError(permanent=True)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return ConnectFailedError()
        case aiohttp.ClientError() | OSError():
            return ConnectionBrokenError()
        case _:
            return ConnectFailedError(permanent=True)  # ValueError: an address or a header that cannot be sent


def _split(base_url: str) -> SplitResult:
    try:
        return urlsplit(base_url.strip())
    except ValueError:
        return SplitResult("", "", base_url, "", "")  # sending to it fails, which tells the caller


def _secrets(provider: Provider) -> tuple[str, ...]:
    """Everything of a provider's configuration that is not for clients to see, longest first."""
    parts = _split(provider.base_url)
    found = {provider.api_key, provider.base_url, parts.netloc, parts.path, *provider.headers.values()}
    found.update(value for _, value in parse_qsl(parts.query))
    found.update(value.split()[-1] for value in provider.headers.values() if value.split())
    return tuple(sorted((secret for secret in found if len(secret) > 1), key=len, reverse=True))
