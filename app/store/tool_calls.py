"""Records of tool calls, and the whole outputs of those whose messages have cut ones."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from typing_extensions import override

from app.domain.ids import TenantId, TurnId
from app.domain.messages import content_text, decode_message
from app.domain.tools import CallRecord, CallStatus
from app.ports import CallStore
from app.store.engine import Database, Statement

_LIST = Statement(
    text("""
SELECT c.seq, c.call_id, c.name, c.toolset, c.arguments, c.status, c.duration_ms,
       (extract(epoch FROM c.started_at) * 1000)::bigint AS started_at_ms
FROM turns t JOIN tool_calls c ON c.turn_id = t.id
WHERE t.id = :turn_id AND t.tenant_id = :tenant_id
ORDER BY c.seq DESC LIMIT :limit
""")
)

_OUTPUT = Statement(
    text("""
SELECT c.output, m.body
FROM turns t JOIN tool_calls c ON c.turn_id = t.id
LEFT JOIN messages m ON m.session_id = t.session_id AND m.seq = c.seq
WHERE t.id = :turn_id AND t.tenant_id = :tenant_id AND c.call_id = :call_id
  AND (CAST(:seq AS bigint) IS NULL OR c.seq = CAST(:seq AS bigint))
ORDER BY c.seq DESC LIMIT 1
""")
)


class CallRepository(CallStore):
    """:class:`app.ports.CallStore` on Postgres. Records are written by the commits of their turns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def newest(self, tenant_id: TenantId, turn_id: TurnId, limit: int) -> list[CallRecord]:
        rows = await self._database.fetch(_LIST, {"tenant_id": tenant_id, "turn_id": turn_id, "limit": limit})
        return [_record(row) for row in reversed(rows)]

    @override
    async def output(self, tenant_id: TenantId, turn_id: TurnId, tool_call_id: str, seq: int | None) -> str | None:
        params = {"tenant_id": tenant_id, "turn_id": turn_id, "call_id": tool_call_id, "seq": seq}
        rows = await self._database.fetch(_OUTPUT, params)
        if not rows:
            return None
        output: str | None = rows[0].output
        return output if output is not None or rows[0].body is None else content_text(decode_message(rows[0].body).content)


def call_params(records: Sequence[CallRecord]) -> dict[str, Any]:
    """What a commit stores of calls."""
    return {
        "call_seqs": [record.seq for record in records],
        "call_ids": [record.tool_call_id for record in records],
        "call_names": [record.name for record in records],
        "call_toolsets": [record.toolset for record in records],
        "call_arguments": [record.arguments for record in records],
        "call_statuses": [record.status.value for record in records],
        "call_starts": [record.started_at_ms for record in records],
        "call_durations": [record.duration_ms for record in records],
        "call_outputs": [record.whole for record in records],
    }


def _record(row: Any) -> CallRecord:
    return CallRecord(
        seq=row.seq,
        tool_call_id=row.call_id,
        name=row.name,
        toolset=row.toolset,
        arguments=row.arguments,
        status=CallStatus(row.status),
        started_at_ms=row.started_at_ms,
        duration_ms=row.duration_ms,
    )
