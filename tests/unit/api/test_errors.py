import json
from typing import Annotated, Any

import httpx
import pytest
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from app.api.errors import InvalidBodyError, gateway_problem, http_problem, json_pointer
from app.domain.errors import (
    ConflictError,
    ForbiddenError,
    GatewayError,
    InvalidRequestError,
    LeaseLostError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from app.domain.ids import TurnId
from tests.unit.api.conftest import Gateway

TABLE = [
    (InvalidRequestError("Bad.", pointer="/input"), 422, "invalid_request", False, {}),
    (UnauthorizedError("No."), 401, "unauthorized", False, {"WWW-Authenticate": "Bearer"}),
    (ForbiddenError("admin_disabled", "Closed."), 403, "admin_disabled", False, {}),
    (NotFoundError(), 404, "not_found", False, {}),
    (ConflictError("turn_in_progress", "Busy.", turn_id=TurnId("turn_1")), 409, "turn_in_progress", True, {"Location": "/turns/turn_1"}),
    (ConflictError("queue_full", "Full."), 409, "queue_full", True, {}),
    (ConflictError("key_taken", "Taken."), 409, "key_taken", False, {}),
    (ConflictError("idempotency_mismatch", "Other."), 422, "idempotency_mismatch", False, {}),
    (UnavailableError("draining", "Leaving.", retry_after_s=3), 503, "draining", True, {"Retry-After": "3"}),
    (UnavailableError("storage_unavailable", "Away."), 503, "storage_unavailable", True, {"Retry-After": "1"}),
    (UnavailableError("something_new", "Away."), 503, "something_new", True, {"Retry-After": "1"}),
]


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable", "headers"), TABLE, ids=[f"{type(row[0]).__name__}-{row[2]}" for row in TABLE]
)
def test_each_error_has_its_status_code_and_headers(
    *, error: GatewayError, status: int, code: str, retryable: bool, headers: dict[str, str]
) -> None:
    problem, given = gateway_problem(error)

    assert (problem.status, problem.code, problem.retryable) == (status, code, retryable)
    assert problem.type == f"/problems/{code}"
    assert given == headers


def test_an_error_that_should_have_ended_in_a_turn_is_a_fault() -> None:
    with pytest.raises(LeaseLostError):
        gateway_problem(LeaseLostError())


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "bad_request"), (404, "not_found"), (405, "method_not_allowed"), (418, "bad_request"), (502, "internal_error")],
)
def test_a_bare_status_keeps_its_status(status: int, code: str) -> None:
    problem, _ = http_problem(HTTPException(status))

    assert (problem.status, problem.code) == (status, code)


def test_pointers_are_escaped_bounded_and_clean() -> None:
    assert json_pointer(["a/b", 0, "c~d"]) == "/a~1b/0/c~0d"
    assert json_pointer(["\ud800"]) == "/\ufffd"
    assert len(json_pointer(["x" * 5_000])) <= 200


async def test_405_names_every_method_of_the_path(client: httpx.AsyncClient) -> None:
    session = await client.put("/sessions/sess_x")
    listing = await client.delete("/sessions")
    docs = await client.post("/docs")

    assert session.status_code == listing.status_code == docs.status_code == 405
    assert session.headers["allow"] == "DELETE, GET, PATCH"
    assert listing.headers["allow"] == "GET, POST"
    assert docs.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/sessions/", "/sessions/x/y/z", "/%00", "/..%2f"], ids=["root", "slash", "deep", "nul", "dots"])
async def test_an_unknown_path_is_a_404_problem(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)

    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b'{"a": ', b"[" * 100_000, b'{"user": "\\ud8', b"nul"],
    ids=["open", "not-utf8", "cut", "deep", "cut-escape", "word"],
)
async def test_a_body_that_is_no_json_is_invalid_json(client: httpx.AsyncClient, content: bytes) -> None:
    response = await client.post("/sessions", content=content)

    assert response.status_code == 422
    assert response.json()["code"] == "invalid_json"
    assert response.json()["errors"][0]["pointer"] == ""


class Strange(BaseModel):
    """Shapes for which pydantic adds steps of its own to a location."""

    text: str | list[dict[str, int]]
    numbers: dict[Annotated[str, Field(min_length=1)], int] = {}


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"text": 5}, {"/text"}),
        ({"text": [{"a": 1}, {"b/c": "x"}]}, {"/text/1/b~1c"}),
        ({"text": "", "numbers": {"": 1}}, {"/numbers/"}),
        ({}, {"/text"}),
    ],
    ids=["union", "inside-union", "key", "missing"],
)
def test_a_place_is_a_pointer_into_the_body(body: dict[str, Any], pointers: set[str]) -> None:
    content = json.dumps(body).encode()
    with pytest.raises(ValidationError) as raised:
        Strange.model_validate_json(content)

    assert {error.pointer for error in InvalidBodyError.of(raised.value, content).errors} == pointers


@pytest.mark.parametrize("content", [b"[]", b"1", b'"x"', b"null"])
async def test_a_body_that_is_no_object_is_invalid(client: httpx.AsyncClient, content: bytes) -> None:
    response = await client.post("/sessions", content=content)

    assert response.status_code == 422
    assert response.json()["code"] == "invalid_request"


async def test_the_answer_to_a_secret_in_the_wrong_place_does_not_repeat_it(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"metadata": {"a": {"b": "hunter2"}}, "system_prompt": ["hunter2"], "model": "hunter2" * 100}
    response = await client.post("/sessions", json=body)
    query = await client.get("/sessions", params={"limit": "hunter2"})

    assert len(response.json()["errors"]) == 3
    assert "hunter2" not in response.text
    assert query.json()["errors"][0]["pointer"] == "/limit"
    assert "hunter2" not in query.text


async def test_storage_away_is_503_with_retry_after(gateway: Gateway, client: httpx.AsyncClient) -> None:
    gateway.sessions.away = True
    response = await client.get("/sessions")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["code"] == "storage_unavailable"
