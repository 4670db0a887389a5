"""Rate windows in memory: :class:`app.ports.RateWindowStore`."""

from collections.abc import Sequence

from typing_extensions import override

from app.domain.delivery import Booked, Booking, Limit
from app.ports import Clock
from app.providers.local_windows import LocalWindows
from tests.fakes.replicas import away


class InMemoryRateWindows(LocalWindows):
    """Windows that several gateways may share; ``away`` makes every call fail like a database that is gone."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.away = False
        self.bookings: list[Booking] = []
        self.given_back: list[Booked] = []
        self.settled: list[tuple[Booked, int]] = []

    @override
    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        self._check()
        booking = await super().book(limits, tokens, patience_s)
        self.bookings.append(booking)
        return booking

    @override
    async def give_back(self, booking: Booked) -> None:
        self._check()
        self.given_back.append(booking)
        await super().give_back(booking)

    @override
    async def settle(self, booking: Booked, tokens: int) -> None:
        self._check()
        self.settled.append((booking, tokens))
        await super().settle(booking, tokens)

    def _check(self) -> None:
        if self.away:
            raise away()
