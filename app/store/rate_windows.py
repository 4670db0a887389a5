"""Rate windows: one row per limit with the calls and tokens of each second, booked by one statement on the database's clock.

The rule. A call booked for second ``s`` is made from ``s`` on, and reaches the provider up to a second and a little network time later. So
it counts in every window until ``s`` + 1 + 60 + 0.5 seconds: a later call may take its place from second ``s`` + 62 on. A call's second is
the earliest one at which the limit is kept and that is neither past nor before the last booking, so bookings go in the order in which
they were asked for, and what is booked later never makes an earlier window full. A call that needs more tokens than the limit allows at
all goes alone, when nothing else counts: it may be an estimate too high, and it could otherwise never go.

Why the statement is atomic. Its first part locks the rows, in the order of their keys, and reads them at their newest version (READ
COMMITTED: a locked row is read again after the wait); everything else is computed from what it read, the time included, which is taken
after the locks. Nobody else can write in between.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import text

from app.domain.delivery import Booked, Booking, Limit, Refused, WindowUse
from app.domain.errors import UnavailableError
from app.store.engine import Database, Statement

COUNTS_S = 62
"""From which second after its own on a booking counts no more: 60, the second itself, and the margin of 0.5 rounded up."""

_CREATIONS = 5
"""Rows can be pruned between their making and their booking, but hardly so often."""
_PRUNE_ROWS = 5_000


def _sql(statement: str, **constants: int) -> Statement:
    return Statement(text(statement).bindparams(**constants))


# b: for each second that counts, whether its calls and all later ones leave no room for one more. The newest such second is in the way.
_BOOK = _sql(
    """
WITH w AS MATERIALIZED (
    SELECT key, seconds, calls, tokens FROM rate_windows WHERE key = ANY(CAST(:keys AS text[])) ORDER BY key FOR NO KEY UPDATE
), n AS MATERIALIZED (
    SELECT count(*) AS found,
           CAST(extract(epoch FROM clock_timestamp()) AS double precision) + CAST(:ahead_s AS double precision) AS at
    FROM w
), b AS (
    SELECT x.second,
           sum(x.calls) OVER later + 1 > l.rpm AS no_calls,
           sum(x.tokens) OVER later + least(CAST(:tokens AS bigint), l.tpm) > l.tpm AS no_tokens
    FROM w JOIN unnest(CAST(:keys AS text[]), CAST(:rpms AS bigint[]), CAST(:tpms AS bigint[])) AS l(key, rpm, tpm) ON l.key = w.key
    CROSS JOIN n CROSS JOIN LATERAL unnest(w.seconds, w.calls, w.tokens) AS x(second, calls, tokens)
    WHERE x.second > floor(n.at) - CAST(:counts_s AS integer)
    WINDOW later AS (PARTITION BY w.key ORDER BY x.second DESC)
), d AS MATERIALIZED (
    SELECT n.found, n.at,
           CAST(greatest(floor(n.at), max(b.second),
                         max(b.second + CAST(:counts_s AS integer)) FILTER (WHERE b.no_calls OR b.no_tokens)) AS bigint) AS second,
           coalesce(max(b.second) FILTER (WHERE b.no_calls), 0) AS calls_until,
           coalesce(max(b.second) FILTER (WHERE b.no_tokens), 0) AS tokens_until
    FROM n LEFT JOIN b ON true GROUP BY n.found, n.at
), s AS MATERIALIZED (
    SELECT w.key, g.seconds, g.calls, g.tokens
    FROM d CROSS JOIN w CROSS JOIN LATERAL (
        SELECT array_agg(o.second ORDER BY o.second) AS seconds, array_agg(o.calls ORDER BY o.second) AS calls,
               array_agg(o.tokens ORDER BY o.second) AS tokens
        FROM (
            SELECT e.second, CAST(sum(e.calls) AS integer) AS calls, CAST(sum(e.tokens) AS bigint) AS tokens
            FROM (
                SELECT x.second, x.calls, x.tokens FROM unnest(w.seconds, w.calls, w.tokens) AS x(second, calls, tokens)
                WHERE x.second > floor(d.at) - CAST(:counts_s AS integer)
                UNION ALL SELECT d.second, 1, CAST(:tokens AS bigint)
            ) AS e GROUP BY e.second
        ) AS o
    ) AS g
    WHERE d.found = cardinality(CAST(:keys AS text[])) AND d.second - d.at <= CAST(:patience_s AS double precision)
), u AS (
    UPDATE rate_windows SET seconds = s.seconds, calls = s.calls, tokens = s.tokens, updated_at = clock_timestamp()
    FROM s WHERE rate_windows.key = s.key RETURNING 1
)
SELECT d.found, d.second, greatest(d.second - d.at, 0) AS delay_s, d.calls_until, d.tokens_until, (SELECT count(*) FROM u) AS booked
FROM d
""",
    counts_s=COUNTS_S,
)

_CREATE = _sql("""
INSERT INTO rate_windows (key, seconds, calls, tokens)
SELECT x.key, '{}', '{}', '{}' FROM unnest(CAST(:keys AS text[])) AS x(key) ORDER BY x.key
ON CONFLICT DO NOTHING
""")

# A second whose last call is given back is dropped, so that the next booking need not come after it.
_ADJUST = _sql("""
WITH w AS MATERIALIZED (
    SELECT key, seconds, calls, tokens FROM rate_windows WHERE key = ANY(CAST(:keys AS text[])) ORDER BY key FOR NO KEY UPDATE
), s AS MATERIALIZED (
    SELECT w.key, g.seconds, g.calls, g.tokens
    FROM w CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(o.second ORDER BY o.second), '{}') AS seconds,
               coalesce(array_agg(o.calls ORDER BY o.second), '{}') AS calls,
               coalesce(array_agg(o.tokens ORDER BY o.second), '{}') AS tokens
        FROM (
            SELECT x.second,
                   CASE WHEN x.second = :second THEN x.calls - CAST(:calls AS integer) ELSE x.calls END AS calls,
                   CASE WHEN x.second = :second THEN greatest(x.tokens + CAST(:tokens AS bigint), 0) ELSE x.tokens END AS tokens
            FROM unnest(w.seconds, w.calls, w.tokens) AS x(second, calls, tokens)
        ) AS o
        WHERE o.calls > 0
    ) AS g
    WHERE CAST(:second AS bigint) = ANY(w.seconds)
)
UPDATE rate_windows SET seconds = s.seconds, calls = s.calls, tokens = s.tokens FROM s WHERE rate_windows.key = s.key
""")

_USE = _sql("""
SELECT w.key, CAST(coalesce(sum(x.calls), 0) AS bigint) AS calls, CAST(coalesce(sum(x.tokens), 0) AS bigint) AS tokens
FROM rate_windows w LEFT JOIN LATERAL unnest(w.seconds, w.calls, w.tokens) AS x(second, calls, tokens)
    ON x.second > extract(epoch FROM clock_timestamp()) + CAST(:ahead_s AS double precision) - 60
WHERE w.key = ANY(CAST(:keys AS text[]))
GROUP BY w.key
""")

# Rows that somebody is booking in are left out: waiting for them could be a deadlock, and they are not idle.
_PRUNE = _sql(
    """
WITH n AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp()) + CAST(:ahead_s AS double precision) - CAST(:counts_s AS integer) AS before
), g AS MATERIALIZED (
    SELECT w.key FROM rate_windows w CROSS JOIN n
    WHERE greatest(w.seconds[cardinality(w.seconds)], extract(epoch FROM w.updated_at)) <= n.before
    LIMIT :prune_rows FOR UPDATE OF w SKIP LOCKED
), d AS (
    DELETE FROM rate_windows USING g WHERE rate_windows.key = g.key RETURNING 1
)
SELECT count(*) AS removed FROM d
""",
    counts_s=COUNTS_S,
    prune_rows=_PRUNE_ROWS,
)


def _no_shift() -> float:
    return 0.0


class RateWindows:
    """:class:`app.ports.RateWindowStore` on Postgres. ``ahead_s`` is added to the database's clock: a test lets minutes pass with it."""

    def __init__(self, database: Database, ahead_s: Callable[[], float] = _no_shift) -> None:
        self._database = database
        self._ahead_s = ahead_s

    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        """Take the earliest place; one statement, but for the first booking of a key. See the port."""
        keys = [limit.key for limit in limits]
        values = {
            "keys": keys,
            "rpms": [limit.rpm for limit in limits],
            "tpms": [limit.tpm for limit in limits],
            "tokens": tokens,
            "patience_s": patience_s,
        }
        for _ in range(_CREATIONS):
            row = (await self._database.fetch(_BOOK, {**values, "ahead_s": self._ahead_s()}))[0]
            if row.found == len(keys):
                return _booking(row, limits, tokens)
            await self._database.fetch(_CREATE, {"keys": keys})
        raise UnavailableError("storage_unavailable", "The rate windows cannot be written right now.")

    async def give_back(self, booking: Booked) -> None:
        """The call was not made: its place is free again, if it still counts at all."""
        await self._adjust(booking, calls=1, tokens=-booking.tokens)

    async def settle(self, booking: Booked, tokens: int) -> None:
        """The call used ``tokens`` in place of those booked."""
        await self._adjust(booking, calls=0, tokens=tokens - booking.tokens)

    async def use(self, keys: Sequence[str]) -> dict[str, WindowUse]:
        """What is used of these limits; those without a row are left out."""
        rows = await self._database.fetch(_USE, {"keys": list(keys), "ahead_s": self._ahead_s()})
        return {row.key: WindowUse(calls=row.calls, tokens=row.tokens) for row in rows}

    async def prune(self) -> int:
        """Delete windows that hold nothing any more; returns the rows removed."""
        removed = 0
        while True:
            batch: int = (await self._database.fetch(_PRUNE, {"ahead_s": self._ahead_s()}))[0].removed
            removed += batch
            if batch < _PRUNE_ROWS:
                return removed

    async def _adjust(self, booking: Booked, *, calls: int, tokens: int) -> None:
        values = {"keys": list(booking.keys), "second": booking.second, "calls": calls, "tokens": tokens}
        await self._database.fetch(_ADJUST, values)


def _booking(row: Any, limits: Sequence[Limit], tokens: int) -> Booking:
    of_tokens = row.tokens_until > row.calls_until or all(limit.rpm is None for limit in limits)
    limit = "tpm" if of_tokens else "rpm"
    if row.booked:
        return Booked(keys=tuple(one.key for one in limits), second=row.second, tokens=tokens, delay_s=row.delay_s, limit=limit)
    return Refused(limit=limit, delay_s=row.delay_s)
