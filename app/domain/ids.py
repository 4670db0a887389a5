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
_LENGTH = 26


def make_id(prefix: str, unix_ms: int, entropy: bytes) -> str:
    """Return ``prefix_`` + 26 characters; ids made later sort later, to the millisecond."""
    number = (unix_ms << 80) | int.from_bytes(entropy[:ENTROPY_BYTES], "big")
    characters = []
    for _ in range(_LENGTH):
        characters.append(_ALPHABET[number & 31])
        number >>= 5
    return f"{prefix}_{''.join(reversed(characters))}"
