"""What all replicas know of providers: their health, and what was used of their limits."""

from collections.abc import Sequence
from typing import Protocol

from app.domain.delivery import Booked, Booking, Cooldown, CooldownReport, Limit, WindowUse


class HealthStore(Protocol):
    """The health of model targets, shared by all replicas, on the database's clock. Holds rows only of what failed lately."""

    async def read(self, *, recent: bool = True) -> list[Cooldown]:
        """Everything that is cooling down or on probation, the latest first; without its last failures unless ``recent``."""

    async def report(self, report: CooldownReport) -> Cooldown:
        """Add a failure. A running cool-down is never made shorter by it, but by a promise: the provider itself named that time."""

    async def clear(self, keys: Sequence[str]) -> None:
        """These answered: forget their failures. A running cool-down that a provider asked for stays."""

    async def reset(self, keys: Sequence[str]) -> None:
        """Somebody says that these are well again: forget them, running cool-downs included."""

    async def claim_probe(self, key: str, for_s: float) -> bool:
        """Whether the caller may try what is on probation; for ``for_s`` seconds nobody else may. True when nothing is known of it."""

    async def leave_probe(self, keys: Sequence[str]) -> None:
        """What was claimed is not tried after all: the next one may."""

    async def prune(self, age_s: float) -> int:
        """Forget what has been quiet for ``age_s`` seconds; returns the rows removed."""


class RateWindowStore(Protocol):
    """Calls and tokens of the last 60 seconds per limit, shared by all replicas, on the database's clock."""

    async def book(self, limits: Sequence[Limit], tokens: int, patience_s: float) -> Booking:
        """Take the earliest moment at which one call of ``tokens`` keeps all ``limits``, never before that of an earlier booking.

        One atomic statement. Refused, and nothing booked, when that moment is more than ``patience_s`` away.
        """

    async def give_back(self, booking: Booked) -> None:
        """The call was not made."""

    async def settle(self, booking: Booked, tokens: int) -> None:
        """The call used ``tokens`` in place of those booked."""

    async def use(self, keys: Sequence[str]) -> dict[str, WindowUse]:
        """What is used of these limits; those without a row are left out."""

    async def prune(self) -> int:
        """Delete windows that hold nothing; returns the rows removed."""
