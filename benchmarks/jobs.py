"""What the load client is told and what it answers, one JSON line each."""

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run: every stream posts `body` to its paths, one after the other, on one connection."""

    port: int
    streams: list[list[str]]
    """The paths of each stream."""
    headers: dict[str, str]
    body: str
    ramp_s: float
    """Streams start spread over this time."""
    tokens: int
    """Each answer has exactly so many."""
    event_mark: str
    """What the first event of an answer has in it."""
    token_mark: str
    """What each token has in it, once; at least as long as `end_mark`."""
    end_mark: str
    """What a good end has in it."""
    timeout_s: float


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One turn; `started_s` counts from the run's beginning, the others from the sending of the request."""

    started_s: float
    first_event_s: float
    first_token_s: float
    total_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went."""

    samples: list[Sample]
    errors: int
    messages: list[str]
    """What the first errors were."""
    wall_s: float
    cpu_s: float
    """Of the client."""


READY = b"ready"
GO = b"go"
