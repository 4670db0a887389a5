"""What running turns may use yet of their tenant's day, as this process knows it.

Each step of such a turn adds what it used to the day's sums in the database and brings them back, with what all replicas have added: so
a turn knows what is left after each of its calls, without a call to the database of its own for it. What calls under way here may use is
left to them, by estimate, so that the turns of one process do not spend the same rest twice.

What may still be spent beyond a quota: by calls that other replicas make in the same moment, one a turn, and what a provider counts
beyond the estimate of a call's input.
"""

from typing import TYPE_CHECKING, Final

from app.agent.budget import DayAllowance
from app.domain.ids import TenantId
from app.domain.quotas import DayShare, DaySums, Spent
from app.domain.tenants import Tenant

MAX_TENANTS: Final = 10_000


class _Day:
    """What is known of one tenant's day. ``held`` are tokens of calls under way."""

    __slots__ = ("held", "sums")

    def __init__(self) -> None:
        self.sums: DaySums | None = None
        self.held = 0

    def learn(self, sums: DaySums) -> None:
        """Take note of newer sums. Answers may overtake each other, and within a day sums only rise."""
        if self.sums is None or (sums.day, sums.tokens, sums.cost_usd) > (self.sums.day, self.sums.tokens, self.sums.cost_usd):
            self.sums = sums


class DayShares:
    """The days of the tenants whose turns run here, those used last."""

    def __init__(self) -> None:
        self._days: dict[TenantId, _Day] = {}

    def learn(self, tenant_id: TenantId, sums: DaySums) -> None:
        """Take note of what a tenant's day holds."""
        self._day(tenant_id).learn(sums)

    def open(self, tenant: Tenant, counted: Spent) -> "TurnShare":
        """The share of a turn, ``counted`` of which stands in the day; the caller closes it."""
        return TurnShare(self._day(tenant.id), tenant, counted)

    def _day(self, tenant_id: TenantId) -> _Day:
        day = self._days.pop(tenant_id, None) or _Day()
        self._days[tenant_id] = day  # the one used last stands last
        if len(self._days) > MAX_TENANTS:
            del self._days[next(iter(self._days))]
        return day


class TurnShare:
    """:class:`app.agent.budget.DayAllowance` of one turn."""

    def __init__(self, day: _Day, tenant: Tenant, counted: Spent) -> None:
        self._day = day
        self._tokens = tenant.settings.tokens_per_day
        self._cost_usd = tenant.settings.cost_usd_per_day
        self._counted = counted
        self._held = 0

    def share(self) -> DayShare:
        """What the turn has in the day's sums, and what is left of the day beside the calls of others."""
        sums = self._day.sums
        if sums is None:
            return DayShare()
        others = self._day.held - self._held
        price = sums.cost_usd / sums.tokens if sums.tokens else 0.0
        return DayShare(
            tokens=None if self._tokens is None else self._counted.tokens + self._tokens - sums.tokens - others,
            cost_usd=None if self._cost_usd is None else self._counted.cost_usd + self._cost_usd - sums.cost_usd - others * price,
        )

    def hold(self, tokens: int) -> None:
        """Leave so many tokens to this turn's call."""
        self._day.held += tokens - self._held
        self._held = tokens

    def count(self, spent: Spent, sums: DaySums | None) -> None:
        """The day has ``spent`` of this turn now; ``sums`` is what it then held, if that was told."""
        if spent.tokens > self._counted.tokens:
            self.close()
        self._counted = spent
        if sums is not None:
            self._day.learn(sums)

    def close(self) -> None:
        """Give back what is held."""
        self.hold(0)


if TYPE_CHECKING:

    def _conforms(share: TurnShare) -> DayAllowance:
        return share
