"""What a provider would find in its log: the fullest 60 seconds."""

from collections.abc import Sequence

import msgspec

WINDOW_S = 60.0


class Call(msgspec.Struct, frozen=True):
    """One request as the provider saw it; `at` in seconds of its own clock."""

    at: float
    tokens: int


class Fullest(msgspec.Struct, frozen=True):
    """The highest numbers that any 60 seconds hold, both ends included; the two may be of different windows."""

    calls: int
    tokens: int


def fullest(calls: Sequence[Call]) -> Fullest:
    """Look at every alignment: what a window holds, the window that ends with its last call holds too."""
    ordered = sorted(calls, key=lambda call: call.at)
    most_calls = most_tokens = tokens = first = 0
    for last, call in enumerate(ordered):
        tokens += call.tokens
        while call.at - ordered[first].at > WINDOW_S:
            tokens -= ordered[first].tokens
            first += 1
        most_calls, most_tokens = max(most_calls, last - first + 1), max(most_tokens, tokens)
    return Fullest(most_calls, most_tokens)
