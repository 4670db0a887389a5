"""What a response's headers say about the limits of its credential. Pure, and next to free where there are no such headers.

Read are ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` (OpenAI and those who follow it, some with ``-minute`` or ``-day``
behind), ``anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}``, the bare
``x-ratelimit-{limit,remaining,reset}`` (OpenRouter), and the IETF's drafts ``RateLimit`` and ``RateLimit-Policy``.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from app.providers.durations import number, until_s

_MINUTE_S: Final = 60.0
_MAX_ITEMS: Final = 8
_WINDOWS: Final = {"minute": _MINUTE_S, "hour": 3600.0, "day": 86400.0}
_named: Final = re.compile(r"x-ratelimit-(?P<what>limit|remaining|reset)-(?P<kind>req|requests|tokens)(?:-(?P<per>minute|hour|day))?")
_anthropic: Final = re.compile(r"anthropic-ratelimit-(?P<kind>requests|(?:input-|output-)?tokens)-(?P<what>limit|remaining|reset)")
_bare: Final = re.compile(r"(?:x-)?ratelimit-(?P<what>limit|remaining|reset)")
_parameter: Final = re.compile(r"\b(limit|remaining|reset|[rtqw])\s*=\s*(\d+)")


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as last reported. ``None`` is not told."""

    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None
    """Seconds until the limit is whole again."""
    window_s: float | None = None
    """The time that ``limit`` counts in, where that is told or by convention a minute."""

    @property
    def used_up_s(self) -> float | None:
        """Seconds to stay away because nothing is left; ``None`` when some is, or the time is not told."""
        return self.reset_s if self.remaining == 0 else None

    @property
    def per_minute(self) -> int | None:
        """The limit of a minute, where it surely is one of a minute."""
        return self.limit if self.window_s == _MINUTE_S else None


class RateHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of requests and of tokens; of several of a kind the one that is used up, else the one of a minute."""

    requests: Allowance | None
    tokens: Allowance | None

    @property
    def away_s(self) -> float | None:
        """Seconds to stay away because something is used up, else ``None``."""
        waits = [found.used_up_s for found in (self.requests, self.tokens) if found is not None]
        return max((wait for wait in waits if wait is not None), default=None)

    @property
    def rpm(self) -> int | None:
        """Requests a minute, where the headers surely say that."""
        return self.requests.per_minute if self.requests is not None else None

    @property
    def tpm(self) -> int | None:
        """Tokens a minute, where the headers surely say that."""
        return self.tokens.per_minute if self.tokens is not None else None


def read_limits(headers: Mapping[str, str], now: datetime) -> RateHeaders | None:
    """The limits that ``headers`` tell of (names in any case), or ``None``. ``now`` is aware. What cannot be read is left out."""
    found = {name: value for key, value in headers.items() if "ratelimit" in (name := key.lower())}
    if not found:
        return None
    requests = list(_drafts(found, now))
    tokens: list[Allowance] = []
    for (kind, window), said in _grouped(found).items():
        allowance = _allowance(kind, window, said, now)
        if allowance is not None:
            (tokens if kind.endswith("tokens") else requests).append(allowance)
    if not requests and not tokens:
        return None
    return RateHeaders(requests=_decisive(requests), tokens=_decisive(tokens))


def _grouped(found: Mapping[str, str]) -> dict[tuple[str, str | None], dict[str, str]]:
    """Values by what they count and in which window; the bare headers count ``calls``."""
    groups: dict[tuple[str, str | None], dict[str, str]] = {}
    for name, value in found.items():
        match = _named.fullmatch(name) or _anthropic.fullmatch(name) or _bare.fullmatch(name)
        if match is not None:
            parts = match.groupdict()
            groups.setdefault((parts.get("kind", "calls"), parts.get("per")), {})[parts["what"]] = value
    return groups


def _allowance(kind: str, per: str | None, said: Mapping[str, str], now: datetime) -> Allowance | None:
    reset_s = until_s(said.get("reset"), now)
    limit = _count(said.get("limit"))
    remaining = _count(said.get("remaining"))
    if limit is None and remaining is None and reset_s is None:
        return None
    if per is not None:
        window_s: float | None = _WINDOWS[per]
    elif kind == "calls":  # every service has its own window
        window_s = None
    else:  # by convention a minute; what takes longer to be whole again is a longer one
        window_s = _MINUTE_S if reset_s is not None and reset_s <= _MINUTE_S else None
    # What may be written in a minute is not what may be sent in one.
    return Allowance(limit=None if kind == "output-tokens" else limit, remaining=remaining, reset_s=reset_s, window_s=window_s)


def _drafts(found: Mapping[str, str], now: datetime) -> Iterator[Allowance]:
    """``limit=100, remaining=50, reset=5`` (draft 7), or ``"name";r=50;t=5`` with ``"name";q=100;w=60`` as its policy (draft 8)."""
    state = found.get("ratelimit", "")
    policies = dict(_items(found.get("ratelimit-policy", "")))
    items = [("", dict(_parameter.findall(state)))] if "remaining" in state else list(_items(state))
    for name, said in items:
        policy = policies.get(name) or (next(iter(policies.values())) if len(policies) == 1 else {})
        remaining = _count(said.get("r", said.get("remaining")))
        if remaining is not None:
            yield Allowance(
                limit=_count(policy.get("q", said.get("limit"))),
                remaining=remaining,
                reset_s=until_s(said.get("t", said.get("reset")), now),
                window_s=number(policy.get("w")),
            )


def _items(value: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Names and parameters; in older drafts a policy's quota stands in the place of its name."""
    for item in value.split(",")[:_MAX_ITEMS]:
        name = item.split(";", 1)[0].strip().strip('"')
        parameters = dict(_parameter.findall(item))
        if name.isascii() and name.isdigit():
            parameters.setdefault("q", name)
        if parameters:
            yield name, parameters


def _decisive(found: list[Allowance]) -> Allowance | None:
    return max(found, key=lambda one: (one.used_up_s if one.used_up_s is not None else -1.0, one.per_minute is not None), default=None)


def _count(value: str | None) -> int | None:
    amount = number(value)
    return int(amount) if amount is not None and amount >= 0 else None
