"""What tenants have used, in memory: :class:`app.ports.UsageStore`."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta

from typing_extensions import override

from app.domain.ids import TenantId
from app.domain.quotas import DayUse, UsageLine
from app.ports import Clock, UsageStore
from tests.fakes.turns import InMemoryTurns


class InMemoryUsage(UsageStore):
    """Sums over :class:`InMemoryTurns`, taken anew each time."""

    def __init__(self, turns: InMemoryTurns, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self.calls: Counter[str] = Counter()

    @override
    async def today(self, tenant_id: TenantId) -> DayUse:
        self.calls["today"] += 1
        now = self._clock.now()
        ended = [row for row in self._turns.rows.values() if row.new.tenant_id == tenant_id and _day(row.ended_at_ms) == now.date()]
        midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
        return DayUse(
            tokens=sum(row.machine.usage.input_tokens + row.machine.usage.output_tokens for row in ended),
            cost_usd=sum(row.machine.cost_usd or 0.0 for row in ended),
            ends_in_s=(midnight - now).total_seconds(),
        )

    @override
    async def report(self, tenant: str | None, first: date, last: date) -> list[UsageLine]:
        raise NotImplementedError


def _day(unix_ms: int | None) -> date | None:
    return None if unix_ms is None else datetime.fromtimestamp(unix_ms / 1_000, UTC).date()
