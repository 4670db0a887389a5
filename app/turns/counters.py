"""Counts of the turn server, read by ``/metrics``."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Plain numbers of one process; ``active`` and ``followers`` go up and down, the rest only up."""

    active: int = 0
    followers: int = 0
    started: int = 0
    queued: int = 0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By terminal state and reason."""
    attempt_failures: Counter[str] = field(default_factory=Counter)
    """By failure reason."""
    throttled: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Model calls held back, by limit and by what came of it: ``waited`` or ``skipped``."""
    compactions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By reason and outcome: ``completed``, ``trimmed`` (cut off without a summary) or ``failed``."""
    quota_refusals: Counter[str] = field(default_factory=Counter)
    """Turns refused by a quota of their tenant, by policy."""
    events_written: int = 0
    delta_batches: int = 0
    lost: int = 0
    """Turns that another replica took over."""
    recovered: int = 0
    """Turns of lost replicas that were ended here."""
