"""What gets a model call through: the health of targets and the limits of credentials, as values."""

import enum
from typing import TypeAlias

import msgspec

from app.domain.model import FailureReason


class CooldownScope(enum.StrEnum):
    """How far a failure reaches: what is left alone for a while after it."""

    NONE = "none"
    """It was this request's own."""
    KEY = "key"
    """Everything that uses the credential: it is refused, or its account is empty."""
    KEY_MODEL = "key_model"
    """One model through one credential: its rate limit."""
    ROUTE = "route"
    """One model at one address, whatever the credential: it is down, silent or unknown there."""


class FailureNote(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as the admin API shows it. ``at_ms`` is unix milliseconds on the database's clock."""

    at_ms: int
    reason: FailureReason
    status: int | None = None


class CooldownReport(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that everybody should know of.

    ``key`` names what it concerns (never holds a credential), ``duration_s`` how long that is to be left alone from now. ``promised``:
    the provider named the time itself, so it is not asked before. Not ``failed``: the call went well, and the provider said with it that
    nothing is left for ``duration_s``.
    """

    key: str
    scope: CooldownScope
    reason: FailureReason
    status: int | None
    duration_s: float
    promised: bool
    failed: bool = True


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a target that failed lately. ``remaining_s`` is at the moment of reading, not positive when it is over.

    ``failures`` counts those in a row, and ``recent`` holds the last of them, newest first. One that arrives during the cool-down began
    before it and is not counted. It stays known for a while after the cool-down, as on probation: the next failure makes a longer one,
    a success forgets it.
    """

    key: str
    scope: CooldownScope
    reason: FailureReason
    remaining_s: float
    promised: bool
    failures: int
    recent: tuple[FailureNote, ...]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit per 60 seconds of a credential, or of one model through it. ``None`` is no limit of that kind."""

    key: str
    rpm: int | None
    tpm: int | None


class Booked(msgspec.Struct, frozen=True, kw_only=True):
    """A place for one call: it may be made ``delay_s`` seconds after the booking, not before.

    ``second`` is the unix second (database's clock) that it counts in; ``keys`` the limits it counts against; ``limit`` what it waits
    for: ``rpm`` or ``tpm``.
    """

    keys: tuple[str, ...]
    second: int
    tokens: int
    delay_s: float
    limit: str = "rpm"


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """No place within the patience; nothing was booked. The earliest one is ``delay_s`` away; ``limit`` is ``rpm`` or ``tpm``."""

    limit: str
    delay_s: float


Booking: TypeAlias = Booked | Refused


class WindowUse(msgspec.Struct, frozen=True, kw_only=True):
    """What was used of a limit in the last 60 seconds, bookings ahead included."""

    calls: int
    tokens: int
