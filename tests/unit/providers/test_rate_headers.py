from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from app.providers.rate_headers import Allowance, RateHeaders, read_limits

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UNIX = int(NOW.timestamp())

OPENAI = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "150000",
    "x-ratelimit-remaining-tokens": "0",
    "x-ratelimit-reset-tokens": "6m0s",
}
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2026-11-30T12:00:01Z",
    "anthropic-ratelimit-input-tokens-limit": "40000",
    "anthropic-ratelimit-input-tokens-remaining": "39000",
    "anthropic-ratelimit-input-tokens-reset": "2026-11-30T12:00:02Z",
    "anthropic-ratelimit-output-tokens-limit": "8000",
    "anthropic-ratelimit-output-tokens-remaining": "0",
    "anthropic-ratelimit-output-tokens-reset": "2026-11-30T12:00:45Z",
}


def test_openais_headers() -> None:
    found = read_limits(OPENAI, NOW)
    assert found == RateHeaders(
        requests=Allowance(limit=60, remaining=59, reset_s=1.0, window_s=60.0),
        tokens=Allowance(limit=150000, remaining=0, reset_s=360.0),
    )
    assert (found.rpm, found.tpm, found.away_s) == (60, None, 360.0)


def test_anthropics_headers_the_limit_that_is_used_up_counts() -> None:
    found = read_limits(ANTHROPIC, NOW)
    assert found is not None
    assert (found.rpm, found.tpm, found.away_s) == (50, None, 45.0)


def test_anthropics_headers_with_something_left_tell_the_limit_of_what_is_sent() -> None:
    found = read_limits({**ANTHROPIC, "anthropic-ratelimit-output-tokens-remaining": "7000"}, NOW)
    assert found is not None
    assert (found.rpm, found.tpm, found.away_s) == (50, 40000, None)


def test_the_real_headers_in_any_case() -> None:
    headers = CIMultiDictProxy(CIMultiDict({"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "20ms"}))
    found = read_limits(headers, NOW)
    assert found is not None
    assert found.away_s == 0.02


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1.0),
        ("20ms", 0.02),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("2m59.56s", 179.56),
        ("2d", 172800.0),
        ("7", 7.0),
        ("0", 0.0),
        ("-4", 0.0),
        (str(UNIX + 30), 30.0),
        (str((UNIX + 30) * 1000), 30.0),
        (str(UNIX - 30), 0.0),
        ("2026-11-30T12:00:05Z", 5.0),
        ("2026-11-30T13:00:05.250+01:00", 5.25),
        ("Mon, 30 Nov 2026 12:00:02 GMT", 2.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("1e999", None),
        ("2026-13-45T99:00:00Z", None),
    ],
)
def test_when_a_limit_is_whole_again(reset: str, seconds: float | None) -> None:
    found = read_limits({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}, NOW)
    assert found is not None
    assert found.away_s == (None if seconds is None else pytest.approx(seconds))


def test_openrouters_headers_have_an_unknown_window() -> None:
    headers = {"x-ratelimit-limit": "50", "x-ratelimit-remaining": "0", "x-ratelimit-reset": str((UNIX + 40) * 1000)}
    found = read_limits(headers, NOW)
    assert found is not None
    assert (found.rpm, found.tpm, found.away_s) == (None, None, 40.0)


@pytest.mark.parametrize(
    ("headers", "rpm", "away_s"),
    [
        ({"ratelimit": '"default";r=0;t=30', "ratelimit-policy": '"default";q=100;w=60'}, 100, 30.0),
        ({"ratelimit": '"burst";r=5;t=1, "day";r=0;t=900', "ratelimit-policy": '"burst";q=10;w=60, "day";q=1000;w=86400'}, None, 900.0),
        ({"ratelimit": '"burst";r=5;t=1, "day";r=9;t=900', "ratelimit-policy": '"day";q=1000;w=86400, "burst";q=10;w=60'}, 10, None),
        ({"ratelimit": "limit=100, remaining=0, reset=5", "ratelimit-policy": "100;w=60"}, 100, 5.0),
        ({"ratelimit": "limit=100, remaining=3, reset=5"}, None, None),
        ({"ratelimit-limit": "100", "ratelimit-remaining": "0", "ratelimit-reset": "5"}, None, 5.0),
    ],
    ids=["draft-8", "two-policies", "two-policies-free", "draft-7", "no-policy", "draft-3"],
)
def test_the_drafts(headers: dict[str, str], rpm: int | None, away_s: float | None) -> None:
    found = read_limits(headers, NOW)
    assert found is not None
    assert (found.rpm, found.away_s) == (rpm, away_s)


@pytest.mark.parametrize(
    ("reset", "rpm"),
    [("60s", 60), ("0s", 60), ("61s", None), ("soon", None)],
)
def test_a_limit_is_one_of_a_minute_only_when_it_is_whole_within_one(reset: str, rpm: int | None) -> None:
    found = read_limits({"x-ratelimit-limit-requests": "60", "x-ratelimit-reset-requests": reset}, NOW)
    assert found is not None
    assert found.rpm == rpm


def test_a_named_minute_beside_a_day() -> None:
    found = read_limits(
        {
            "x-ratelimit-limit-requests-day": "14400",
            "x-ratelimit-remaining-requests-day": "14000",
            "x-ratelimit-reset-requests-day": "3",
            "x-ratelimit-limit-req-minute": "30",
            "x-ratelimit-limit-tokens-minute": "6000",
        },
        NOW,
    )
    assert found is not None
    assert (found.rpm, found.tpm, found.away_s) == (30, 6000, None)


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/event-stream", "date": "now"}, {"x-ratelimit-limit-requests": "many"}, {"x-ratelimit-scope": "key"}],
    ids=["none", "others", "garbage", "unknown"],
)
def test_nothing_to_tell(headers: dict[str, str]) -> None:
    assert read_limits(headers, NOW) is None


NAMES = st.sampled_from([*OPENAI, *ANTHROPIC, "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "x-ratelimit-remaining"])
VALUES = st.text(max_size=40) | st.from_regex(r'"?[a-z]*"?;?[rtqw]?=?\d{1,30}(ms|s|m|h|d)?', fullmatch=True) | st.datetimes().map(str)


@given(st.dictionaries(NAMES, VALUES))
def test_garbage_never_raises_and_no_time_is_negative(headers: dict[str, str]) -> None:
    found = read_limits(headers, NOW)
    assert found is None or found.away_s is None or found.away_s >= 0.0
