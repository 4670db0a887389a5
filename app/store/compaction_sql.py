"""What a compaction writes, behind the commit that carries it and in its transaction."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import TextClause, text

from app.domain.turns import Commit, Compaction

_encode = msgspec.json.Encoder().encode

LOCK = text("SELECT 1 FROM sessions WHERE id = :session_id FOR NO KEY UPDATE")
"""Before the commit: the session's row is taken before its turn's, in the order of all statements."""

_ARCHIVE = text(
    "UPDATE messages SET archived = true WHERE session_id = :session_id AND seq = ANY(CAST(:seqs AS bigint[])) AND NOT archived"
)
_KEEP = text("""
UPDATE sessions SET summary = CASE WHEN CAST(:replaces AS boolean) THEN CAST(:body AS text) ELSE summary END,
    memory = CAST(:memory AS text)
WHERE id = :session_id
""")
_RETIRE = text("UPDATE summaries SET active = false WHERE session_id = :session_id AND active AND id <> :id")
_INSERT = text("""
INSERT INTO summaries (id, session_id, turn_id, active, body, first_seq, last_seq, tokens_before, tokens_after, usage, cost_usd, reason)
VALUES (:id, :session_id, :turn_id, true, :body, :first_seq, :last_seq, :tokens_before, :tokens_after, :usage, :cost_usd, :reason)
""")


def statements_of(compaction: Compaction) -> Sequence[TextClause]:
    """The statements, in order; a trim has no summary."""
    return (_ARCHIVE, _KEEP) if compaction.result.summary is None else (_ARCHIVE, _KEEP, _RETIRE, _INSERT)


def params_of(commit: Commit, compaction: Compaction) -> dict[str, Any]:
    """The parameters of all of them."""
    result = compaction.result
    return {
        "session_id": commit.fence.session_id,
        "turn_id": commit.fence.turn_id,
        "seqs": list(result.leaving_seqs),
        "replaces": result.summary is not None,
        "body": result.summary,
        "memory": compaction.memory,
        "id": compaction.id,
        "first_seq": result.first_seq or 0,
        "last_seq": result.last_seq or 0,
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
        "usage": _encode(compaction.usage),
        "cost_usd": compaction.cost_usd,
        "reason": result.reason.value,
    }
