"""Records of tool calls in memory: :class:`app.ports.CallStore`."""

from typing_extensions import override

from app.domain.ids import TenantId, TurnId
from app.domain.tools import CallRecord
from app.ports import CallStore


class NoCalls(CallStore):
    """No call was ever made."""

    @override
    async def newest(self, tenant_id: TenantId, turn_id: TurnId, limit: int) -> list[CallRecord]:
        return []

    @override
    async def output(self, tenant_id: TenantId, turn_id: TurnId, tool_call_id: str, seq: int | None) -> str | None:
        return None
