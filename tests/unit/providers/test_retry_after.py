"""Every form in which a provider says when to come back, read through the classifier."""

import json
from datetime import UTC, datetime

import pytest

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason as Reason
from app.providers.classify import Failure, classify_error, classify_response

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UNIX = int(NOW.timestamp())


def classified(status: int, headers: dict[str, str], **error: object) -> Failure:
    return classify_response(status, headers, json.dumps({"error": error}).encode(), secrets=(), now=NOW)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after": "86400"}, 3600.0),
        ({"retry-after": "999999999"}, 3600.0),
        ({"retry-after": "1m30s"}, 90.0),
        ({"retry-after": str(UNIX + 7)}, 7.0),
        ({"retry-after": "2026-11-30T12:00:04Z"}, 4.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:02 GMT"}, 2.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:02 -0000"}, 2.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Mon, 99 Nov 2026 12:00:02 GMT"}, None),
        ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
        ({"retry-after-ms": "0", "retry-after": "9"}, 0.0),
        ({"retry-after-ms": "-5", "retry-after": "9"}, 0.0),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(headers: dict[str, str], seconds: float | None, status: int) -> None:
    failure = classified(status, headers)
    assert (failure.retry_after_s, failure.promised) == (seconds, seconds is not None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 1.5s.", 1.5),
        ("Please try again in 20ms. Visit us.", 0.02),
        ("Please try again in 0h59m3s.", 3543.0),
        ("Please try again in 1h2m3s.", 3600.0),
        ("Please try again in 7m12s.", 432.0),
        ("Please try again in 6m0s.", 360.0),
        ("Try again in 5 minutes", 300.0),
        ("The limit resets in 0 hours and 5 minutes", 300.0),
        ("Please retry after 6 seconds.", 6.0),
        ("Retry after 2 min", 120.0),
        ("Please retry in 34.074824224s.", 34.074824224),
        ("Please retry your requests after 5", 5.0),
        ("Please wait 3 seconds before the next one", 3.0),
        ("You will regain access on 2026-11-30 at 12:01 UTC.", 60.0),
        ("Your limit resets at 2026-11-30T13:00:30+01:00.", 30.0),
        ("Your limit resets at 2026-11-30T11:00:00Z", 0.0),
        ("Try again after 2026-11-30", None),
        ("Retry 3 times", None),
        ("Wait a bit", None),
    ],
)
def test_a_wait_that_is_only_in_the_words(text: str, seconds: float | None) -> None:
    failure = classified(429, {}, message=text)
    assert failure.retry_after_s == (None if seconds is None else pytest.approx(seconds))
    assert failure.promised is (seconds is not None)


def test_words_in_a_stream() -> None:
    failure = classify_error({"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."}, secrets=())
    assert (failure.retry_after_s, failure.promised) == (1.5, True)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ({"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}, 34.5),
        ({"details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "3s"}]}, 3.0),
        ({"retry_after": 8}, 8.0),
        ({"retry_after": "-8"}, 0.0),
        ({"resets_in_seconds": 3600}, 3600.0),
        ({"retry_after": "later", "resets_in_seconds": 4}, 4.0),
        ({"retry_after": True}, None),
    ],
    ids=str,
)
def test_a_field_of_the_body(error: dict[str, object], seconds: float | None) -> None:
    assert classified(429, {}, **error).retry_after_s == seconds
    assert classify_error({"code": 429, **error}, secrets=()).retry_after_s == seconds


def test_a_moment_in_the_body_needs_the_time() -> None:
    error = {"type": "usage_limit_reached", "resets_at": UNIX + 90}
    assert classify_error(error, secrets=(), now=NOW).retry_after_s == 90.0
    failure = classified(429, {}, **error)
    assert (failure.reason, failure.retry_after_s, failure.scope) == (Reason.BILLING, 90.0, CooldownScope.KEY)


def test_a_header_goes_before_the_body_and_the_body_before_words() -> None:
    assert classified(429, {"retry-after": "2"}, retry_after=8, message="try again in 9s").retry_after_s == 2.0
    assert classified(429, {}, retry_after=8, message="try again in 9s").retry_after_s == 8.0


@pytest.mark.parametrize(
    ("headers", "seconds", "promised"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "3s"}, 3.0, True),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9h"}, 3600.0, True),
        ({"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2026-11-30T12:00:09Z"}, 9.0, True),
        ({"x-ratelimit-reset-requests": "3s"}, 3.0, False),
        ({"x-ratelimit-remaining-tokens": "50", "x-ratelimit-reset-tokens": "4s"}, 4.0, False),
        ({"x-ratelimit-remaining-tokens": "50", "x-ratelimit-reset-tokens": "9h"}, None, False),
        ({"x-ratelimit-remaining-requests": "50", "x-ratelimit-reset-requests": "4s"}, None, False),
        ({"retry-after": "1", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "3s"}, 1.0, True),
    ],
)
def test_rate_headers_stand_in_for_a_missing_retry_after(headers: dict[str, str], seconds: float | None, promised: bool) -> None:
    failure = classified(429, headers, message="slow")
    assert (failure.reason, failure.retry_after_s, failure.promised) == (Reason.RATE_LIMIT, seconds, promised)


def test_rate_headers_of_an_aggregators_upstream() -> None:
    headers = {"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str((UNIX + 40) * 1000)}
    failure = classified(429, {}, code=429, message="Rate limit exceeded: free-models-per-day", metadata={"headers": headers})
    assert (failure.reason, failure.retry_after_s, failure.promised) == (Reason.RATE_LIMIT, 40.0, True)


def test_rate_headers_do_not_make_an_empty_wallet_a_matter_of_time() -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "3s"}
    failure = classified(429, headers, message="You exceeded your current quota, please check your plan and billing details.")
    assert (failure.reason, failure.retry_after_s) == (Reason.BILLING, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("quota exceeded", Reason.RATE_LIMIT), ("Your credit balance is too low", Reason.BILLING), ("Insufficient credits", Reason.BILLING)],
)
def test_a_quota_with_a_time_is_about_speed_and_money_never(text: str, reason: Reason) -> None:
    assert classified(429, {}, message=text).reason is Reason.BILLING
    assert classified(429, {"retry-after": "3"}, message=text).reason is reason
