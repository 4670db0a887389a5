"""This process's view of which targets are healthy: what all replicas know, and at once what happens here.

The view is read once a second from the store; asking it costs a look into a dictionary, and a call that goes well touches the store only
when its target was known to fail. A failure changes the view first and is then written. While the store is away each process goes by
what it sees itself: the health of targets is advice, and no call fails for want of it.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from app.domain.delivery import Cooldown, CooldownReport, CooldownScope
from app.domain.errors import UnavailableError
from app.domain.model import FailureReason
from app.domain.targets import TargetKeys
from app.ports import Clock, HealthStore
from app.providers.classify import Failure
from app.providers.cooldown import pause_after
from app.providers.retry_after import MAX_ASKED_S

logger = logging.getLogger(__name__)

PROBE_S: Final = 30.0
"""How long one caller has for trying a target on probation before another one may."""
QUIET_S: Final = 3_600.0
"""What has been quiet for so long is forgotten."""
SURE_S: Final = 10.0
"""So long a limit that is used up, as the headers of a good response say, is believed without asking."""
_ASK_AGAIN_S: Final = 1.0
"""After a refused probe the store is not asked again for so long: the next refresh tells more."""
_MAX_ENTRIES: Final = 10_000


class Healthy(msgspec.Struct, frozen=True):
    """Nothing is known against it."""


class Cooling(msgspec.Struct, frozen=True, kw_only=True):
    """Left alone for another ``remaining_s``. For ``promised_s`` of them the provider asked itself: it is not asked before."""

    remaining_s: float
    promised_s: float
    reason: FailureReason


class Probation(msgspec.Struct, frozen=True):
    """It failed, and its cool-down is over: one caller at a time may try it, see :meth:`HealthBoard.try_probe`."""

    reason: FailureReason


Standing: TypeAlias = Healthy | Cooling | Probation
HEALTHY: Final = Healthy()


class _Entry:
    """What is known against one key. Times are on our own monotonic clock."""

    __slots__ = ("failed_at", "failures", "probe_until", "probed_here", "promised", "reason", "shared", "until")

    def __init__(self, *, reason: FailureReason, until: float, promised: bool, failures: int, failed_at: float, shared: bool) -> None:
        self.reason = reason
        self.until = until
        self.promised = promised
        self.failures = failures
        self.failed_at = failed_at
        self.shared = shared
        """The store has it; else it stays here until it has been quiet for long."""
        self.probe_until = float("-inf")
        self.probed_here = False
        """Until ``probe_until`` a caller of this process may try it; else somebody else's."""


class HealthBoard:
    """The health of targets. :meth:`refresh` is to be called about once a second."""

    def __init__(self, store: HealthStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._writing: dict[str, int] = {}
        """Keys with a write under way, and how many."""
        self._kept: set[str] = set()
        """Keys that a refresh under way must not touch: they changed here after it began to read."""
        self._refreshing = asyncio.Lock()
        self._away = False

    @property
    def cooling(self) -> int:
        """How many targets are left alone now, as this process knows it."""
        now = self._clock.monotonic()
        return sum(entry.until > now for entry in self._entries.values())

    def standing(self, keys: TargetKeys) -> Standing:
        """How a route stands. No I/O.

        The longest cool-down of the three keys, and the longest promise among them; else probation when one of them failed lately.
        """
        if not self._entries:
            return HEALTHY
        known = [entry for key in keys.all if (entry := self._entries.get(key)) is not None]
        if not known:
            return HEALTHY
        now = self._clock.monotonic()
        cooling = [entry for entry in known if entry.until > now]
        if cooling:
            longest = max(cooling, key=lambda entry: entry.until)
            promised_s = max((entry.until - now for entry in cooling if entry.promised), default=0.0)
            return Cooling(remaining_s=longest.until - now, promised_s=promised_s, reason=longest.reason)
        failed = [entry for entry in known if entry.failures > 0]
        return Probation(failed[0].reason) if failed else HEALTHY

    async def try_probe(self, keys: TargetKeys, for_s: float = PROBE_S) -> bool:
        """Whether the caller may try a route on probation; for ``for_s`` seconds nobody else may, on any replica.

        The answer is a promise to call :meth:`failed`, :meth:`succeeded` or, when it is not tried after all, :meth:`leave_probe`.
        """
        won = False
        claimed: list[str] = []
        try:
            for key in keys.all:
                entry = self._entries.get(key)
                if entry is None or entry.failures <= 0:
                    continue
                if not await self._claim(key, entry, for_s):
                    return False
                claimed.append(key)
            won = True
        finally:
            if not won:
                await self._leave(claimed)
        return True

    async def leave_probe(self, keys: TargetKeys) -> None:
        """The caller that may try a route on probation does not: somebody else may at once. Never fails."""
        await self._leave(keys.all)

    async def _leave(self, keys: Iterable[str]) -> None:
        now = self._clock.monotonic()
        known = [(key, entry) for key in keys if (entry := self._entries.get(key)) is not None]
        mine = [key for key, entry in known if entry.probed_here and entry.probe_until > now]
        for key in mine:
            self._entries[key].probe_until = float("-inf")
        if not mine:
            return
        try:
            await self._store.leave_probe(mine)
            self._back()
        except UnavailableError:
            self._lost()

    async def failed(self, keys: TargetKeys, failure: Failure) -> None:
        """An attempt failed. What its scope names cools down; nothing happens when that is nothing. One write at most."""
        key = _key_of(keys, failure.scope)
        if key is None:
            return
        now = self._clock.monotonic()
        entry = self._entries.get(key)
        before = 0 if entry is None else entry.failures
        # One that arrives while it cools down began before: many calls that fail together are one failure.
        failures = before if entry is not None and entry.until > now and before else before + 1
        pause = pause_after(failure, failures)
        if pause is None:
            return
        report = CooldownReport(
            key=key,
            scope=failure.scope,
            reason=failure.reason,
            status=failure.status,
            duration_s=pause.duration_s,
            promised=pause.promised,
        )
        self._apply(report, failures)
        await self._write(report)

    async def used_up(self, keys: TargetKeys, seconds: float) -> None:
        """The provider said, with a call that went well, that nothing is left of this model's limit for ``seconds``.

        That is a sign, not a request to stay away: for a few seconds it is kept like a promise, beyond them the route is only asked after
        all others (its headers may speak of a budget that another kind of call uses up).
        """
        now = self._clock.monotonic()
        entry = self._entries.get(keys.key_model)
        if seconds <= 0.0 or (entry is not None and entry.until >= now + seconds - _ASK_AGAIN_S):
            return
        report = CooldownReport(
            key=keys.key_model,
            scope=CooldownScope.KEY_MODEL,
            reason=FailureReason.RATE_LIMIT,
            status=None,
            duration_s=min(seconds, MAX_ASKED_S),
            promised=seconds <= SURE_S,
            failed=False,
        )
        self._apply(report, 0 if entry is None else entry.failures)
        await self._write(report)

    async def succeeded(self, keys: TargetKeys, began_at: float | None = None) -> None:
        """An attempt that began at ``began_at`` (our monotonic clock) went well: forget what failed before it began.

        Nothing to do, and no I/O, when nothing is known. A promised cool-down runs on: the provider named its time.
        """
        if not self._entries:
            return
        now = self._clock.monotonic()
        gone = [key for key in keys.all if (entry := self._entries.get(key)) is not None and _is_over(entry, now, began_at)]
        if not gone:
            return
        for key in gone:
            del self._entries[key]
        self._begin(gone)
        try:
            await self._store.clear(gone)
            self._back()
        except UnavailableError:
            self._lost()
        finally:
            self._end(gone)

    async def refresh(self) -> None:
        """Take over what the store knows. Keeps what changed here while it was read, and what could not be written."""
        async with self._refreshing:
            self._kept = set(self._writing)
            try:
                rows = await self._store.read(recent=False)
            except UnavailableError:
                self._lost()
                return
            self._back()
            now = self._clock.monotonic()
            # The newest last, as everywhere here: what there is no room for goes from the front.
            entries = {row.key: self._entry(row, now) for row in reversed(rows[:_MAX_ENTRIES]) if row.key not in self._kept}
            for key, entry in self._entries.items():
                if key in self._kept or (not entry.shared and key not in entries and max(entry.until, entry.failed_at) + QUIET_S > now):
                    entries[key] = entry
            self._entries = entries
            self._bound()

    def _entry(self, row: Cooldown, now: float) -> _Entry:
        until = now + row.remaining_s
        entry = _Entry(reason=row.reason, until=until, promised=row.promised, failures=row.failures, failed_at=now, shared=True)
        known = self._entries.get(row.key)
        if known is not None and known.failures == row.failures:
            entry.failed_at = known.failed_at
            entry.probe_until, entry.probed_here = known.probe_until, known.probed_here
        return entry

    async def _claim(self, key: str, entry: _Entry, for_s: float) -> bool:
        now = self._clock.monotonic()
        if entry.probe_until > now:
            return False
        entry.probe_until, entry.probed_here = now + for_s, True
        claimed = False
        try:
            claimed = await self._store.claim_probe(key, for_s)
            self._back()
        except UnavailableError:
            self._lost()
            claimed = True
        finally:
            if not claimed:
                entry = self._entries.get(key, entry)  # a refresh may have made a new one meanwhile
                entry.probe_until, entry.probed_here = now + _ASK_AGAIN_S, False
        return claimed

    def _apply(self, report: CooldownReport, failures: int) -> None:
        now = self._clock.monotonic()
        until = now + report.duration_s
        promised = report.promised
        entry = self._entries.get(report.key)
        if entry is not None and entry.until > now:
            # A promise is more than a guess: a guess does not stretch it, and it stands in the place of one.
            if entry.promised == promised:
                until = max(until, entry.until)
            elif entry.promised:
                promised, until = True, entry.until
        failed_at = now if report.failed or entry is None else entry.failed_at
        self._entries.pop(report.key, None)  # the newest last
        self._entries[report.key] = _Entry(
            reason=report.reason, until=until, promised=promised, failures=failures, failed_at=failed_at, shared=False
        )
        self._bound()

    def _bound(self) -> None:
        while len(self._entries) > _MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]

    async def _write(self, report: CooldownReport) -> None:
        keys = (report.key,)
        self._begin(keys)
        try:
            known = await self._store.report(report)
            self._back()
        except UnavailableError:
            self._lost()
            return
        finally:
            self._end(keys)
        entry = self._entries.get(report.key)
        if entry is not None:
            entry.shared = True
            entry.failures = max(entry.failures, known.failures)
            entry.promised = known.promised
            entry.until = self._clock.monotonic() + known.remaining_s

    def _begin(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._writing[key] = self._writing.get(key, 0) + 1
            self._kept.add(key)

    def _end(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]

    def _lost(self) -> None:
        if not self._away:
            self._away = True
            logger.warning("the health of targets cannot be shared while the database is away: this process goes by what it sees itself")

    def _back(self) -> None:
        if self._away:
            self._away = False
            logger.info("the health of targets is shared again")


def _key_of(keys: TargetKeys, scope: CooldownScope) -> str | None:
    match scope:
        case CooldownScope.NONE:
            return None
        case CooldownScope.KEY:
            return keys.key
        case CooldownScope.KEY_MODEL:
            return keys.key_model
        case CooldownScope.ROUTE:
            return keys.route


def _is_over(entry: _Entry, now: float, began_at: float | None) -> bool:
    """Whether a success, of an attempt that began then, ends it."""
    if entry.promised and entry.until > now:
        return False
    return began_at is None or entry.failed_at <= began_at
