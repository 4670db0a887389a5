"""What ``GET /admin/usage`` and ``tenants usage`` show: what tenants have used, per day and route."""

import datetime
from collections.abc import Iterable

import msgspec

from app.domain.errors import InvalidRequestError
from app.domain.model import RouteRef, Usage
from app.domain.quotas import UsageLine

DEFAULT_DAYS = 30
"""Days reported when none is named, today included."""
MAX_DAYS = 366


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's turns that ended on ``day`` (UTC) used of one route.

    ``route`` is null for turns that asked no model. A turn that used several routes counts in the line of each. ``attempts`` are requests
    to the provider, ``failed`` of them failed; what those used is counted as far as the provider said. ``cost_usd`` is null without prices.
    """

    tenant: str
    day: str
    route: RouteRef | None
    turns: int
    attempts: int
    failed: int
    usage: Usage
    cost_usd: float | None


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of use by tenant, day and route."""

    data: tuple[UsageView, ...]
    has_more: bool = False
    next_cursor: str | None = None


def usage_views(lines: Iterable[UsageLine]) -> tuple[UsageView, ...]:
    """Lines of the report on the wire."""
    return tuple(_view(line) for line in lines)


def period(first: str | None, last: str | None, today: datetime.date) -> tuple[datetime.date, datetime.date]:
    """The days that ``from`` and ``to`` name (YYYY-MM-DD, UTC, both included). Raises InvalidRequestError."""
    end = today if last is None else _day(last, "/to")
    begin = end - datetime.timedelta(days=DEFAULT_DAYS - 1) if first is None else _day(first, "/from")
    if begin > end:
        raise InvalidRequestError("from is after to.", pointer="/from")
    if (end - begin).days >= MAX_DAYS:
        raise InvalidRequestError(f"A report covers at most {MAX_DAYS} days.", pointer="/from")
    return begin, end


def _day(value: str, pointer: str) -> datetime.date:
    try:
        day = datetime.datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=datetime.UTC).date()
    except ValueError:
        raise InvalidRequestError("A day is written YYYY-MM-DD.", pointer=pointer) from None
    if not datetime.date(1970, 1, 1) <= day <= datetime.date(9000, 1, 1):
        raise InvalidRequestError("This day is too far away.", pointer=pointer)
    return day


def _view(line: UsageLine) -> UsageView:
    return UsageView(
        tenant=line.tenant,
        day=line.day.isoformat(),
        route=line.route,
        turns=line.turns,
        attempts=line.attempts,
        failed=line.failed,
        usage=line.usage,
        cost_usd=line.cost_usd,
    )
