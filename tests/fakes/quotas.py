"""What tenants have used, in memory: :class:`app.ports.UsageStore`."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta

from typing_extensions import override

from app.domain.ids import TenantId
from app.domain.quotas import DayUse, UsageLine
from app.ports import Clock, UsageStore
from tests.fakes.turns import InMemoryTurns


class InMemoryUsage(UsageStore):
    """The sums that :class:`InMemoryTurns` keeps."""

    def __init__(self, turns: InMemoryTurns, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self.calls: Counter[str] = Counter()

    @override
    async def today(self, tenant_id: TenantId) -> DayUse:
        self.calls["today"] += 1
        now = self._clock.now()
        sums = self._turns.day(tenant_id)
        midnight = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
        return DayUse(day=sums.day, tokens=sums.tokens, cost_usd=sums.cost_usd, ends_in_s=(midnight - now).total_seconds())

    @override
    async def report(self, tenant: str | None, first: date, last: date) -> list[UsageLine]:
        raise NotImplementedError
