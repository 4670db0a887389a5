"""The edge every request passes: request id, body limit, security headers, access log, metrics, and the answer to a fault.

Pure ASGI, one layer. Behind the head of a response nothing is done: body messages go straight to the server's ``send``.
"""

import logging
import re
import secrets
from collections.abc import Awaitable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import INTERNAL_DETAIL, http_problem, problem, problem_response
from app.api.metrics import HttpMetrics
from app.ports import Clock

access_logger = logging.getLogger("app.access")
_logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_JSON_POLICY = b"default-src 'none'; frame-ancestors 'none'"
_DOCS_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline' https://cdn.jsdelivr.net; "
    b"img-src 'self' data: https://fastapi.tiangolo.com; connect-src 'self'; frame-ancestors 'none'"
)
"""FastAPI's page loads Swagger UI from a CDN and starts it from an inline script."""
DOCS_PATH = "/docs"
_CLIENT_GONE = 499
"""What the log says of a client that left before there was an answer (nginx' number); never sent."""
_DISCARDED_BYTES = 33_554_432
"""A too large body up to this is read and thrown away: a client that is still sending often cannot read the refusal."""


class BodyTooLargeError(HTTPException):
    """The body exceeds the limit. An HTTPException, because frameworks pass no other through the parsing of a body."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body may have at most {limit} bytes.", headers={"Connection": "close"})


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, clock: Clock, metrics: HttpMetrics, max_body_bytes: int) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = self._clock.monotonic()
        response = _Response(scope, send)
        try:
            await self._guarded(scope, receive, response)
        except ClientDisconnect:
            pass
        except Exception:  # a boundary: whatever a handler did not expect is answered, logged once, and goes no further
            _logger.exception("unhandled error", extra={"request_id": response.request_id})
            if response.status is None:
                answer = problem_response(scope, problem("internal_error", INTERNAL_DETAIL))
                await answer(scope, receive, response.send)
        finally:
            self._finished(scope, response, self._clock.monotonic() - started_at)

    async def _guarded(self, scope: Scope, receive: Receive, response: "_Response") -> None:
        """Run the application with the size of the body limited."""
        length = _header(scope, b"content-length")
        limit = self._max_body_bytes
        if length is not None and length.isdigit():
            # The server itself sees to it that no more comes than was announced.
            if int(length) > limit:
                await self._refuse(scope, receive, response)
                return
        elif _header(scope, b"transfer-encoding") is not None:
            receive = _counted(receive, limit)
        await self._app(scope, receive, response.send)

    async def _refuse(self, scope: Scope, receive: Receive, response: "_Response") -> None:
        if _header(scope, b"expect") is None:  # such a client sends nothing before it has read our answer
            await _discard(receive)
        answer = problem_response(scope, *http_problem(BodyTooLargeError(self._max_body_bytes)))
        await answer(scope, receive, response.send)

    def _finished(self, scope: Scope, response: "_Response", duration_s: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        status = _CLIENT_GONE if response.status is None else response.status
        self._metrics.record(scope["method"], route, status, duration_s)
        if access_logger.isEnabledFor(logging.INFO):
            fields = {
                "method": scope["method"],
                "path": route or scope["path"],
                "status": status,
                "duration_ms": round(duration_s * 1000, 1),
                "request_id": response.request_id,
            }
            tenant_id = scope["state"].get("tenant_id")
            if tenant_id is not None:
                fields["tenant_id"] = tenant_id
            access_logger.info("request", extra=fields)


class _Response:
    """One response on its way out: completes its head and remembers its status."""

    __slots__ = ("_docs", "_send", "request_id", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        given = _header(scope, b"x-request-id")
        sane = given is not None and _REQUEST_ID.fullmatch(given) is not None
        self.request_id = given.decode() if given is not None and sane else f"req_{secrets.token_hex(12)}"
        self.status: int | None = None
        self._send = send
        self._docs = scope["path"] == DOCS_PATH
        scope.setdefault("state", {})["request_id"] = self.request_id

    def send(self, message: Message) -> Awaitable[None]:
        """ASGI ``send``. Not a coroutine itself, so that a body message costs one call and no frame."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._complete(message)
        return self._send(message)

    def _complete(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        names = {name.lower() for name, _ in headers}
        headers += (
            (b"x-request-id", self.request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
        )
        if b"cache-control" not in names:
            headers.append((b"cache-control", b"no-store"))
        if b"content-security-policy" not in names:
            headers.append((b"content-security-policy", _DOCS_POLICY if self._docs else _JSON_POLICY))
        message["headers"] = headers


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def _counted(receive: Receive, limit: int) -> Receive:
    """``receive`` for a body of unknown length: raises BodyTooLargeError at the byte that is one too many."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                if message.get("more_body", False):
                    await _discard(receive)
                raise BodyTooLargeError(limit)
        return message

    return counted


async def _discard(receive: Receive) -> None:
    received = 0
    while received <= _DISCARDED_BYTES:
        message = await receive()
        received += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
