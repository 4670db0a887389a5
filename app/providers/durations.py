"""How providers write times: seconds, ``1m26.4s``, ``in 2 hours and 5 minutes``, unix times, RFC 3339 and HTTP dates. Nothing raises."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_UNIX_S: Final = 1e9
_UNIX_MS: Final = 1e11
"""Numbers from here on are moments, not durations: the first is a wait of thirty years."""

_UNIT: Final = r"(?:ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
_PART: Final = rf"\d{{1,12}}(?:\.\d{{1,12}})?\s?{_UNIT}"
SPAN: Final = rf"{_PART}(?:(?:,| and)?\s?{_PART})*"
"""Pattern of a duration with units."""
_span: Final = re.compile(SPAN, re.IGNORECASE)
_part: Final = re.compile(r"([\d.]+)\s?([a-z]+)", re.IGNORECASE)
_iso: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:t| at |\s)(\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)\d*\s?(z\b|utc|[+-]\d\d:?\d\d)?", re.IGNORECASE)


def number(value: str | None) -> float | None:
    """A finite number, or ``None``."""
    try:
        found = float(value or "")
    except ValueError:
        return None
    return found if found - found == 0.0 else None  # neither NaN nor infinite


def span_s(value: str) -> float | None:
    """Seconds of a duration with units such as ``6m0s``, ``20ms`` or ``2 hours and 5 minutes``."""
    if _span.fullmatch(value.strip()) is None:
        return None
    return sum(float(amount) * _unit_s(unit.lower()) for amount, unit in _part.findall(value))


def moment(value: str) -> datetime | None:
    """The first RFC 3339 time within ``value``, or an HTTP date; without an offset they are in UTC."""
    match = _iso.search(value)
    try:
        if match is None:
            found = parsedate_to_datetime(value)
        else:
            offset = match[3] if match[3] and match[3][0] in "+-" else "+00:00"
            found = datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}")
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def until_s(value: str | None, now: datetime) -> float | None:
    """Seconds from ``now`` until what ``value`` names in any form; never negative. ``None`` when it cannot be read."""
    if value is None:
        return None
    seconds = number(value)
    if seconds is None:
        seconds = span_s(value)
    if seconds is not None:
        return max(_from_unix(seconds, now), 0.0)
    then = moment(value)
    return None if then is None else max((then - now).total_seconds(), 0.0)


def _from_unix(seconds: float, now: datetime) -> float:
    if seconds < _UNIX_S:
        return seconds
    return (seconds / 1000 if seconds >= _UNIX_MS else seconds) - now.timestamp()


def _unit_s(unit: str) -> float:
    if unit.startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[unit[0]]
