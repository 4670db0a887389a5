import json
from datetime import UTC, datetime

import pytest

from app.domain.model import FailureReason as Reason
from app.providers.classify import RETRYABLE, classify_error, classify_response, retry_after_s, transport_failure

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
KEY = "sk-test-ABCD1234EFGH5678"
HTML = "<!DOCTYPE html><html><head><title>inner.example | 524: A timeout occurred</title></head><body>Ray ID: 00aa11bb</body></html>"


def body(**error: object) -> str:
    return json.dumps({"error": error})


RESPONSES = [
    (401, body(code="invalid_api_key", message=f"Incorrect API key provided: {KEY}"), Reason.AUTH),
    (401, "", Reason.AUTH),
    (400, body(status="INVALID_ARGUMENT", message="API key not valid. Please pass a valid API key."), Reason.AUTH),
    (402, body(message="insufficient credits"), Reason.BILLING),
    (402, "", Reason.BILLING),
    (429, body(code="insufficient_quota", message="no"), Reason.BILLING),
    (429, body(type="usage_limit_reached", message="The usage limit has been reached"), Reason.BILLING),
    (429, body(message="You exceeded your current quota, please check your plan and billing details."), Reason.BILLING),
    (429, body(message="You exceeded your current quota. Please retry in 34.5s."), Reason.RATE_LIMIT),
    (400, body(type="invalid_request_error", message="Your credit balance is too low to use this API"), Reason.BILLING),
    (403, body(message="Key limit exceeded (monthly)"), Reason.BILLING),
    (429, body(code="rate_limit_exceeded", message="Limit 10 RPM"), Reason.RATE_LIMIT),
    (429, body(message="Quota exceeded for requests per minute"), Reason.RATE_LIMIT),
    (429, body(message="The engine is currently overloaded"), Reason.OVERLOADED),
    (429, "slow", Reason.RATE_LIMIT),
    (400, body(message="Rate limit exceeded, please wait"), Reason.RATE_LIMIT),
    (403, body(code="unsupported_country_region_territory", message="Country, region, or territory not supported"), Reason.FORBIDDEN),
    (403, HTML, Reason.FORBIDDEN),
    (404, body(code="model_not_found", message="The model `m` does not exist"), Reason.MODEL_NOT_FOUND),
    (404, "404 page not found", Reason.MODEL_NOT_FOUND),
    (400, body(code="model_not_supported", message="no"), Reason.MODEL_NOT_FOUND),
    (400, body(message="Model m is not available for this API key"), Reason.MODEL_NOT_FOUND),
    (400, body(message="m is not a valid model ID"), Reason.MODEL_NOT_FOUND),
    (400, body(message="temperature must be <= 2"), Reason.INVALID_REQUEST),
    (400, body(type="invalid_request_error", message="Unsupported parameter: 'max_tokens'"), Reason.INVALID_REQUEST),
    (422, json.dumps({"detail": [{"loc": ["body"], "msg": "field required"}]}), Reason.INVALID_REQUEST),
    (400, "plain words", Reason.INVALID_REQUEST),
    (418, "", Reason.INVALID_REQUEST),
    (400, body(code="content_filter", message="blocked"), Reason.CONTENT_FILTERED),
    (400, body(message="The response was filtered due to our content management policy"), Reason.CONTENT_FILTERED),
    (413, "<html>too large</html>", Reason.PAYLOAD_TOO_LARGE),
    (413, body(type="request_too_large", message="Request exceeds the maximum size"), Reason.CONTEXT_OVERFLOW),
    (413, "", Reason.CONTEXT_OVERFLOW),
    (400, "", Reason.CONTEXT_OVERFLOW),
    (400, body(code="context_length_exceeded", message="long"), Reason.CONTEXT_OVERFLOW),
    (500, body(message="prompt is too long: 300 tokens > 200 maximum"), Reason.CONTEXT_OVERFLOW),
    (500, body(type="server_error", message="oops"), Reason.SERVER_ERROR),
    (503, body(type="server_error", message="oops"), Reason.OVERLOADED),
    (500, body(type="overloaded_error", message="Overloaded"), Reason.OVERLOADED),
    (502, "", Reason.SERVER_ERROR),
    (503, "", Reason.OVERLOADED),
    (529, body(type="overloaded_error", message="Overloaded"), Reason.OVERLOADED),
    (524, HTML, Reason.SERVER_ERROR),
    (408, "", Reason.SERVER_ERROR),
    (302, "", Reason.INVALID_RESPONSE),
]


@pytest.mark.parametrize(("status", "text", "reason"), RESPONSES, ids=[f"{s}-{r.value}-{i}" for i, (s, _, r) in enumerate(RESPONSES)])
def test_error_responses(status: int, text: str, reason: Reason) -> None:
    failure = classify_response(status, {}, text.encode(), secrets=(KEY,), now=NOW)
    assert failure.reason is reason
    assert failure.retryable is (reason in RETRYABLE)
    assert failure.status == status
    assert failure.message
    assert "<" not in failure.message.replace("<= 2", "")
    assert KEY not in failure.message
    assert "inner" not in failure.message
    assert "Ray" not in failure.message


OVERFLOWS = [
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and max_tokens exceed context limit: 199000 + 8000 > 200000, decrease input length or max_tokens and try again",
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Requested token count exceeds the model's maximum context length of 131072 tokens.",
    "Input length (140000) exceeds model's maximum context length (131072).",
    "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens",
    "Input length 40000 exceeds the maximum allowed input length of 32768 tokens.",
    "This model's maximum context length is 4096 tokens. However, you requested 1000 output tokens and your prompt contains 3500",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "ValidationException: Input is too long for requested model.",
    "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
    "Please reduce the length of the messages or completion.",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
    "The total length of all messages is too long.",
    "prompt token count of 70000 exceeds the limit of 64000",
    "invalid params, context window exceeds limit",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
    "tokens in request more than max tokens allowed",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
    "the request exceeds the available context size, try increasing it",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "prompt too long; exceeded max context length by 812 tokens",
    "Prompt too long: 9000 tokens exceeds max_seq_len 8192",
]


@pytest.mark.parametrize("text", OVERFLOWS)
def test_every_dialect_of_a_full_window(text: str) -> None:
    failure = classify_response(400, {}, body(type="invalid_request_error", code=None, message=text).encode(), secrets=(), now=NOW)
    assert failure.reason is Reason.CONTEXT_OVERFLOW
    assert not failure.retryable


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        ({"code": 502, "message": "worker pool is full", "metadata": {}}, Reason.SERVER_ERROR, 502),
        ("quota used up", Reason.BILLING, None),
        ({"code": 429, "message": "too many requests"}, Reason.RATE_LIMIT, 429),
        ({"code": "429"}, Reason.RATE_LIMIT, 429),
        ({"type": "overloaded_error", "message": "Overloaded"}, Reason.OVERLOADED, None),
        ({"message": "maximum context length is 10 tokens"}, Reason.CONTEXT_OVERFLOW, None),
        ({"message": "something"}, Reason.SERVER_ERROR, None),
        ({"object": "error", "code": 40303, "message": "hm"}, Reason.SERVER_ERROR, None),
        (None, Reason.SERVER_ERROR, None),
        ([1], Reason.SERVER_ERROR, None),
    ],
    ids=["502", "string", "429", "429-as-text", "type", "words", "unknown", "private-code", "null", "list"],
)
def test_errors_inside_a_success(error: object, reason: Reason, status: int | None) -> None:
    failure = classify_error(error, secrets=())
    assert (failure.reason, failure.status) == (reason, status)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "86400"}, 86400.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:02 GMT"}, 2.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:02 -0000"}, 2.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
        ({"retry-after-ms": "0", "retry-after": "9"}, 0.0),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds
    assert classify_response(429, headers, b"", secrets=(), now=NOW).retry_after_s == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("Please try again in 1.5s.", 1.5), ("Please try again in 20ms.", 0.02), ("Retry after 2 min", 120.0), ("Wait a bit", None)],
)
def test_a_wait_that_is_only_in_the_words(text: str, seconds: float | None) -> None:
    assert classify_response(429, {}, body(message=text).encode(), secrets=(), now=NOW).retry_after_s == seconds


def test_words_about_quota_with_a_time_are_about_speed() -> None:
    text = body(message="quota exceeded").encode()
    assert classify_response(429, {}, text, secrets=(), now=NOW).reason is Reason.BILLING
    assert classify_response(429, {"retry-after": "3"}, text, secrets=(), now=NOW).reason is Reason.RATE_LIMIT


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason: Reason) -> None:
    failure = transport_failure(reason)
    assert failure.message.endswith(".")
    assert failure.retryable is (reason in RETRYABLE)
    assert transport_failure(reason, retryable=False).retryable is False
