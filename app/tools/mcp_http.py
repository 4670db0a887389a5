"""The SDK's HTTP over the gateway's: it wants httpx2, and addresses of tenants are only called through the guarded httpx client.

A request that fails is answered with a JSON-RPC error of our own, never with an exception: the SDK ends a whole session for one broken
request, and with it the calls beside it. Answers that are no stream are read at once, up to a limit.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import httpx
import httpx2
from typing_extensions import override

from app.tools.outbound import OutboundRefusedError

HttpClients: TypeAlias = Callable[[], httpx.AsyncClient]
"""Makes a client that calls only what may be called, and follows no redirects."""

UNREACHED: Final = -32_090
"""Code of our own: the request did not reach the server."""
BROKEN: Final = -32_091
"""Code of our own: the connection broke before the whole answer was there."""
DENIED: Final = -32_092
"""Code of our own: the server does not accept the credential."""

MAX_ANSWER_BYTES: Final = 8 * 1_024 * 1_024
_STREAM: Final = "text/event-stream"
_NOT_REACHED: Final = "It cannot be reached."
_BROKE: Final = "The connection broke."
_TOO_LARGE: Final = f"Its answer has more than {MAX_ANSWER_BYTES} bytes."
_NOT_LET_IN: Final = "It does not accept the credential."
_PACKED: Final = "Its answer is packed, which was not asked for."


class BridgedTransport(httpx2.AsyncBaseTransport):
    """Sends httpx2's requests with an httpx ``client``, which is closed with it."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._send(request)
        except OutboundRefusedError as error:
            return _failure(UNREACHED, str(error))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol):
            return _failure(UNREACHED, _NOT_REACHED)
        except httpx.TransportError:
            return _failure(BROKEN, _BROKE)

    @override
    async def aclose(self) -> None:
        await self._client.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        sent = httpx.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=await request.aread(),
            extensions=dict(request.extensions),
        )
        response = await self._client.send(sent, stream=True)
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            return _failure(BROKEN, _PACKED)
        if response.status_code in {401, 403}:
            await response.aclose()
            return _failure(DENIED, _NOT_LET_IN)
        headers = response.headers.raw
        if response.headers.get("content-type", "").lower().startswith(_STREAM):
            return httpx2.Response(response.status_code, headers=headers, stream=_Stream(response))
        try:
            body = await _read(response)
        finally:
            await response.aclose()
        return _failure(BROKEN, _TOO_LARGE) if body is None else httpx2.Response(response.status_code, headers=headers, content=body)


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.TransportError as error:
            raise httpx2.ReadError(_BROKE) from error

    @override
    async def aclose(self) -> None:
        await self._response.aclose()


async def _read(response: httpx.Response) -> bytes | None:
    """The body; ``None`` when it is too large."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)


def _failure(code: int, reason: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": reason}}
    return httpx2.Response(503, headers={"Content-Type": "application/json"}, content=json.dumps(error).encode())
