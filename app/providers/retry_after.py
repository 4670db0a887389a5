"""When a provider wants to be asked again, in all the forms in which providers say it."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from app.providers.durations import SPAN, moment, number, span_s, until_s
from app.providers.error_body import Said
from app.providers.rate_headers import RateHeaders, read_limits

MAX_ASKED_S: Final = 3_600.0
"""A provider that asks for more is believed for so long, then one call looks again: a slip of a header must not lock a route for days."""

_MINUTE_S: Final = 60.0
_MILLISECONDS: Final = ("retry-after-ms", "x-ms-retry-after-ms")
_AGAIN: Final = r"(?:retry|try again|resets?|available|regain access)"
_spans: Final = re.compile(
    rf"\b{_AGAIN}(?: [a-z]+){{0,3}}? (?:in|after) (?:about )?(?P<again>{SPAN}|\d{{1,9}}(?:\.\d+)?(?![\d:/-]))"
    rf"|\bwait(?:ing)?(?: for)?(?: at least| about)? (?P<wait>{SPAN})",
    re.IGNORECASE,
)
_moments: Final = re.compile(rf"\b{_AGAIN}(?: [a-z]+){{0,3}}? (?:on|at|after) (?P<moment>\d{{4}}-\d\d-\d\d.{{0,32}})", re.IGNORECASE)


def header_wait_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait as asked by ``retry-after-ms`` or else ``retry-after`` (seconds, an HTTP date, …); never negative.

    ``None`` when neither is there or readable. Zero means at once, and is not the same as ``None``.
    """
    for name in _MILLISECONDS:
        milliseconds = number(headers.get(name))
        if milliseconds is not None:
            return max(milliseconds / 1000, 0.0)
    return until_s(headers.get("retry-after"), now)


def body_wait_s(said: Said, now: datetime | None) -> float | None:
    """Seconds to wait as a field of the body asks (Google's ``RetryInfo``, …); without ``now`` moments are not understood."""
    for wait in said.waits:
        seconds = until_s(wait, now) if now is not None else number(wait) if number(wait) is not None else span_s(wait)
        if seconds is not None:
            return max(seconds, 0.0)
    return None


def words_wait_s(text: str, now: datetime | None) -> float | None:
    """Seconds to wait as a sentence asks: ``try again in 1h2m3s``, ``wait 6 seconds``, ``regain access on 2026-12-01 at 00:00 UTC``."""
    match = _spans.search(text)
    if match is not None:
        span = match["again"] or match["wait"]
        return number(span) if number(span) is not None else span_s(span)
    match = _moments.search(text)
    then = moment(match["moment"]) if match is not None else None
    return max((then - now).total_seconds(), 0.0) if then is not None and now is not None else None


def limits_wait_s(headers: Mapping[str, str], said: Said, now: datetime) -> float | None:
    """Seconds until a limit that is used up is whole again, by the rate headers of the response or of an aggregator's upstream."""
    limits = read_limits(headers, now) or read_limits(said.headers, now)
    return limits.away_s if limits is not None else None


def guessed_wait_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that should do although no limit is reported as used up.

    The request needs more tokens than are left, or what is left is not told. Within a minute only: a guess is not worth a long wait.
    """
    limits = read_limits(headers, now) or RateHeaders(requests=None, tokens=None)
    tokens_s = limits.tokens.reset_s if limits.tokens is not None else None
    requests_s = limits.requests.reset_s if limits.requests is not None and limits.requests.remaining is None else None
    return max((wait for wait in (tokens_s, requests_s) if wait is not None and wait <= _MINUTE_S), default=None)
