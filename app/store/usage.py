"""What tenants have used: the sums of a day that quotas are checked against, and the report for operators."""

from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import text

from app.domain.ids import TenantId, make_id
from app.domain.model import RouteRef, Usage
from app.domain.quotas import DAY_S, DayUse, UsageLine
from app.ports import UsageStore
from app.store.engine import Database, Statement

_LONGEST_TURN_S = DAY_S
"""A turn that ran longer is missing in sums that begin after its start: turns are found by their ids, which hold the start."""

_READ = Statement(
    text("""
SELECT (d.at AT TIME ZONE 'UTC')::date AS day, u.tokens, u.cost_usd,
       EXISTS (SELECT 1 FROM tenant_usage k WHERE k.tenant_id = CAST(:tenant_id AS text)) AS counted,
       extract(epoch FROM d.starts_at + interval '1 day' - d.at)::double precision AS ends_in_s,
       extract(epoch FROM d.starts_at)::bigint AS starts_at
FROM (SELECT c.at, date_trunc('day', c.at, 'UTC') AS starts_at FROM (SELECT clock_timestamp() AS at) AS c) AS d
LEFT JOIN tenant_usage u ON u.tenant_id = CAST(:tenant_id AS text) AND u.day = (d.at AT TIME ZONE 'UTC')::date
""")
)

_BEGIN = Statement(
    text("""
INSERT INTO tenant_usage (tenant_id, day, tokens, cost_usd)
SELECT CAST(:tenant_id AS text), (clock_timestamp() AT TIME ZONE 'UTC')::date,
       coalesce(sum((m -> 'usage' ->> 'input_tokens')::bigint + (m -> 'usage' ->> 'output_tokens')::bigint), 0),
       coalesce(sum((m ->> 'cost_usd')::double precision), 0)
FROM turns t, LATERAL (SELECT convert_from(t.machine, 'UTF8')::jsonb AS m) AS x
WHERE t.tenant_id = CAST(:tenant_id AS text) AND t.id >= CAST(:first_id AS text)
  AND t.ended_at >= date_trunc('day', clock_timestamp(), 'UTC')
ON CONFLICT DO NOTHING
""")
)

_REPORT = text("""
SELECT n.name AS tenant, (t.ended_at AT TIME ZONE 'UTC')::date AS day, r -> 'route' AS route, count(*) AS turns,
       sum((r ->> 'attempts')::bigint) AS attempts, sum((r ->> 'failed')::bigint) AS failed,
       sum((r -> 'usage' ->> 'input_tokens')::bigint) AS input_tokens,
       sum((r -> 'usage' ->> 'output_tokens')::bigint) AS output_tokens,
       sum((r -> 'usage' ->> 'cached_input_tokens')::bigint) AS cached_input_tokens,
       sum((r -> 'usage' ->> 'cache_write_tokens')::bigint) AS cache_write_tokens,
       sum((r -> 'usage' ->> 'reasoning_tokens')::bigint) AS reasoning_tokens,
       sum((r ->> 'cost_usd')::double precision) AS cost_usd
FROM turns t JOIN tenants n ON n.id = t.tenant_id
CROSS JOIN LATERAL (SELECT convert_from(t.machine, 'UTF8')::jsonb AS m) AS x
LEFT JOIN LATERAL jsonb_array_elements(CASE
    WHEN m ? 'routes' THEN m -> 'routes'
    WHEN m -> 'route' = 'null' THEN '[]'
    ELSE jsonb_build_array(m || '{"failed": 0}') END) AS r ON true
WHERE t.id >= CAST(:first_id AS text) AND t.ended_at >= CAST(:first AS date)::timestamp AT TIME ZONE 'UTC'
  AND t.ended_at < (CAST(:last AS date) + 1)::timestamp AT TIME ZONE 'UTC'
  AND (CAST(:tenant AS text) IS NULL OR n.name = CAST(:tenant AS text))
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3 NULLS FIRST
""")
"""Turns of a version before have one route and no list of them: all they used is put down to that."""


class UsageRepository:
    """:class:`app.ports.UsageStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def today(self, tenant_id: TenantId) -> DayUse:
        """What the tenant's turns used today; see the port.

        One statement, two more at a tenant's very first call. A turn that ends in the same moment as that may be missing from the sum.
        """
        row = (await self._database.fetch(_READ, {"tenant_id": tenant_id}))[0]
        if not row.counted:
            await self._database.fetch(_BEGIN, {"tenant_id": tenant_id, "first_id": _first_id(row.starts_at)})
            row = (await self._database.fetch(_READ, {"tenant_id": tenant_id}))[0]
        return DayUse(day=row.day, tokens=row.tokens or 0, cost_usd=row.cost_usd or 0.0, ends_in_s=row.ends_in_s)

    async def report(self, tenant: str | None, first: date, last: date) -> list[UsageLine]:
        """Use per tenant, day and route. Turns of deleted sessions are gone, and with them what they used."""
        start_s = (first - date(1970, 1, 1)).days * DAY_S
        params = {"tenant": tenant, "first": first, "last": last, "first_id": _first_id(start_s)}
        return [_line(row) for row in await self._database.fetch(_REPORT, params)]


def _first_id(start_s: int) -> str:
    """The lowest id of a turn that may have ended after ``start_s`` (unix seconds)."""
    return make_id("turn", max(0, start_s - _LONGEST_TURN_S) * 1_000, bytes(10))


def _line(row: Any) -> UsageLine:
    return UsageLine(
        tenant=row.tenant,
        day=row.day,
        route=None if row.route is None else msgspec.convert(row.route, RouteRef),
        turns=row.turns,
        attempts=int(row.attempts or 0),
        failed=int(row.failed or 0),
        usage=Usage(
            input_tokens=int(row.input_tokens or 0),
            output_tokens=int(row.output_tokens or 0),
            cached_input_tokens=int(row.cached_input_tokens or 0),
            cache_write_tokens=int(row.cache_write_tokens or 0),
            reasoning_tokens=int(row.reasoning_tokens or 0),
        ),
        cost_usd=row.cost_usd,
    )


if TYPE_CHECKING:

    def _conforms(repository: UsageRepository) -> UsageStore:
        return repository
