"""Errors on the wire: the one table from an error to a status, and RFC 9457 problems.

Every error response, whoever raised it, is ``application/problem+json`` (below ``/v1`` the same in OpenAI's shape, see
:mod:`app.api.openai_errors`)::

    {"type": "/problems/turn_in_progress", "title": "…", "status": 409, "code": "turn_in_progress",
     "detail": "…", "retryable": true, "request_id": "…", "turn_id": "turn_…"}

``code`` is stable. A problem says nothing of the inside and repeats nothing of the input but the names of fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import pydantic_core
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from app.api.openai_errors import CallError, error_response, param_of, speaks_openai
from app.api.rate_limit import rate_limit_headers, retry_after_s
from app.domain.errors import (
    ConflictError,
    ForbiddenError,
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
    UnauthorizedError,
    UnavailableError,
)
from app.domain.events import Problem
from app.domain.ids import TurnId
from app.domain.messages import clean_text

PROBLEM_MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "/problems/"
_MAX_FIELD_ERRORS = 20
_MAX_POINTER = 200


class Kind(msgspec.Struct, frozen=True):
    """What is the same for every problem of one code."""

    status: int
    title: str
    retryable: bool = False


KINDS: Mapping[str, Kind] = {
    "invalid_request": Kind(422, "The request is invalid"),
    "invalid_json": Kind(422, "The body is not valid JSON"),
    "bad_request": Kind(400, "The request cannot be read"),
    "unauthorized": Kind(401, "No valid API key"),
    "forbidden": Kind(403, "Not allowed"),
    "not_found": Kind(404, "Not found"),
    "method_not_allowed": Kind(405, "Method not allowed"),
    "session_changed": Kind(409, "The session was changed meanwhile", retryable=True),
    "turn_in_progress": Kind(409, "The session has a running turn", retryable=True),
    "queue_full": Kind(409, "The session's queue is full", retryable=True),
    "turn_not_waiting": Kind(409, "The turn waits for no answers"),
    "conflict": Kind(409, "Not possible in the present state"),
    "quota_exceeded": Kind(429, "A quota of the tenant is used up", retryable=True),
    "body_too_large": Kind(413, "The body is too large"),
    "idempotency_mismatch": Kind(422, "The idempotency key was used with another body"),
    "internal_error": Kind(500, "Internal error"),
    "unavailable": Kind(503, "Not available right now", retryable=True),
    "storage_unavailable": Kind(503, "The storage is not available right now", retryable=True),
    "at_capacity": Kind(503, "This replica is full", retryable=True),
    "draining": Kind(503, "This replica is shutting down", retryable=True),
}
"""Every code that an HTTP status of its own belongs to; conflicts and unavailabilities of other codes take their group's kind."""

_CODE_OF_STATUS = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}
_NOT_FOUND_DETAIL = "There is nothing here, or it is not yours."
_DETAILS = {
    400: "The request cannot be read.",
    404: _NOT_FOUND_DETAIL,
    405: "This resource does not have this method; the Allow header names those it has.",
}
"""In place of the phrases that the framework writes; our own code gives its details with the exception."""
INTERNAL_DETAIL = "Something went wrong on our side. The log has the cause under this request id."


class FieldError(msgspec.Struct, frozen=True):
    """One thing wrong with the input: ``pointer`` is a JSON pointer into the body, or ``/name`` of a parameter."""

    pointer: str
    detail: str


class RequestProblem(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """A problem of an HTTP request; ``errors`` lists what is wrong with the input, ``violated_policies`` the quotas that are used up."""

    errors: tuple[FieldError, ...] = ()
    violated_policies: tuple[str, ...] = ()


class InvalidBodyError(Exception):
    """The body does not have the shape that the route takes. ``code``: ``invalid_json`` or ``invalid_request``."""

    def __init__(self, code: str, errors: tuple[FieldError, ...]) -> None:
        super().__init__(code)
        self.code = code
        self.errors = errors

    @classmethod
    def of(cls, error: ValidationError, content: bytes) -> "InvalidBodyError":
        """What pydantic found in the JSON ``content``, without repeating any of it."""
        details = error.errors(include_url=False, include_context=False, include_input=False)
        if details[0]["type"] == "json_invalid":
            return cls("invalid_json", (FieldError("", "The body is not valid JSON, or nested too deeply."),))
        document = pydantic_core.from_json(content)
        return cls("invalid_request", _field_errors(_telling([(_place(item, document), item["type"], item["msg"]) for item in details])))


def problem(
    code: str,
    detail: str,
    *,
    kind: Kind | None = None,
    turn_id: TurnId | None = None,
    errors: tuple[FieldError, ...] = (),
) -> RequestProblem:
    """A problem of ``code``; ``kind`` for codes that :data:`KINDS` does not list."""
    kind = kind or KINDS[code]
    return RequestProblem(
        type=_TYPE_PREFIX + code,
        title=kind.title,
        status=kind.status,
        code=code,
        detail=detail,
        retryable=kind.retryable,
        turn_id=turn_id,
        errors=errors,
    )


def problem_response(scope: Scope, body: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The response that carries ``body``, completed with the id of the request that ``scope`` is of.

    Below ``/v1`` it is written as OpenAI writes errors.
    """
    if speaks_openai(scope):
        return error_response(_call_error(body), headers)
    request_id = scope.get("state", {}).get("request_id")
    content = msgspec.json.encode(msgspec.structs.replace(body, request_id=request_id))
    return Response(content, status_code=body.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers)


def _call_error(body: Problem) -> CallError:
    field = body.errors[0] if isinstance(body, RequestProblem) and body.errors else None
    param = None if field is None else param_of(field.pointer)
    message = body.detail if field is None else field.detail
    return CallError(body.status, f"{param}: {message}" if param else message, code=body.code, param=param, retryable=body.retryable)


def gateway_problem(error: GatewayError) -> tuple[RequestProblem, dict[str, str]]:
    """The table: an error of the service to its problem and the headers that go with it.

    ModelError and LeaseLostError end turns, not requests; should one get here it is a fault like any other.
    """
    headers: dict[str, str] = {}
    match error:
        case InvalidRequestError():
            body = problem("invalid_request", error.detail, errors=(FieldError(_bounded(error.pointer), error.detail),))
        case UnauthorizedError():
            body, headers = problem("unauthorized", error.detail), {"WWW-Authenticate": "Bearer"}
        case ForbiddenError():
            body = problem(error.code, error.detail, kind=KINDS["forbidden"])
        case NotFoundError():
            body = problem("not_found", _NOT_FOUND_DETAIL)
        case ConflictError():
            kind = KINDS.get(error.code, KINDS["conflict"])
            body = problem(error.code, error.detail, kind=kind, turn_id=error.turn_id)
            headers = {"Location": f"/turns/{error.turn_id}"} if error.turn_id else {}
        case QuotaExceededError():
            body, headers = _quota_problem(error)
        case UnavailableError():
            kind = KINDS.get(error.code, KINDS["unavailable"])
            body, headers = problem(error.code, error.detail, kind=kind), {"Retry-After": str(error.retry_after_s)}
        case _:
            raise error
    return body, headers


def _quota_problem(error: QuotaExceededError) -> tuple[RequestProblem, dict[str, str]]:
    seconds = retry_after_s(error.violated)
    policies = tuple(state.policy.value for state in error.violated)
    body = msgspec.structs.replace(problem("quota_exceeded", error.detail), violated_policies=policies, retry_after_s=seconds)
    return body, {"Retry-After": str(seconds), **rate_limit_headers(error.violated)}


def http_problem(error: HTTPException) -> tuple[RequestProblem, dict[str, str]]:
    """The same for errors that come as a bare status: those of the framework."""
    code = _CODE_OF_STATUS.get(
        error.status_code, "bad_request" if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "internal_error"
    )
    kind = Kind(error.status_code, KINDS[code].title, KINDS[code].retryable)
    detail = _DETAILS.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return problem(code, detail, kind=kind), headers


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every error that a handler of ``app`` lets through with its problem. ``routes`` are those that have an Allow header."""

    async def gateway(request: Request, error: Exception) -> Response:
        if not isinstance(error, GatewayError):
            raise error
        return problem_response(request.scope, *gateway_problem(error))

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        body, headers = http_problem(error)
        if body.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allow(request.scope, routes)
        return problem_response(request.scope, body, headers)

    async def parameters(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        # FastAPI's locations begin with where the value came from ("query", "path", "header").
        errors = _field_errors((item["loc"][1:], item["msg"]) for item in error.errors())
        return problem_response(request.scope, problem("invalid_request", "A parameter is invalid.", errors=errors))

    async def body(request: Request, error: Exception) -> Response:
        if not isinstance(error, InvalidBodyError):
            raise error
        detail = "The body could not be parsed." if error.code == "invalid_json" else "The body is invalid."
        return problem_response(request.scope, problem(error.code, detail, errors=error.errors))

    app.add_exception_handler(GatewayError, gateway)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, parameters)
    app.add_exception_handler(InvalidBodyError, body)


def _field_errors(details: Iterable[tuple[Sequence[str | int], str]]) -> tuple[FieldError, ...]:
    errors = [FieldError(json_pointer(location), _sentence(message)) for location, message in details]
    return tuple(errors[:_MAX_FIELD_ERRORS])


def _telling(found: Sequence[tuple[list[str | int], str, str]]) -> list[tuple[list[str | int], str]]:
    """Errors without those of a union's other members, where the value has the type of one and something else is wrong with it."""
    return [
        (place, message)
        for place, kind, message in found
        if not kind.endswith("_type")
        or not any(other[: len(place)] == place and (len(other) > len(place) or not what.endswith("_type")) for other, what, _ in found)
    ]


def _place(item: ErrorDetails, document: Any) -> list[str | int]:
    """Where in the ``document`` an error is: its location without the steps of pydantic's own, such as the name of a union's member."""
    place: list[str | int] = []
    found = document
    for step in item["loc"]:
        match found:
            case dict() if step in found:
                found = found[step]
            case list() if isinstance(step, int) and step < len(found):
                found = found[step]
            case _:
                continue
        place.append(step)
    return [*place, item["loc"][-1]] if item["type"] == "missing" else place


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ").rstrip(".")
    return f"{message[:1].upper()}{message[1:]}."


def json_pointer(location: Sequence[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a place given as keys and indexes, of bounded length."""
    return _bounded("".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location))


def _bounded(pointer: str) -> str:
    # Keys are the caller's own text: it may be long, and text that UTF-8 cannot hold would break the answer.
    return clean_text(pointer[:_MAX_POINTER])


def _allow(scope: Scope, routes: Iterable[BaseRoute]) -> str:
    """Every method of the path; the framework knows only those of the first route that has it."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))
