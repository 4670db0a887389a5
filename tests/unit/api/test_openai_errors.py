"""Everything below ``/v1`` fails in OpenAI's shape, whoever refuses it."""

import httpx
import pytest

from app.api.openai_errors import CallError, error_response, param_of
from tests.unit.api.conftest import MAX_BODY_BYTES, Gateway


@pytest.mark.parametrize(
    ("pointer", "param"),
    [("", None), ("/model", "model"), ("/messages/0/content/2/type", "messages[0].content[2].type"), ("/a~1b/10", "a/b[10]")],
)
def test_a_pointer_is_named_as_openai_does(pointer: str, param: str | None) -> None:
    assert param_of(pointer) == param


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (409, "conflict_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    response = error_response(CallError(status, "text", code="some_code", retry_after_s=3))
    assert response.status_code == status
    assert response.headers["retry-after"] == "3"
    assert response.body == b'{"error":{"message":"text","type":"%b","param":null,"code":"some_code"}}' % kind.encode()


def test_clients_are_told_not_to_repeat_what_cannot_succeed() -> None:
    assert error_response(CallError(503, "text", code="c", retryable=False)).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in error_response(CallError(503, "text", code="c")).headers
    assert "x-should-retry" not in error_response(CallError(404, "text", code="c", retryable=False)).headers


@pytest.mark.parametrize(
    ("call", "body", "expected"),
    [
        pytest.param("GET /v1/nothing", b"", (404, "not_found", None), id="unknown path"),
        pytest.param("GET /v1", b"", (404, "not_found", None), id="the prefix alone"),
        pytest.param("GET /v1/chat/completions", b"", (405, "method_not_allowed", None), id="method"),
        pytest.param("POST /v1/chat/completions", b"{", (400, "invalid_json", None), id="no JSON"),
        pytest.param("POST /v1/chat/completions", b"{}", (400, "invalid_request", "messages"), id="missing"),
        pytest.param(
            "POST /v1/chat/completions",
            b'{"messages":[{"role":"user","content":"x"}],"n":"2"}',
            (400, "invalid_request", "n"),
            id="type",
        ),
        pytest.param("POST /v1/responses", b'{"input":[{"type":"x"}]}', (400, "invalid_request", "input[0].type"), id="place"),
        pytest.param("POST /v1/responses", b'{"input":"x","model":"gone"}', (404, "model_not_found", "model"), id="model"),
        pytest.param("POST /v1/responses", b'{"input":"x","session_id":"sess_1"}', (404, "not_found", None), id="session"),
        pytest.param("POST /v1/responses", b'{"input":"x","toolsets":["none"]}', (400, "invalid_request", "toolsets"), id="toolset"),
        pytest.param("POST /v1/responses", b'"%b"' % (b"x" * MAX_BODY_BYTES), (413, "body_too_large", None), id="too large"),
        pytest.param("GET /v1/models/gone", b"", (404, "model_not_found", "model"), id="no such model"),
    ],
)
async def test_every_refusal_is_an_error_object(
    client: httpx.AsyncClient, call: str, body: bytes, expected: tuple[int, str, str | None]
) -> None:
    response = await client.request(*call.split(), content=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == expected
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"


async def test_without_a_good_key_the_error_is_openais_too(gateway: Gateway) -> None:
    for key in (None, "agw_wrong0123456789abcdef"):
        async with gateway.client(key) as client:
            response = await client.get("/v1/models")
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


async def test_elsewhere_errors_are_problems(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1nothing")).headers["content-type"] == "application/problem+json"


async def test_models_are_the_chat_chains(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["m-test", "m-other", "default"]
    assert (await client.get("/v1/models/m-other")).json() == listed["data"][1]
    assert (await client.get("/v1/models/default")).json()["object"] == "model"
