"""What a tenant may use, and what it has used, as values."""

import datetime
import enum

import msgspec

from app.domain.model import RouteRef, Usage

MINUTE_S = 60
DAY_S = 86_400


class QuotaPolicy(enum.StrEnum):
    """A tenant's quotas, under the names that clients are told."""

    REQUESTS = "requests"
    """Turns started in any 60 seconds."""
    CONCURRENT_TURNS = "concurrent_turns"
    """Turns running and queued."""
    TOKENS = "tokens"
    """Tokens of a day (UTC)."""
    COST = "cost"
    """Money of a day (UTC), counted in millionths of a US dollar: rate-limit headers take whole numbers only."""


class QuotaState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tenant stands with one quota; ``limit`` and ``remaining`` in the policy's unit.

    ``window_s`` is the time that the limit is for, ``None`` for what is counted at one moment. ``remaining`` is ``None`` where it was
    not looked at, ``reset_s`` (seconds until there is more) where that is not known.
    """

    policy: QuotaPolicy
    limit: int
    window_s: int | None
    remaining: int | None = None
    reset_s: float | None = None


class Spent(msgspec.Struct, frozen=True):
    """An amount of use: tokens, input and output, and money as far as prices are known."""

    tokens: int = 0
    cost_usd: float = 0.0

    def since(self, before: "Spent") -> "Spent":
        """What came on top of ``before``."""
        return Spent(self.tokens - before.tokens, self.cost_usd - before.cost_usd)


class DayShare(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a turn may use in all for its tenant's day to hold. ``None`` is no limit."""

    tokens: int | None = None
    cost_usd: float | None = None


class DaySums(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns of a tenant used on ``day`` (UTC, database's clock); those that run as far as they have told."""

    day: datetime.date
    tokens: int
    cost_usd: float


class DayUse(DaySums, frozen=True, kw_only=True):
    """The sums of today. ``ends_in_s``: seconds to the end of the day."""

    ends_in_s: float


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the turns of a tenant that ended on ``day`` (UTC) used of one route; ``route`` is ``None`` for those that asked no model.

    A turn counts in the line of each route that it used. ``cost_usd`` is ``None`` when the route had no prices.
    """

    tenant: str
    day: datetime.date
    route: RouteRef | None
    turns: int
    attempts: int
    failed: int
    usage: Usage
    cost_usd: float | None
