"""The health of targets in memory: :class:`app.ports.HealthStore`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from typing_extensions import override

from app.domain.delivery import Cooldown, CooldownReport, CooldownScope, FailureNote
from app.domain.model import FailureReason
from app.ports import Clock, HealthStore
from tests.fakes.replicas import away

QUIET_S = 3_600.0
RECENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    scope: CooldownScope
    reason: FailureReason
    until: float
    promised: bool
    failures: int
    recent: tuple[FailureNote, ...]
    updated_at: float
    probe_until: float = float("-inf")


class InMemoryCooldowns(HealthStore):
    """Rows that several gateways may share; ``away`` makes every call fail like a database that is gone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self.away = False
        self.calls: list[str] = []
        """The methods that were called."""

    @override
    async def read(self, *, recent: bool = True) -> list[Cooldown]:
        self._called("read")
        now = self._clock.monotonic()
        known = [(key, row) for key, row in self._rows.items() if max(row.updated_at, row.until) > now - QUIET_S]
        found = [self._cooldown(key, row) for key, row in sorted(known, key=lambda item: -item[1].updated_at)]
        return found if recent else [msgspec.structs.replace(cooldown, recent=()) for cooldown in found]

    @override
    async def report(self, report: CooldownReport) -> Cooldown:
        self._called("report")
        now = self._clock.monotonic()
        note = FailureNote(at_ms=self._clock.unix_ms(), reason=report.reason, status=report.status)
        row = _Row(
            scope=report.scope,
            reason=report.reason,
            until=now + report.duration_s,
            promised=report.promised,
            failures=int(report.failed),
            recent=(note,) if report.failed else (),
            updated_at=now,
        )
        known = self._rows.get(report.key)
        if known is not None:
            runs = known.until > now
            until = max(row.until, known.until)
            if runs and known.promised != row.promised:
                until = known.until if known.promised else row.until
            row = replace(
                row,
                until=until,
                promised=row.promised or (known.promised and runs),
                failures=known.failures if known.failures and runs else known.failures + row.failures,
                recent=(*row.recent, *known.recent)[:RECENT],
            )
        self._rows[report.key] = row
        return self._cooldown(report.key, row)

    @override
    async def clear(self, keys: Sequence[str]) -> None:
        self._called("clear")
        for key in keys:
            row = self._rows.get(key)
            if row is not None and not (row.promised and row.until > self._clock.monotonic()):
                del self._rows[key]

    @override
    async def reset(self, keys: Sequence[str]) -> None:
        self._called("reset")
        for key in keys:
            self._rows.pop(key, None)

    @override
    async def claim_probe(self, key: str, for_s: float) -> bool:
        self._called("claim_probe")
        now = self._clock.monotonic()
        row = self._rows.get(key)
        if row is None:
            return True
        if row.until > now or row.probe_until > now:
            return False
        self._rows[key] = replace(row, probe_until=now + for_s)
        return True

    @override
    async def leave_probe(self, keys: Sequence[str]) -> None:
        self._called("leave_probe")
        for key in keys:
            if key in self._rows:
                self._rows[key] = replace(self._rows[key], probe_until=float("-inf"))

    @override
    async def prune(self, age_s: float) -> int:
        self._called("prune")
        now = self._clock.monotonic()
        quiet = [key for key, row in self._rows.items() if max(row.updated_at, row.until) < now - age_s]
        for key in quiet:
            del self._rows[key]
        return len(quiet)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.away:
            raise away()

    def _cooldown(self, key: str, row: _Row) -> Cooldown:
        return Cooldown(
            key=key,
            scope=row.scope,
            reason=row.reason,
            remaining_s=row.until - self._clock.monotonic(),
            promised=row.promised,
            failures=row.failures,
            recent=row.recent,
        )
