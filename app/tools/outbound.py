"""The guard of every address that a tenant or a model gives: what is called is a public host, or one that the operator allows.

A host is resolved once per connection, all its addresses are judged, and the connection goes to one of those very addresses, so a name
that resolves to something else a moment later changes nothing. TLS and the ``Host`` header keep the name. Odd spellings of addresses
(``2130706433``, ``0177.0.0.1``) are judged by what they resolve to. A proxy of the environment is not used: it would resolve for itself.
No connection is used twice: a later request could be for another name on the same address, or of another tenant.

Texts of errors name neither addresses nor whether an inner name exists.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import httpx
from typing_extensions import override

from app.domain.outbound import OutboundPolicy

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host (in ASCII) for a port. Raises OSError when it has none."""

CONNECT_TIMEOUT_S: Final = 10.0
MAX_URL_CHARACTERS: Final = 4_096
_MAX_TRIED: Final = 4
"""Addresses of one host that are tried."""
_PORTS: Final = {"http": 80, "https": 443}
_NO_POOL: Final = httpx.Limits(max_connections=None, max_keepalive_connections=0)

NOT_PUBLIC: Final = "The host cannot be called: it has no public address."


class OutboundRefusedError(httpx.TransportError):
    """An address is not called. The text says why and is safe to show."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of ``host`` by the system's resolver, in its order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class GuardedTransport(httpx.AsyncBaseTransport):
    """Sends requests over ``inner`` to addresses that were checked. Raises OutboundRefusedError beside what ``inner`` raises."""

    def __init__(self, policy: OutboundPolicy, resolver: Resolver, inner: httpx.AsyncBaseTransport) -> None:
        self._policy = policy
        self._resolver = resolver
        self._inner = inner

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Check, connect, send; the next address of the host only if there was no connection to the one before."""
        check_url(request.url)
        failure: httpx.TransportError = OutboundRefusedError(NOT_PUBLIC)
        for address in await self._addresses(request):
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _addresses(self, request: httpx.Request) -> Sequence[str]:
        host, port = request.url.raw_host.decode("ascii"), request.url.port or _PORTS[request.url.scheme]
        timeout = request.extensions.get("timeout", {}).get("connect")
        try:
            async with asyncio.timeout(timeout):
                found = await self._resolver(host, port)
        except TimeoutError:
            raise httpx.ConnectTimeout("the host was not resolved in time") from None
        except (OSError, UnicodeError):
            found = ()
        if not self._policy.allows(host, found):
            raise OutboundRefusedError(NOT_PUBLIC)
        return tuple(found)[:_MAX_TRIED]


class Outbound:
    """Makes HTTP clients whose every request passes the guard. ``resolver`` and ``tls`` are the system's unless given."""

    def __init__(self, policy: OutboundPolicy, resolver: Resolver = resolve, *, tls: ssl.SSLContext | None = None) -> None:
        self._policy = policy
        self._resolver = resolver
        self._tls = tls or ssl.create_default_context()

    def client(
        self, headers: dict[str, str] | None = None, timeout: httpx.Timeout | None = None, auth: httpx.Auth | None = None
    ) -> httpx.AsyncClient:
        """A client that follows no redirects; close it. ``timeout`` is per operation; without one, 10 s to connect and for each read."""
        inner = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=_NO_POOL)
        return httpx.AsyncClient(
            transport=GuardedTransport(self._policy, self._resolver, inner),
            headers=headers,
            timeout=httpx.Timeout(CONNECT_TIMEOUT_S) if timeout is None else timeout,
            auth=auth,
            follow_redirects=False,
            trust_env=False,
        )


def read_url(text: str) -> httpx.URL:
    """An address that somebody wrote. Raises OutboundRefusedError for what is none, or can never be called."""
    if len(text) > MAX_URL_CHARACTERS:
        raise OutboundRefusedError(f"The address is longer than {MAX_URL_CHARACTERS} characters.")
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, ValueError):
        raise OutboundRefusedError("This is not an address that can be called.") from None
    check_url(url)
    return url


def check_url(url: httpx.URL) -> None:
    """Raises OutboundRefusedError for an address that can never be called, wherever it leads."""
    if url.scheme not in _PORTS:
        raise OutboundRefusedError("Only addresses with http:// or https:// are called.")
    if not url.raw_host:
        raise OutboundRefusedError("The address has no host.")
    if url.userinfo:
        raise OutboundRefusedError("The address holds a user name or password; these are not sent.")


def _pinned(request: httpx.Request, address: str) -> httpx.Request:
    """``request``, sent to ``address``; its headers, among them ``Host``, stay as they are."""
    extensions = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
    url = request.url.copy_with(host=address)
    return httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
