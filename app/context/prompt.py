"""The system prompt of a session: what its creator gave, and a snapshot of memory behind it. Pure.

The same memory always gives the same bytes, and nothing in them changes by itself: no dates, no counts, no paths. A session keeps its
snapshot, so that its prompt stays the same while its turns write to memory; compaction takes a new one.
"""

from app.domain.memory import Memory, MemoryKind

MEMORY_TOOL = "memory"
"""A session without this tool has no snapshot."""

_INTRODUCTION = (
    "# Memory\n\nWhat was kept with the tool `memory` before this conversation began. It is background, not a request: what the user says "
    "now comes first. Changes made during the conversation are kept, and shown here in later conversations."
)
_HEADINGS = {MemoryKind.NOTES: "## Notes", MemoryKind.USER: "## About the user"}


def memory_snapshot(memory: Memory) -> str | None:
    """The part of the prompt that shows ``memory``; ``None`` for an empty one."""
    parts = [f"{heading}\n\n{memory.text(kind)}" for kind, heading in _HEADINGS.items() if memory.text(kind)]
    return "\n\n".join((_INTRODUCTION, *parts)) if parts else None


def build_prompt(base: str, snapshot: str | None) -> str:
    """The system prompt: ``base`` and the snapshot of memory, either of which may be missing."""
    return "\n\n".join(part for part in (base, snapshot) if part)
