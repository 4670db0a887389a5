"""What a tenant's models keep of an end user beyond one session: notes of their own, and a profile of the user."""

from enum import StrEnum

import msgspec

SEPARATOR = "\n§\n"
"""Between two entries of a memory's text."""


class MemoryKind(StrEnum):
    """The two texts of a memory."""

    NOTES = "notes"
    """What the model wants to know next time: facts, decisions, ways of working."""
    USER = "user"
    """Who the user is and what they like."""


LIMITS = {MemoryKind.NOTES: 2_200, MemoryKind.USER: 1_375}
"""Characters of each text, separators included."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one end user of a tenant, or of all sessions without an end user. Texts are entries with separators between them.

    ``revision`` is 0 for a memory that was never written and rises with each write.
    """

    notes: str = ""
    user: str = ""
    revision: int = 0

    def text(self, kind: MemoryKind) -> str:
        """One of the texts."""
        return self.notes if kind is MemoryKind.NOTES else self.user


def split_entries(text: str) -> list[str]:
    """The entries of a memory's text."""
    return text.split(SEPARATOR) if text else []


def join_entries(entries: list[str]) -> str:
    """The text of ``entries``."""
    return SEPARATOR.join(entries)
