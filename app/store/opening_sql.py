"""The statements that write a new turn; the lock order is that of :mod:`app.store.turn_sql`.

Each returns one row: ``known`` (whether the session is the tenant's), ``turn_id`` (``NULL`` when nothing was written), and what a
session's turn begins with.
"""

from typing import Final

from sqlalchemy import TextClause, text

from app.store.engine import Statement


class OpeningStatement:
    """One statement in two forms: for the driver, and for a transaction that holds the session's or the tenant's lock already."""

    __slots__ = ("alone", "within")

    def __init__(self, sql: str) -> None:
        self.within: Final[TextClause] = text(sql)
        self.alone: Final = Statement(self.within)


_TURN_COLUMNS = """id, tenant_id, session_id, history, state, rank, owner, generation, request, message_id, input_message, machine,
                       last_seq, idempotency_key, fingerprint, started_at, parent_turn_id"""

_TURN_VALUES = """CAST(:state AS text), CAST(:rank AS smallint), CAST(:owner AS text),
           CASE WHEN CAST(:owner AS text) IS NULL THEN 0 ELSE 1 END, CAST(:request AS bytea), CAST(:message_id AS text),
           CAST(:input_message AS bytea), CAST(:machine AS bytea), CAST(:last_seq AS bigint), CAST(:key AS text),
           CAST(:fingerprint AS bytea), CASE WHEN CAST(:owner AS text) IS NOT NULL THEN clock_timestamp() END,
           CAST(:parent_turn_id AS text)"""

_EVENTS = """e AS (
    INSERT INTO turn_events (turn_id, first_seq, last_seq, kind, frames)
    SELECT t.id, CAST(:first AS bigint), CAST(:last_seq AS bigint), CAST(:kind AS smallint), CAST(:frames AS bytea) FROM t
)"""

_ONE_MESSAGE = """SELECT s.id, s.next_seq, CAST(:message_id AS text), t.id, CAST(:input_message AS bytea) FROM s, t
    WHERE CAST(:owner AS text) IS NOT NULL"""

_SEVERAL_MESSAGES = """SELECT s.id, s.next_seq + x.place - 1, x.id, t.id, x.body
    FROM s, t, unnest(CAST(:message_ids AS text[]), CAST(:bodies AS bytea[])) WITH ORDINALITY AS x(id, body, place)
    WHERE CAST(:owner AS text) IS NOT NULL"""


def _in_session(messages: str, count: str) -> str:
    return f"""
WITH s AS MATERIALIZED (
    SELECT id, next_seq, system_prompt, memory, summary, context, tools, model, keep_interrupted_text FROM sessions
    WHERE id = :session_id AND tenant_id = :tenant_id FOR NO KEY UPDATE
), t AS (
    INSERT INTO turns ({_TURN_COLUMNS})
    SELECT CAST(:id AS text), CAST(:tenant_id AS text), s.id, NULL, {_TURN_VALUES}
    FROM s
    WHERE (SELECT count(*) FROM turns q WHERE q.session_id = s.id AND q.state = 'queued')
          < CASE WHEN CAST(:owner AS text) IS NULL THEN CAST(:max_queued AS integer) ELSE 1 END
    ON CONFLICT DO NOTHING
    RETURNING id
), m AS (
    INSERT INTO messages (session_id, seq, id, turn_id, body)
    {messages}
    RETURNING session_id, seq
), findable AS (
    INSERT INTO search_queue (session_id, seqs) SELECT session_id, array_agg(seq) FROM m GROUP BY session_id
), u AS (
    UPDATE sessions SET next_seq = s.next_seq + {count}, updated_at = clock_timestamp() FROM s, t
    WHERE sessions.id = s.id AND CAST(:owner AS text) IS NOT NULL
), {_EVENTS}
SELECT s.id IS NOT NULL AS known, s.next_seq, s.system_prompt, s.memory, s.summary, s.context, s.tools, s.model,
       s.keep_interrupted_text, t.id AS turn_id, h.*
FROM (SELECT 1) AS one LEFT JOIN s ON true LEFT JOIN t ON true
LEFT JOIN LATERAL (
    SELECT array_agg(o.seq) AS seqs, array_agg(o.id) AS ids, array_agg(o.turn_id) AS turn_ids, array_agg(o.body) AS bodies,
           array_agg(o.created_at_ms) AS times
    FROM (
        SELECT seq, id, turn_id, body, (extract(epoch FROM created_at) * 1000)::bigint AS created_at_ms FROM messages
        WHERE messages.session_id = s.id AND NOT archived AND t.id IS NOT NULL AND CAST(:owner AS text) IS NOT NULL ORDER BY seq
    ) AS o
) AS h ON true
"""


OPEN = OpeningStatement(_in_session(_ONE_MESSAGE, "1"))
OPEN_WITH_ANSWERS = OpeningStatement(_in_session(_SEVERAL_MESSAGES, "cardinality(CAST(:message_ids AS text[]))"))
"""The turn brings several messages, or other ones than a user's."""
OPEN_STATELESS = OpeningStatement(f"""
WITH k AS (
    INSERT INTO stateless_keys (tenant_id, key, turn_id)
    SELECT CAST(:tenant_id AS text), CAST(:call_key AS text), CAST(:id AS text) WHERE CAST(:call_key AS text) IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING turn_id
), t AS (
    INSERT INTO turns ({_TURN_COLUMNS})
    SELECT CAST(:id AS text), CAST(:tenant_id AS text), NULL, CAST(:history AS bytea), {_TURN_VALUES}
    WHERE CAST(:call_key AS text) IS NULL OR EXISTS (SELECT 1 FROM k)
    ON CONFLICT DO NOTHING
    RETURNING id
), {_EVENTS}
SELECT true AS known, (SELECT id FROM t) AS turn_id
""")

WHY_NOT_OPENED = Statement(
    text("""
SELECT r.id AS replayed_id, r.fingerprint,
       (SELECT b.id FROM turns b WHERE b.session_id = :session_id AND b.state IN ('running', 'requires_action', 'resuming', 'queued')
        ORDER BY b.state <> 'queued' DESC, b.rank, b.ordinal LIMIT 1) AS busy_id,
       CAST(:queue AS boolean) AND (SELECT count(*) FROM turns q WHERE q.session_id = :session_id AND q.state = 'queued')
           >= CAST(:max_queued AS integer) AS queue_full
FROM (SELECT 1) AS one
LEFT JOIN turns r ON r.tenant_id = :tenant_id AND r.session_id = :session_id
    AND (r.id = :id OR r.idempotency_key = CAST(:key AS text))
""")
)
WHY_NOT_STATELESS = Statement(
    text("""
SELECT r.id AS replayed_id, r.fingerprint, NULL AS busy_id, false AS queue_full
FROM (SELECT 1) AS one
LEFT JOIN turns r ON r.tenant_id = :tenant_id
    AND r.id = coalesce((SELECT k.turn_id FROM stateless_keys k WHERE k.tenant_id = :tenant_id AND k.key = CAST(:key AS text)), :id)
""")
)
