"""The tool ``memory``: what a model keeps of an end user beyond one session.

Rules (after the agent this loop generalises): two texts, notes and a profile of the user, each of entries and with a limit; ``add``,
``replace`` and ``remove``, one by one or several of which all take effect or none; an entry is named by a part of it that no other entry
has; what would not fit is refused with the entries that could go. Nobody overwrites what another call wrote meanwhile.
"""

from typing import Any

import msgspec

from app.domain.errors import NotFoundError
from app.domain.memory import LIMITS, SEPARATOR, Memory, MemoryKind, join_entries, split_entries
from app.domain.messages import canonical_json, clean_text
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import MemoryStore
from app.tools.builtin.memory_scan import problem_with
from app.tools.tool import CORE, RegisteredTool

MAX_OPERATIONS = 32
_TRIES = 16
"""Each try fails only when another write came between, so with this many writers at once one may be sent away."""
_SHOWN = 60
"""Characters of an entry in an error that lists them."""
_MARK = SEPARATOR.strip()

_OPERATION: dict[str, Any] = {
    "action": {"type": "string", "enum": ["add", "replace", "remove"]},
    "target": {
        "type": "string",
        "enum": [kind.value for kind in MemoryKind],
        "description": "notes (default): facts, decisions, ways of working. user: who the user is and what they like.",
    },
    "content": {"type": "string", "description": "The new entry, for add and replace."},
    "old_text": {"type": "string", "description": "Part of the entry to replace or remove that no other entry has."},
}
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        **_OPERATION,
        "operations": {
            "type": "array",
            "maxItems": MAX_OPERATIONS,
            "description": "Several changes at once: all take effect, or none. In place of the other arguments.",
            "items": {"type": "object", "properties": _OPERATION, "required": ["action"]},
        },
    },
}
_DESCRIPTION = (
    "Keep short facts for later conversations with this user: preferences, decisions, corrections, what was agreed. Without arguments it "
    f"returns what is kept. Notes hold {LIMITS[MemoryKind.NOTES]:,} characters and the user's profile {LIMITS[MemoryKind.USER]:,}, so keep "
    "entries short, replace what is outdated, and leave out what is true only today. Never keep secrets."
)


class _RefusedError(Exception):
    """The memory stays as it is; the message says why."""


def memory_tool(store: MemoryStore) -> RegisteredTool:
    """The tool, with its memories in ``store``."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if context.session_id is None:
            return _refusal("Memory belongs to sessions, and this call has none.")
        operations = _operations(arguments)
        for _ in range(_TRIES):
            try:
                user, memory = await store.of_session(context.tenant_id, context.session_id)
                changed = _changed(memory, operations)
            except NotFoundError:
                return _refusal("The session is gone.")
            except _RefusedError as refused:
                return _refusal(f"{refused} Nothing was changed.")
            if changed == memory or await store.replace(context.tenant_id, user, changed):
                return ToolOutcome(output=canonical_json(_shown(changed, saved=bool(operations))))
        return _refusal("Other calls change this memory all the time. Nothing was changed; try again.")

    return RegisteredTool(name="memory", description=_DESCRIPTION, parameters=_PARAMETERS, handler=run, toolset=CORE, origin="built in")


def _operations(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    several: list[dict[str, Any]] = arguments.get("operations", [])
    single = {name: value for name, value in arguments.items() if name in _OPERATION}
    return several or ([single] if single else [])


def _changed(memory: Memory, operations: list[dict[str, Any]]) -> Memory:
    entries = {kind: split_entries(memory.text(kind)) for kind in MemoryKind}
    for operation in operations:
        kind = MemoryKind(operation.get("target", MemoryKind.NOTES))
        entries[kind] = _applied(entries[kind], operation)
    texts = {kind: join_entries(entries[kind]) for kind in MemoryKind}
    for kind, text in texts.items():
        if len(text) > LIMITS[kind] and text != memory.text(kind):
            raise _RefusedError(_too_long(kind, split_entries(memory.text(kind)), len(text)))
    return msgspec.structs.replace(memory, notes=texts[MemoryKind.NOTES], user=texts[MemoryKind.USER])


def _applied(entries: list[str], operation: dict[str, Any]) -> list[str]:
    match operation.get("action"):
        case "add":
            entry = _entry(operation)
            return entries if entry in entries else [*entries, entry]
        case "replace":
            entry, place = _entry(operation), _place(entries, operation)
            others = entries[:place] + entries[place + 1 :]
            return others if entry in others else [*entries[:place], entry, *entries[place + 1 :]]
        case "remove":
            place = _place(entries, operation)
            return entries[:place] + entries[place + 1 :]
        case _:
            raise _RefusedError("There is no action: add, replace or remove.")


def _entry(operation: dict[str, Any]) -> str:
    entry = clean_text(operation.get("content", "")).replace("\r\n", "\n").strip()
    if not entry:
        raise _RefusedError("The entry has no content.")
    if any(line.strip() == _MARK for line in entry.split("\n")):
        raise _RefusedError(f"A line of the entry is only {_MARK}, which stands between entries: add several entries instead.")
    problem = problem_with(entry)
    if problem is not None:
        raise _RefusedError(f"The entry is not kept: {problem}. Memory holds facts, put in plain words.")
    return entry


def _place(entries: list[str], operation: dict[str, Any]) -> int:
    """The one entry that ``old_text`` names."""
    old = clean_text(operation.get("old_text", "")).strip()
    if not old:
        raise _RefusedError("old_text says which entry is meant; it is missing.")
    found = [place for place, entry in enumerate(entries) if old in entry]
    exact = [place for place in found if entries[place] == old]
    if len(found) == 1 or exact:
        return (exact or found)[0]
    if found:
        raise _RefusedError(f"old_text fits {len(found)} entries; give a part that only one has.\n{_listed(entries)}")
    raise _RefusedError(f"No entry has the text {old[:_SHOWN]!r}.\n{_listed(entries)}")


def _too_long(kind: MemoryKind, entries: list[str], length: int) -> str:
    over = length - LIMITS[kind]
    return (
        f"With this, {kind.value} would have {length:,} characters of at most {LIMITS[kind]:,}: shorten the entry, or replace or remove "
        f"entries of {over:,} characters or more in the same call.\n{_listed(entries)}"
    )


def _listed(entries: list[str]) -> str:
    lines = [f"- ({len(entry):,} characters) {entry if len(entry) <= _SHOWN else entry[:_SHOWN] + '…'}" for entry in entries]
    return "Entries, oldest first:\n" + "\n".join(lines) if lines else "There are no entries."


def _shown(memory: Memory, *, saved: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        kind.value: {"entries": split_entries(memory.text(kind)), "characters": len(memory.text(kind)), "limit": LIMITS[kind]}
        for kind in MemoryKind
    }
    if saved:
        result["note"] = "Kept. The system prompt of this conversation still shows the memory as it was at its start."
    return result


def _refusal(text: str) -> ToolOutcome:
    return ToolOutcome(output=text, is_error=True)
