"""Identifiers: prefixed, time-ordered, random.

An id is ``<prefix>_`` followed by 26 Crockford base32 characters: 48 bits of unix milliseconds and 80 random bits,
so ids sort by creation time and cannot be guessed.
"""

from typing import NewType

TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
ProviderId = NewType("ProviderId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
ReplicaId = NewType("ReplicaId", str)

ENTROPY_BYTES = 10
"""Random bytes of one id (80 bits)."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -10, -10)
"""26 characters, two at a time, the highest bits first."""


def make_id(prefix: str, unix_ms: int, entropy: bytes) -> str:
    """Return ``prefix_`` + 26 characters; ids made later sort later, to the millisecond."""
    number = (unix_ms << 80) | int.from_bytes(entropy[:ENTROPY_BYTES], "big")
    pairs = [_PAIRS[number >> shift & 1023] for shift in _SHIFTS]
    return f"{prefix}_{''.join(pairs)}"


def made_at_ms(made: str) -> int:
    """The unix milliseconds at which :func:`make_id` made an id."""
    number = 0
    for character in made.rpartition("_")[2][:10]:
        number = number << 5 | _ALPHABET.index(character)
    return number
