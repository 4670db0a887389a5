"""Cool-downs: one row per target that failed lately, on the database's clock."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import text

from app.domain.delivery import Cooldown, CooldownReport
from app.store.engine import Database, Statement

_MOST_ROWS: Final = 5_000
"""Of one reading, the latest ones: every replica reads them once a second, and keeps them in memory."""

# A promise (the provider named the time) is more than a guess: a guess does not stretch it, and it stands in the place of one.
# Failures in a row are counted per cool-down: one that arrives during it began before it. A success (``clear``) deletes the row.
_REPORT = Statement(
    text("""
INSERT INTO cooldowns AS c (key, scope, reason, until_at, promised, failures, recent)
SELECT CAST(:key AS text), CAST(:scope AS text), CAST(:reason AS text),
       clock_timestamp() + make_interval(secs => CAST(:duration_s AS double precision)),
       CAST(:promised AS boolean), CASE WHEN CAST(:failed AS boolean) THEN 1 ELSE 0 END,
       CASE WHEN CAST(:failed AS boolean) THEN jsonb_build_array(jsonb_build_object(
           'at_ms', CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),
           'reason', CAST(:reason AS text), 'status', CAST(:status AS integer))) ELSE '[]' END
ON CONFLICT (key) DO UPDATE SET
    scope = excluded.scope,
    reason = excluded.reason,
    until_at = CASE WHEN c.until_at <= clock_timestamp() OR (excluded.promised AND NOT c.promised) THEN excluded.until_at
                    WHEN c.promised AND NOT excluded.promised THEN c.until_at
                    ELSE greatest(c.until_at, excluded.until_at) END,
    promised = excluded.promised OR (c.promised AND c.until_at > clock_timestamp()),
    failures = CASE WHEN c.failures > 0 AND c.until_at > clock_timestamp() THEN c.failures ELSE c.failures + excluded.failures END,
    probe_until = NULL,
    recent = jsonb_path_query_array(excluded.recent || c.recent, '$[0 to 4]'),
    updated_at = clock_timestamp()
RETURNING key, scope, reason, CAST(extract(epoch FROM until_at - clock_timestamp()) AS double precision) AS remaining_s,
          promised, failures, CAST(recent AS text) AS recent
""")
)

_READ = """
SELECT key, scope, reason, CAST(extract(epoch FROM until_at - clock_timestamp()) AS double precision) AS remaining_s,
       promised, failures, {recent} AS recent
FROM cooldowns WHERE greatest(updated_at, until_at) > clock_timestamp() - interval '1 hour'
ORDER BY updated_at DESC LIMIT :most
"""
_READ_ALL = Statement(text(_READ.format(recent="CAST(recent AS text)")).bindparams(most=_MOST_ROWS))
_READ_STANDINGS = Statement(text(_READ.format(recent="'[]'")).bindparams(most=_MOST_ROWS))

_CLEAR = Statement(
    text("""
DELETE FROM cooldowns WHERE key = ANY(CAST(:keys AS text[])) AND NOT (promised AND until_at > clock_timestamp())
""")
)

_RESET = Statement(text("DELETE FROM cooldowns WHERE key = ANY(CAST(:keys AS text[]))"))

# A target that is not in the table is healthy: somebody's probe went well.
_CLAIM_PROBE = Statement(
    text("""
WITH u AS (
    UPDATE cooldowns SET probe_until = clock_timestamp() + make_interval(secs => CAST(:for_s AS double precision))
    WHERE key = :key AND until_at <= clock_timestamp() AND coalesce(probe_until <= clock_timestamp(), true)
    RETURNING 1
)
SELECT EXISTS (SELECT 1 FROM u) OR NOT EXISTS (SELECT 1 FROM cooldowns WHERE key = :key) AS claimed
""")
)

_LEAVE_PROBE = Statement(text("UPDATE cooldowns SET probe_until = NULL WHERE key = ANY(CAST(:keys AS text[]))"))

_PRUNE = Statement(
    text("""
WITH d AS (
    DELETE FROM cooldowns
    WHERE greatest(updated_at, until_at) < clock_timestamp() - make_interval(secs => CAST(:age_s AS double precision))
    RETURNING 1
)
SELECT count(*) AS removed FROM d
""")
)


class Cooldowns:
    """:class:`app.ports.HealthStore` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, *, recent: bool = True) -> list[Cooldown]:
        """Everything that is cooling down or has been quiet for less than an hour, the latest first; see :class:`app.ports.HealthStore`."""
        return list(_known(await self._database.fetch(_READ_ALL if recent else _READ_STANDINGS)))

    async def report(self, report: CooldownReport) -> Cooldown:
        """Add a failure; see :class:`app.ports.HealthStore`."""
        values = {
            "key": report.key,
            "scope": report.scope.value,
            "reason": report.reason.value,
            "status": report.status,
            "duration_s": report.duration_s,
            "promised": report.promised,
            "failed": report.failed,
        }
        return _cooldown((await self._database.fetch(_REPORT, values))[0])

    async def clear(self, keys: Sequence[str]) -> None:
        """These answered: forget their failures. A running cool-down that a provider asked for stays."""
        await self._database.fetch(_CLEAR, {"keys": list(keys)})

    async def reset(self, keys: Sequence[str]) -> None:
        """Forget these, running cool-downs included."""
        await self._database.fetch(_RESET, {"keys": list(keys)})

    async def claim_probe(self, key: str, for_s: float) -> bool:
        """Whether the caller may try what is on probation; for ``for_s`` seconds nobody else may."""
        return bool((await self._database.fetch(_CLAIM_PROBE, {"key": key, "for_s": for_s}))[0].claimed)

    async def leave_probe(self, keys: Sequence[str]) -> None:
        """What was claimed is not tried after all: the next one may."""
        await self._database.fetch(_LEAVE_PROBE, {"keys": list(keys)})

    async def prune(self, age_s: float) -> int:
        """Forget what has been quiet for ``age_s`` seconds; returns the rows removed."""
        removed: int = (await self._database.fetch(_PRUNE, {"age_s": age_s}))[0].removed
        return removed


def _known(rows: Iterable[Any]) -> Iterable[Cooldown]:
    for row in rows:
        try:
            yield _cooldown(row)
        except msgspec.ValidationError:
            continue  # a newer replica knows reasons that this one does not


def _cooldown(row: Any) -> Cooldown:
    fields = {
        "key": row.key,
        "scope": row.scope,
        "reason": row.reason,
        "remaining_s": row.remaining_s,
        "promised": row.promised,
        "failures": row.failures,
        "recent": msgspec.json.decode(row.recent),
    }
    return msgspec.convert(fields, Cooldown)
