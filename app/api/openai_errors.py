"""Errors in OpenAI's shape, for everything below ``/v1``: routes, unknown paths, authentication, validation and middleware alike.

::

    {"error": {"message": "…", "type": "invalid_request_error", "param": "messages[0].content", "code": "invalid_request"}}

``code`` is the one of the problem that the native API would answer with, except where OpenAI has a well-known one.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

PREFIX = "/v1"
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

_TYPES: Mapping[int, str] = {
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_CODES: Mapping[str, str] = {"unauthorized": "invalid_api_key", "quota_exceeded": "rate_limit_exceeded"}
_STATUSES: Mapping[int, int] = {HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST}
"""Statuses that OpenAI's clients do not expect, by the one they do."""
_INDEX = re.compile(r"\.(\d+)(?=\.|$)")


class CallError(Exception):
    """A call of a facade that ends with an error of its own: what the native API has no problem for.

    ``retry_after_s`` in seconds; ``retryable`` false tells clients that would try again by themselves not to.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retryable: bool = True,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the answer."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def install(app: FastAPI) -> None:
    """Answer every CallError that a handler of ``app`` lets through."""

    async def call(_request: Request, error: Exception) -> Response:
        if not isinstance(error, CallError):
            raise error
        return error_response(error)

    app.add_exception_handler(CallError, call)


def speaks_openai(scope: Scope) -> bool:
    """Whether the request that ``scope`` is of is answered in OpenAI's shape."""
    path: str = scope["path"]
    return path == PREFIX or path.startswith(PREFIX + "/")


def error_object(status: int, message: str, *, code: str, param: str | None = None) -> dict[str, Any]:
    """The object below ``error``."""
    kind = SERVER_ERROR if status >= HTTPStatus.INTERNAL_SERVER_ERROR else _TYPES.get(status, INVALID_REQUEST)
    return {"message": message, "type": kind, "param": param, "code": _CODES.get(code, code)}


def error_response(error: CallError, headers: Mapping[str, str] | None = None) -> Response:
    """The response of an error."""
    status = _STATUSES.get(error.status, error.status)
    content = msgspec.json.encode({"error": error_object(status, error.message, code=error.code, param=error.param)})
    all_headers = {**(headers or {}), **error.headers}
    if not error.retryable and (status == HTTPStatus.CONFLICT or status >= HTTPStatus.INTERNAL_SERVER_ERROR):
        all_headers["x-should-retry"] = "false"  # the official clients repeat these statuses unless told otherwise
    return Response(content, status_code=status, media_type="application/json", headers=all_headers)


def param_of(pointer: str) -> str | None:
    """A JSON pointer as OpenAI names a parameter: ``/messages/0/content`` is ``messages[0].content``."""
    dotted = pointer.removeprefix("/").replace("/", ".").replace("~1", "/").replace("~0", "~")
    return _INDEX.sub(r"[\1]", dotted) or None
