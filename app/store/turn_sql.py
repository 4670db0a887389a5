"""The statements of :mod:`app.store.turns`.

Lock order, everywhere: tenant row (openings within a quota only), session row, turn row, the slot's unique index, the tenant's day of
use. A statement that needs the session row takes it first (``FOR NO KEY UPDATE`` in a materialised CTE), so that an opening and a
closing of one session wait for one another instead of deadlocking. Locked rows are re-read at their newest version (READ COMMITTED), so
a wait never works on old values.

States of the table: those of :class:`app.domain.turns.TurnState`, and ``resuming``. That is a turn that has waited for somebody and
waits no more: it is answered, or to be stopped, or nobody answered in time. It still holds its session, and the next claim takes it first.
"""

from sqlalchemy import text

from app.domain.turns import SEQ_GAP, RowKind
from app.store.engine import Statement

_TURN = """
    t.id, t.tenant_id, t.session_id, t.owner, t.generation, t.request, t.machine, t.last_seq, t.cancel_reason
"""

_VIEW = """
    t.id, t.session_id, t.state, t.owner, t.generation, t.reason, t.request, t.machine, t.outcome, t.last_seq,
    (extract(epoch FROM t.expires_at) * 1000)::bigint AS expires_at_ms,
    (extract(epoch FROM t.created_at) * 1000)::bigint AS created_at_ms,
    (extract(epoch FROM t.started_at) * 1000)::bigint AS started_at_ms,
    (extract(epoch FROM t.ended_at) * 1000)::bigint AS ended_at_ms
"""


_UPSERT_EVENTS = """
    ON CONFLICT (turn_id, first_seq) DO UPDATE SET last_seq = excluded.last_seq, frames = excluded.frames
    WHERE turn_events.kind = 0 AND excluded.last_seq > turn_events.last_seq
"""
"""A write of deltas whose answer was lost may have happened: the next one begins at the same number and goes further."""


HOLDING = ("running", "requires_action", "resuming")
"""The states in which a turn holds its session: at most one of them does."""


def _sql(statement: str) -> Statement:
    return Statement(text(statement))


LOCK_SESSION = text("SELECT 1 FROM sessions WHERE id = :session_id AND tenant_id = :tenant_id FOR NO KEY UPDATE")

SESSION_MODEL = _sql("SELECT model FROM sessions WHERE id = :session_id AND tenant_id = :tenant_id")

LOCK_TENANT = text("SELECT 1 FROM tenants WHERE id = :tenant_id FOR NO KEY UPDATE")

COUNT_OPEN = text("""
SELECT (SELECT count(*) FROM turns WHERE tenant_id = :tenant_id AND state = 'running' AND parent_turn_id IS NULL)
     + (SELECT count(*) FROM turns WHERE tenant_id = :tenant_id AND state = 'requires_action')
     + (SELECT count(*) FROM turns WHERE tenant_id = :tenant_id AND state = 'resuming')
     + (SELECT count(*) FROM turns WHERE tenant_id = :tenant_id AND state = 'queued')
""")
"""Several counts, so that each finds its turns in a small partial index. Only true in a transaction that holds the tenant's lock."""

CLAIM = _sql(f"""
WITH c AS MATERIALIZED (
    SELECT t.id, t.session_id, s.next_seq, t.started_at IS NOT NULL AS resumed,
           t.started_at IS NULL AND octet_length(t.input_message) > 0 AS speaks
    FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE t.state = 'resuming' OR (t.state = 'queued'
      AND NOT EXISTS (SELECT 1 FROM turns r WHERE r.session_id = t.session_id AND r.state IN ('running', 'requires_action', 'resuming'))
      AND NOT EXISTS (SELECT 1 FROM turns q WHERE q.session_id = t.session_id AND q.state = 'queued'
                      AND (q.rank, q.ordinal) < (t.rank, t.ordinal)))
    ORDER BY t.state = 'queued', t.rank, t.ordinal LIMIT :limit
    FOR NO KEY UPDATE OF s, t SKIP LOCKED
), t AS (
    UPDATE turns SET state = 'running', owner = :owner, generation = generation + 1,
                     started_at = coalesce(started_at, clock_timestamp())
    FROM c WHERE turns.id = c.id AND turns.state IN ('queued', 'resuming')
    RETURNING turns.*
), m AS (
    INSERT INTO messages (session_id, seq, id, turn_id, body)
    SELECT c.session_id, c.next_seq, t.message_id, t.id, t.input_message FROM c JOIN t ON t.id = c.id WHERE c.speaks
    RETURNING session_id, seq
), findable AS (
    INSERT INTO search_queue (session_id, seqs) SELECT session_id, ARRAY[seq] FROM m
), u AS (
    UPDATE sessions SET next_seq = c.next_seq + 1, updated_at = clock_timestamp() FROM c JOIN t ON t.id = c.id
    WHERE sessions.id = c.session_id AND c.speaks
)
SELECT {_TURN}, c.next_seq + CASE WHEN c.speaks THEN 1 ELSE 0 END AS next_seq, c.resumed,
       s.system_prompt, s.memory, s.summary, s.context, s.tools, s.model, s.keep_interrupted_text
FROM t JOIN c ON c.id = t.id JOIN sessions s ON s.id = t.session_id
ORDER BY t.rank, t.ordinal
""")

TAKE_OVER = _sql(f"""
WITH c AS MATERIALIZED (
    SELECT t.id FROM turns t
    WHERE t.state = 'running'
      AND NOT EXISTS (SELECT 1 FROM turns c WHERE c.parent_turn_id = t.id AND c.ended_at IS NULL)
      AND EXISTS (SELECT 1 FROM replicas me WHERE me.id = :owner
                  AND CAST(extract(epoch FROM me.expires_at) * 1000000 AS bigint) = :beat
                  AND me.expires_at > clock_timestamp() + make_interval(secs => :ttl_s / 2))
      AND (CASE WHEN t.owner = :owner
           THEN t.id <> ALL(CAST(:known AS text[])) AND t.started_at < clock_timestamp() - make_interval(secs => :ttl_s)
           ELSE NOT EXISTS (SELECT 1 FROM replicas r WHERE r.id = t.owner AND r.expires_at > clock_timestamp()) END)
    ORDER BY t.id LIMIT :limit
    FOR NO KEY UPDATE OF t SKIP LOCKED
), t AS (
    UPDATE turns SET owner = :owner, generation = generation + 1,
        last_seq = {SEQ_GAP} + greatest(turns.last_seq, (SELECT max(e.last_seq) FROM turn_events e WHERE e.turn_id = turns.id))
    FROM c WHERE turns.id = c.id
    RETURNING turns.*
)
SELECT {_TURN}, coalesce(s.next_seq, 1) AS next_seq, true AS resumed, coalesce(s.system_prompt, '') AS system_prompt,
       s.memory, s.summary, s.context, coalesce(s.tools, convert_to('[]', 'UTF8')) AS tools, s.model,
       coalesce(s.keep_interrupted_text, false) AS keep_interrupted_text
FROM t LEFT JOIN sessions s ON s.id = t.session_id
""")

_RECORDS = """, r AS (
    INSERT INTO tool_calls (turn_id, seq, call_id, name, toolset, arguments, status, started_at, duration_ms, output)
    SELECT t.id, x.seq, x.call_id, x.name, x.toolset, x.arguments, x.status, to_timestamp(x.started_ms / 1000.0), x.duration_ms, x.output
    FROM t, unnest(CAST(:call_seqs AS bigint[]), CAST(:call_ids AS text[]), CAST(:call_names AS text[]),
                   CAST(:call_toolsets AS text[]), CAST(:call_arguments AS text[]), CAST(:call_statuses AS text[]),
                   CAST(:call_starts AS bigint[]), CAST(:call_durations AS bigint[]), CAST(:call_outputs AS text[]))
         AS x(seq, call_id, name, toolset, arguments, status, started_ms, duration_ms, output)
    ON CONFLICT DO NOTHING
)"""
"""A statement of its own for steps with tool calls: all others do without."""

_COMMIT = f"""
WITH s AS MATERIALIZED (
    SELECT id FROM sessions
    WHERE id = :session_id AND (CAST(:next_seq AS bigint) > 0 OR CAST(:context AS bytea) IS NOT NULL) FOR NO KEY UPDATE
), t AS (
    UPDATE turns SET
        state = CASE WHEN CAST(:waits_until AS double precision) IS NOT NULL AND cancel_reason IS NOT NULL THEN 'resuming'
                ELSE CAST(:state AS text) END,
        owner = CAST(:new_owner AS text), machine = :machine, last_seq = :last_seq,
        expires_at = to_timestamp(CAST(:waits_until AS double precision)),
        reason = CAST(:reason AS text), outcome = CAST(:outcome AS bytea),
        ended_at = CASE WHEN CAST(:ended AS boolean) THEN clock_timestamp() END
    WHERE id = :id AND generation = :generation AND owner IS NOT DISTINCT FROM CAST(:owner AS text)
      AND last_seq = :previous_seq AND state IN ('running', 'queued', 'resuming')
      AND ((CAST(:next_seq AS bigint) = 0 AND CAST(:context AS bytea) IS NULL) OR EXISTS (SELECT 1 FROM s))
    RETURNING id, session_id, tenant_id
), e AS (
    INSERT INTO turn_events (turn_id, first_seq, last_seq, kind, frames)
    SELECT t.id, x.* FROM t, unnest(CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]), CAST(:kinds AS smallint[]),
                                    CAST(:frames AS bytea[])) AS x
    {_UPSERT_EVENTS}
), m AS (
    INSERT INTO messages (session_id, seq, id, turn_id, note, archived, body)
    SELECT t.session_id, x.seq, x.id, t.id, x.note, x.archived, x.body
    FROM t, unnest(CAST(:message_seqs AS bigint[]), CAST(:message_ids AS text[]), CAST(:message_notes AS boolean[]),
                   CAST(:message_archived AS boolean[]), CAST(:message_bodies AS bytea[])) AS x(seq, id, note, archived, body)
), findable AS (
    INSERT INTO search_queue (session_id, seqs)
    SELECT t.session_id, CAST(:message_seqs AS bigint[]) FROM t WHERE cardinality(CAST(:message_seqs AS bigint[])) > 0
), f AS (
    UPDATE messages SET archived = true FROM t
    WHERE messages.session_id = t.session_id AND messages.turn_id = t.id AND CAST(:forget AS boolean)
), u AS (
    UPDATE sessions SET next_seq = greatest(next_seq, CAST(:next_seq AS bigint)), updated_at = clock_timestamp(),
        context = coalesce(CAST(:context AS bytea), context) FROM t
    WHERE sessions.id = t.session_id AND (CAST(:next_seq AS bigint) > 0 OR CAST(:context AS bytea) IS NOT NULL)
), q AS (
    INSERT INTO tenant_usage (tenant_id, day, tokens, cost_usd)
    SELECT t.tenant_id, (clock_timestamp() AT TIME ZONE 'UTC')::date, CAST(:tokens AS bigint), CAST(:cost_usd AS double precision)
    FROM t
    WHERE (CAST(:tokens AS bigint) > 0 OR CAST(:cost_usd AS double precision) > 0)
      AND EXISTS (SELECT 1 FROM tenant_usage k WHERE k.tenant_id = t.tenant_id)
    ON CONFLICT (tenant_id, day) DO UPDATE
        SET tokens = tenant_usage.tokens + excluded.tokens, cost_usd = tenant_usage.cost_usd + excluded.cost_usd
    RETURNING day, tokens, cost_usd
){{records}}
SELECT (SELECT id FROM t) AS applied,
       EXISTS (SELECT 1 FROM turns q WHERE q.session_id = :session_id AND q.state = 'queued') AS waiting,
       q.day, q.tokens AS day_tokens, q.cost_usd AS day_cost_usd
FROM (SELECT 1) AS one LEFT JOIN q ON true
"""
COMMIT = _sql(_COMMIT.format(records=""))
COMMIT_WITH_CALLS = _sql(_COMMIT.format(records=_RECORDS))
"""What its turn used is added to the tenant's day, but only for tenants that were ever under a quota of a day: those have a row."""
COMMIT_WITHIN = text(_COMMIT.format(records=_RECORDS))
"""The same for a transaction with more to do."""

FENCE = _sql("SELECT generation, last_seq FROM turns WHERE id = :id")

APPEND_DELTAS = _sql(f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:owners AS text[]), CAST(:generations AS integer[]), CAST(:firsts AS bigint[]),
                         CAST(:lasts AS bigint[]), CAST(:frames AS bytea[])) AS x(id, owner, generation, first_seq, last_seq, frames)
), t AS MATERIALIZED (
    SELECT turns.id FROM turns JOIN b ON b.id = turns.id
    WHERE turns.owner = b.owner AND turns.generation = b.generation AND turns.state = 'running'
    FOR SHARE OF turns
), e AS (
    INSERT INTO turn_events (turn_id, first_seq, last_seq, kind, frames)
    SELECT b.id, b.first_seq, b.last_seq, 0, b.frames FROM b JOIN t ON t.id = b.id
    {_UPSERT_EVENTS}
)
SELECT id FROM t
""")

OWNED = _sql("SELECT id FROM turns WHERE id = ANY(CAST(:ids AS text[])) AND owner = :owner AND state = 'running'")

CANCEL_REQUESTS = _sql("SELECT id, cancel_reason FROM turns WHERE owner = :owner AND state = 'running' AND cancel_reason IS NOT NULL")

REQUEST_CANCEL = _sql(f"""
UPDATE turns AS t SET cancel_reason = coalesce(t.cancel_reason, :reason),
    state = CASE WHEN t.state = 'requires_action' THEN 'resuming' ELSE t.state END
WHERE t.id = :id AND t.tenant_id = :tenant_id AND t.state IN ('queued', 'running', 'requires_action', 'resuming')
RETURNING {_VIEW}
""")

EXPIRE = _sql(f"""
WITH c AS MATERIALIZED (
    SELECT id FROM turns WHERE state = 'requires_action' AND expires_at < now()
    ORDER BY expires_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE turns AS t SET cancel_reason = coalesce(t.cancel_reason, :reason), state = 'resuming'
FROM c WHERE t.id = c.id AND t.state = 'requires_action'
RETURNING {_VIEW}
""")
"""``now()`` and not ``clock_timestamp()``: an index is not searched for what may change while it is read."""

ANSWER = _sql(f"""
WITH t AS (
    UPDATE turns SET machine = :machine, last_seq = :last_seq, state = :state
    WHERE id = :id AND tenant_id = :tenant_id AND state = 'requires_action' AND last_seq = :previous_seq
    RETURNING id
), e AS (
    INSERT INTO turn_events (turn_id, first_seq, last_seq, kind, frames)
    SELECT t.id, CAST(:last_seq AS bigint), CAST(:last_seq AS bigint), {int(RowKind.FACTS)}, CAST(:frames AS bytea) FROM t
    WHERE CAST(:frames AS bytea) IS NOT NULL
), k AS (
    INSERT INTO turn_answers (turn_id, key, fingerprint, after_seq, complete)
    SELECT t.id, CAST(:key AS text), CAST(:fingerprint AS bytea), CAST(:previous_seq AS bigint), CAST(:complete AS boolean) FROM t
    WHERE CAST(:key AS text) IS NOT NULL
)
SELECT id FROM t
""")

GIVEN_ANSWER = _sql("SELECT fingerprint, after_seq, complete FROM turn_answers WHERE turn_id = :id AND key = :key")

CANCEL_UNWATCHED = _sql("""
WITH u AS (
    UPDATE turns SET cancel_reason = coalesce(cancel_reason, :reason)
    WHERE id = :id AND state IN ('queued', 'running', 'resuming') AND coalesce(watched_until < clock_timestamp(), true)
    RETURNING id
)
SELECT true AS marked FROM u
UNION ALL SELECT false FROM turns WHERE id = :id AND (ended_at IS NOT NULL OR state = 'requires_action')
UNION ALL SELECT false WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = :id)
""")

WATCH = _sql("""
UPDATE turns SET watched_until = clock_timestamp() + make_interval(secs => :for_s)
WHERE id = ANY(CAST(:ids AS text[])) AND ended_at IS NULL
""")

GET = _sql(f"SELECT {_VIEW} FROM turns t WHERE t.id = :id AND t.tenant_id = :tenant_id")

LIST = _sql(f"""
SELECT {_VIEW} FROM turns t
WHERE t.session_id = :session_id AND t.tenant_id = :tenant_id AND (CAST(:before AS text) IS NULL OR t.id < CAST(:before AS text))
ORDER BY t.id DESC LIMIT :limit
""")

READ_EVENTS = _sql("""
SELECT c.id, c.after, t.state = 'requires_action' AS waits, t.ended_at IS NOT NULL AS ended, t.last_seq AS turn_last_seq,
       e.first_seq, e.last_seq, e.kind, e.frames
FROM unnest(CAST(:ids AS text[]), CAST(:afters AS bigint[])) AS c(id, after)
JOIN turns t ON t.id = c.id
LEFT JOIN LATERAL (
    SELECT first_seq, last_seq, kind, frames FROM turn_events
    WHERE turn_id = c.id AND last_seq > c.after ORDER BY first_seq LIMIT :rows
) AS e ON true
ORDER BY c.id, c.after, e.first_seq
""")

PRUNE_DELTAS = _sql("""
WITH c AS MATERIALIZED (
    SELECT id FROM turns WHERE ended_at < clock_timestamp() - make_interval(secs => :age_s) AND NOT deltas_pruned
    ORDER BY ended_at LIMIT :batch FOR NO KEY UPDATE SKIP LOCKED
), d AS (
    DELETE FROM turn_events USING c WHERE turn_events.turn_id = c.id AND turn_events.kind = 0 RETURNING 1
), o AS (
    UPDATE tool_calls SET output = NULL FROM c WHERE tool_calls.turn_id = c.id AND tool_calls.output IS NOT NULL
), u AS (
    UPDATE turns SET deltas_pruned = true, history = NULL FROM c WHERE turns.id = c.id
)
SELECT (SELECT count(*) FROM c) AS found, (SELECT count(*) FROM d) AS removed
""")
"""Whole outputs of tools go with the deltas, and so does the history of a stateless call: its client sends it again with every call."""

DELETE_STATELESS = _sql("""
WITH c AS MATERIALIZED (
    SELECT t.id FROM turns t
    WHERE t.session_id IS NULL AND t.ended_at < clock_timestamp() - make_interval(secs => :age_s)
      AND NOT EXISTS (SELECT 1 FROM stateless_keys k WHERE k.turn_id = t.id)
    ORDER BY t.ended_at LIMIT :batch FOR UPDATE OF t SKIP LOCKED
), d AS (
    DELETE FROM turns USING c WHERE turns.id = c.id RETURNING 1
)
SELECT count(*) AS found, count(*) AS removed FROM d
""")
"""Their events go with them. One that a repeated idempotency key must still find stays until the key is forgotten."""

FORGET_TURN_KEYS = _sql("""
UPDATE turns SET idempotency_key = NULL
WHERE idempotency_key IS NOT NULL AND created_at < clock_timestamp() - make_interval(secs => :age_s)
""")

FORGET_ANSWER_KEYS = _sql("DELETE FROM turn_answers WHERE created_at < clock_timestamp() - make_interval(secs => :age_s)")

FORGET_STATELESS_KEYS = _sql("DELETE FROM stateless_keys WHERE created_at < clock_timestamp() - make_interval(secs => :age_s)")

FORGET_SESSION_KEYS = _sql("""
UPDATE sessions SET idempotency_key = NULL
WHERE idempotency_key IS NOT NULL AND created_at < clock_timestamp() - make_interval(secs => :age_s)
""")

FORGET_REPLICAS = _sql("DELETE FROM replicas WHERE expires_at < clock_timestamp() - make_interval(secs => :age_s)")
