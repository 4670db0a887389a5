"""What is measured: how many streams, of which provider, on which sessions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

TOKENS = 200
"""Tokens of every answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row of the table. A round is run directly and through the gateway, in turn."""

    name: str
    streams: int
    """Streams open at the same time, each on a connection of its own that it keeps for its turns."""
    turns: int
    """Turns of one stream in one round, each in a session of its own."""
    rounds: int
    first_ms: int = 0
    """Provider's delay before the first token."""
    pace_ms: int = 0
    """Provider's delay between tokens; 0 sends the whole answer at once."""
    history: int = 0
    """Messages that each session holds before its turn."""
    archived: int = 0
    """Messages that have left the context before those."""
    tls: bool = False
    """The provider is reached over TLS. There is no direct run then: only the gateway's memory is of interest."""

    @property
    def directive(self) -> str:
        """The user's message: what the simulator shall answer."""
        pace = f" first_ms={self.first_ms} pace_ms={self.pace_ms}" if self.pace_ms else ""
        return f"[[sim tokens={TOKENS}{pace}]]"

    @property
    def ramp_s(self) -> float:
        """Time over which paced streams start, one after the other: one turn's length, so that they stay spread afterwards."""
        return (self.first_ms + self.pace_ms * (TOKENS - 1)) / 1000 if self.pace_ms else 0.0

    @property
    def timeout_s(self) -> float:
        """Longest time of one run; what has not ended by then is an error."""
        return 60.0 + 3 * self.ramp_s * (self.turns + 1)


def _paced(name: str, streams: int, rounds: int, *, tls: bool = False) -> Scenario:
    # The first turn of each stream belongs to the ramp; figures of latency come from those that start when all are open.
    return Scenario(name=name, streams=streams, turns=2, rounds=rounds, first_ms=300, pace_ms=20, tls=tls)


SCENARIOS: Sequence[Scenario] = (
    Scenario(name="burst-1", streams=1, turns=300, rounds=5),
    Scenario(name="burst-16", streams=16, turns=30, rounds=5),
    Scenario(name="burst-64", streams=64, turns=10, rounds=5),
    Scenario(name="history-1", streams=1, turns=100, rounds=3, history=200),
    Scenario(name="history-16", streams=16, turns=8, rounds=3, history=200),
    Scenario(name="session-100", streams=1, turns=20, rounds=3, history=100),
    Scenario(name="session-10000", streams=1, turns=20, rounds=3, history=100, archived=9_900),
    _paced("paced-20", 20, 3),
    _paced("paced-200", 200, 3),
    _paced("paced-1000", 1_000, 3),
    _paced("tls-1000", 1_000, 1, tls=True),
)


def quick(scenario: Scenario) -> Scenario:
    """The same in a fraction of the time: figures to look at, not to quote."""
    turns = scenario.turns if scenario.pace_ms else max(2, scenario.turns // 4)
    return replace(scenario, rounds=1, turns=turns)
