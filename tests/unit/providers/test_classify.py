import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason as Reason
from app.providers.classify import Failure, classify_error, classify_response, transport_failure
from app.providers.traits import TRAITS

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
    (400, HTML, Reason.INVALID_RESPONSE),
    (405, "", Reason.MODEL_NOT_FOUND),
    (409, "", Reason.SERVER_ERROR),
    (425, "", Reason.SERVER_ERROR),
    (451, "", Reason.FORBIDDEN),
    (498, "", Reason.OVERLOADED),
    (501, "", Reason.UNSUPPORTED),
    (599, "", Reason.SERVER_ERROR),
    (402, body(message="Usage limit reached, try again in 5 minutes"), Reason.RATE_LIMIT),
    (402, body(code="usage_limit_exceeded", message="Usage limit. Resets at 14:00."), Reason.RATE_LIMIT),
    (402, body(message="Insufficient credits. Add more and try again"), Reason.BILLING),
    (402, body(message="账户余额不足"), Reason.BILLING),
    (404, body(message="Insufficient balance"), Reason.BILLING),
    (404, body(message="No rate limit is set for this path; is the server overloaded?"), Reason.MODEL_NOT_FOUND),
    (429, body(code="1113", message="Insufficient balance or no resource package. Please recharge."), Reason.BILLING),
    (400, body(type="invalid_request_error", message="You have reached your specified API usage limits."), Reason.BILLING),
    (403, body(status="PERMISSION_DENIED", message="Your API key was reported as leaked."), Reason.AUTH),
    (403, body(status="PERMISSION_DENIED", message="The caller does not have permission"), Reason.FORBIDDEN),
    (400, body(status="FAILED_PRECONDITION", message="User location is not supported for the API use."), Reason.FORBIDDEN),
    (403, body(code="model_not_found", message="Project `p` does not have access to model `m`"), Reason.MODEL_NOT_FOUND),
    (400, body(message="Provider does not support model m"), Reason.MODEL_NOT_FOUND),
    (400, body(code="string_above_max_length", message="string too long"), Reason.PAYLOAD_TOO_LARGE),
    (400, body(message="Invalid 'messages': array too long. Expected an array with maximum length 2048"), Reason.PAYLOAD_TOO_LARGE),
    (500, body(type="invalid_request_error", message="no field of that kind"), Reason.INVALID_REQUEST),
    (500, "Model quota and rate limit page at capacity", Reason.OVERLOADED),
    (413, "Payload Too Large", Reason.PAYLOAD_TOO_LARGE),
]


@pytest.mark.parametrize(("status", "text", "reason"), RESPONSES, ids=[f"{s}-{r.value}-{i}" for i, (s, _, r) in enumerate(RESPONSES)])
def test_error_responses(status: int, text: str, reason: Reason) -> None:
    failure = classify_response(status, {}, text.encode(), secrets=(KEY,), now=NOW)
    assert failure.reason is reason
    assert failure.retryable is TRAITS[reason].retryable
    assert failure.status == status
    assert failure.message
    assert "<" not in failure.message.replace("<= 2", "")
    assert KEY not in failure.message
    assert "inner" not in failure.message
    assert "Ray" not in failure.message


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


def classified(status: int, text: str, headers: dict[str, str] | None = None) -> Failure:
    return classify_response(status, headers or {}, text.encode(), secrets=(KEY,), now=NOW)


NAMED_ERRORS = [
    ("overloaded_error", 529, Reason.OVERLOADED),
    ("rate_limit_error", 429, Reason.RATE_LIMIT),
    ("request_too_large", 413, Reason.CONTEXT_OVERFLOW),
    ("invalid_request_error", 400, Reason.INVALID_REQUEST),
    ("authentication_error", 401, Reason.AUTH),
    ("permission_error", 403, Reason.FORBIDDEN),
    ("not_found_error", 404, Reason.MODEL_NOT_FOUND),
    ("api_error", 500, Reason.SERVER_ERROR),
    ("timeout_error", 504, Reason.SERVER_ERROR),
    ("billing_error", 402, Reason.BILLING),
]


@pytest.mark.parametrize(("kind", "status", "reason"), NAMED_ERRORS, ids=[kind for kind, _, _ in NAMED_ERRORS])
def test_anthropics_errors_as_a_response_and_within_a_stream(kind: str, status: int, reason: Reason) -> None:
    error = {"type": kind, "message": "words"}
    assert classified(status, json.dumps({"type": "error", "error": error})).reason is reason
    assert classify_error(error, secrets=()).reason is reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"code": "server_error", "message": "An error occurred while processing your request."}, Reason.SERVER_ERROR),
        ({"code": "rate_limit_exceeded", "message": "Rate limit reached. Please try again in 1.5s."}, Reason.RATE_LIMIT),
        (
            {"code": "invalid_prompt", "message": "Your prompt was flagged as potentially violating our usage policy."},
            Reason.CONTENT_FILTERED,
        ),
        ({"code": "invalid_prompt", "message": "no"}, Reason.INVALID_REQUEST),
        ({"code": "invalid_image_url", "message": "no"}, Reason.INVALID_REQUEST),
        ({"code": "image_content_policy_violation", "message": "no"}, Reason.CONTENT_FILTERED),
        ({"code": "vector_store_timeout", "message": "no"}, Reason.SERVER_ERROR),
        ({"code": "context_length_exceeded", "message": "no"}, Reason.CONTEXT_OVERFLOW),
        ({"code": "insufficient_quota", "message": "no"}, Reason.BILLING),
    ],
)
def test_errors_of_a_failed_response_object(error: dict[str, str], reason: Reason) -> None:
    assert classify_error(error, secrets=()).reason is reason


@pytest.mark.parametrize(
    ("status", "text", "headers", "reason"),
    [
        (
            429,
            body(code=429, status="RESOURCE_EXHAUSTED", message="Resource has been exhausted (e.g. check quota)."),
            {},
            Reason.RATE_LIMIT,
        ),
        (400, body(code=400, status="INVALID_ARGUMENT", message="no"), {}, Reason.INVALID_REQUEST),
        (503, body(code=503, status="UNAVAILABLE", message="The model is overloaded."), {}, Reason.OVERLOADED),
        (400, body(code=400, message="hm", details=[{"reason": "API_KEY_INVALID"}]), {}, Reason.AUTH),
        (400, body(code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}), {}, Reason.CONTENT_FILTERED),
        (400, body(message="no", innererror={"code": "ResponsibleAIPolicyViolation"}), {}, Reason.CONTENT_FILTERED),
        (404, body(code="DeploymentNotFound", message="The API deployment does not exist."), {}, Reason.MODEL_NOT_FOUND),
        (400, json.dumps({"__type": "com.x.coral#ThrottlingException", "message": "Too many tokens, wait"}), {}, Reason.RATE_LIMIT),
        (400, json.dumps({"__type": "ValidationException", "message": "bad"}), {}, Reason.INVALID_REQUEST),
        (400, json.dumps({"message": "bad"}), {"x-amzn-errortype": "ThrottlingException:http://x"}, Reason.RATE_LIMIT),
        (403, json.dumps({"__type": "AccessDeniedException", "Message": "no"}), {}, Reason.FORBIDDEN),
        (429, json.dumps({"__type": "ModelNotReadyException", "message": "soon"}), {}, Reason.RATE_LIMIT),
        (424, json.dumps({"__type": "ModelErrorException", "message": "it failed"}), {}, Reason.SERVER_ERROR),
        (400, body(message='{"error":{"code":"context_length_exceeded","message":"x"}}'), {}, Reason.CONTEXT_OVERFLOW),
        (400, json.dumps([{"error": {"message": "API key not valid"}}]), {}, Reason.AUTH),
        (500, body(message="upstream", error={"code": 429, "message": "slow"}), {}, Reason.RATE_LIMIT),
        (502, json.dumps({"detail": {"error": {"status_code": "529"}}}), {}, Reason.OVERLOADED),
        (500, body(code=400, message="odd"), {}, Reason.SERVER_ERROR),
    ],
)
def test_errors_in_the_shapes_of_clouds_and_proxies(status: int, text: str, headers: dict[str, str], reason: Reason) -> None:
    assert classified(status, text, headers).reason is reason


def wrapped(status: int, raw: object) -> str:
    metadata = {"provider_name": "alpha", "raw": raw if isinstance(raw, str) else json.dumps(raw)}
    return body(code=status, message="Provider returned error", metadata=metadata)


@pytest.mark.parametrize(
    ("status", "raw", "reason", "scope"),
    [
        (429, {"error": {"message": "m is rate-limited upstream"}}, Reason.RATE_LIMIT, CooldownScope.KEY_MODEL),
        (429, {"error": {"code": "insufficient_quota", "message": "no"}}, Reason.RATE_LIMIT, CooldownScope.KEY_MODEL),
        (429, "You exceeded your current quota, please check your plan", Reason.RATE_LIMIT, CooldownScope.KEY_MODEL),
        (502, {"error": {"code": 429, "message": "slow"}}, Reason.RATE_LIMIT, CooldownScope.KEY_MODEL),
        (401, {"error": {"message": "bad key"}}, Reason.AUTH, CooldownScope.KEY_MODEL),
        (402, {"error": {"message": "Insufficient balance"}}, Reason.BILLING, CooldownScope.KEY_MODEL),
        (
            400,
            {"type": "error", "error": {"message": "prompt is too long: 9 tokens > 8 maximum"}},
            Reason.CONTEXT_OVERFLOW,
            CooldownScope.NONE,
        ),
        (400, "temperature must be <= 2", Reason.INVALID_REQUEST, CooldownScope.NONE),
    ],
)
def test_what_an_aggregators_upstream_said(status: int, raw: object, reason: Reason, scope: CooldownScope) -> None:
    failure = classified(status, wrapped(status, raw))
    assert (failure.reason, failure.scope) == (reason, scope)


def test_an_aggregators_own_wallet_is_the_keys() -> None:
    failure = classified(402, body(code=402, message="Insufficient credits", metadata={"reasons": []}))
    assert (failure.reason, failure.scope) == (Reason.BILLING, CooldownScope.KEY)


UNSUPPORTED = [
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    "messages: final assistant content cannot end with trailing whitespace",
    "Cannot have 2 or more assistant messages at the end of the list.",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    "image input is not supported - hint: you may need to provide the mmproj",
    "This model does not support image inputs",
    "Invalid content type. image_url is only supported by certain models.",
    "unknown variant `image_url`, expected `text`",
    "registry.example/library/m does not support tools",
    "Function calling is not enabled for this model",
    "Tools are not supported by m",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "System role not supported",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "Unsupported value: 'temperature' does not support 0.2 with this model.",
    "Unrecognized request argument supplied: reasoning_effort",
    "reasoning_effort: Extra inputs are not permitted",
    "Invalid JSON payload received. Unknown name \"strict\" at 'tools[0]': Cannot find field.",
    "messages.3.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    "The `content[].thinking` in the thinking mode must be passed back to the API.",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
]
OUTPUT_CAPS = [
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for m",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
    "Range of max_tokens should be [1, 8192]",
    "`max_tokens` must be less than or equal to `8192`",
    "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 8192 tokens and you sent 5",
]
REPLAYS = [
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    "messages.1.content.0.thinking.signature: Field required",
    "When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`.",
    "The encrypted content gAAA could not be verified.",
    "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    "Corrupted thought signature.",
]
UNICODES = [
    "The request body is not valid JSON: no low surrogate in string: line 1 column 9",
    "invalid high surrogate in string",
    "'utf-8' codec can't encode character '\\ud83d' in position 3: surrogates not allowed",
    "Invalid UTF-8 in request body",
    "body contains invalid unicode",
]
OF_THE_TARGET = [
    *((text, Reason.UNSUPPORTED) for text in (*UNSUPPORTED, *OUTPUT_CAPS)),
    *((text, Reason.INVALID_REPLAY) for text in REPLAYS),
    *((text, Reason.BAD_UNICODE) for text in UNICODES),
]


@pytest.mark.parametrize("status", [400, 422, 500, None], ids=str)
@pytest.mark.parametrize(("text", "reason"), OF_THE_TARGET)
def test_what_this_target_does_not_take(text: str, reason: Reason, status: int | None) -> None:
    error = {"type": "invalid_request_error", "message": text}
    failure = classify_error(error, secrets=()) if status is None else classified(status, json.dumps({"error": error}))
    assert failure.reason is reason
    assert failure.next_route
    assert (failure.retryable, failure.compact, failure.scope) == (False, False, CooldownScope.NONE)


def test_structured_codes_of_what_this_target_does_not_take() -> None:
    assert classified(400, body(code="invalid_encrypted_content", message="no")).reason is Reason.INVALID_REPLAY
    assert classified(400, body(code="unsupported_parameter", message="no")).reason is Reason.UNSUPPORTED
    assert classified(422, json.dumps({"detail": [{"type": "extra_forbidden", "msg": "no"}]})).reason is Reason.UNSUPPORTED
    assert classified(404, body(code=404, message="No endpoints found that support tool use")).reason is Reason.UNSUPPORTED


@pytest.mark.parametrize(
    ("status", "text", "reason", "scope"),
    [
        (401, "", Reason.AUTH, CooldownScope.KEY),
        (402, "", Reason.BILLING, CooldownScope.KEY),
        (429, "", Reason.RATE_LIMIT, CooldownScope.KEY_MODEL),
        (404, "", Reason.MODEL_NOT_FOUND, CooldownScope.ROUTE),
        (400, body(message="Model m is not available for this API key"), Reason.MODEL_NOT_FOUND, CooldownScope.KEY_MODEL),
        (403, body(code="unsupported_country_region_territory", message="no"), Reason.FORBIDDEN, CooldownScope.ROUTE),
        (403, HTML, Reason.FORBIDDEN, CooldownScope.ROUTE),
        (403, body(type="permission_error", message="Your API key may not use this"), Reason.FORBIDDEN, CooldownScope.KEY_MODEL),
        (503, "", Reason.OVERLOADED, CooldownScope.ROUTE),
        (500, "", Reason.SERVER_ERROR, CooldownScope.ROUTE),
        (400, body(message="temperature must be <= 2"), Reason.INVALID_REQUEST, CooldownScope.NONE),
        (413, "x", Reason.PAYLOAD_TOO_LARGE, CooldownScope.NONE),
    ],
)
def test_how_far_a_failure_reaches(status: int, text: str, reason: Reason, scope: CooldownScope) -> None:
    failure = classified(status, text)
    assert (failure.reason, failure.scope) == (reason, scope)


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        ({"error": {"code": 429, "message": "slow"}}, Reason.RATE_LIMIT, 429),
        ({"error": {"error": {"type": "overloaded_error"}}}, Reason.OVERLOADED, None),
        ('{"error": {"code": "insufficient_quota"}}', Reason.BILLING, None),
        ([{"code": "503"}], Reason.OVERLOADED, 503),
        ("<html>Rate limit</html>", Reason.SERVER_ERROR, None),
        (True, Reason.SERVER_ERROR, None),
        (429, Reason.RATE_LIMIT, 429),
        ("429", Reason.RATE_LIMIT, 429),
        ({"code": True}, Reason.SERVER_ERROR, None),
        ({"code": 10**400}, Reason.SERVER_ERROR, None),
        ({"code": "9" * 5000}, Reason.SERVER_ERROR, None),
    ],
    ids=["nested", "twice", "json-in-a-string", "list", "html", "bool", "number", "number-as-text", "bool-code", "huge", "huge-text"],
)
def test_odd_errors_inside_a_success(error: object, reason: Reason, status: int | None) -> None:
    failure = classify_error(error, secrets=())
    assert (failure.reason, failure.status) == (reason, status)
    assert "<" not in failure.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "message", "code", "metadata", "raw", "type"]), inner)
    ),
    max_leaves=12,
)


@given(JSON, st.integers(300, 600))
def test_anything_becomes_a_failure(error: object, status: int) -> None:
    assert classify_error(error, secrets=(KEY,)).message
    assert classified(status, json.dumps(error)).message


@given(st.binary(max_size=60))
def test_any_bytes_become_a_failure(data: bytes) -> None:
    assert classify_response(400, {}, data, secrets=(KEY,), now=NOW).message


def test_a_deeply_nested_body_is_no_danger() -> None:
    assert classified(400, "[" * 60_000).reason is Reason.INVALID_REQUEST
    assert classified(400, '{"error":' * 5_000 + "1" + "}" * 5_000).reason is Reason.INVALID_REQUEST


REQUESTS_FAULT = {Reason.CONTEXT_OVERFLOW, Reason.PAYLOAD_TOO_LARGE, Reason.CONTENT_FILTERED, Reason.INVALID_REQUEST}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_its_row(reason: Reason) -> None:
    failure = transport_failure(reason)
    traits = TRAITS[reason]
    assert failure.message == traits.sentence
    assert failure.message.endswith(".")
    assert (failure.retryable, failure.compact, failure.scope) == (traits.retryable, traits.compact, traits.scope)
    assert failure.next_route is (reason not in REQUESTS_FAULT)
    assert failure.compact is (reason in {Reason.CONTEXT_OVERFLOW, Reason.PAYLOAD_TOO_LARGE})
    assert transport_failure(reason, retryable=False).retryable is False
