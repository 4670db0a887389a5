"""The tool ``todo``: the list a model keeps of its own work, one per session.

Rules (after the agent this loop generalises): a call without ``todos`` reads; with them it replaces the list, or with ``merge`` updates
it by id; of equal ids the last counts, at the last position; an unknown status is ``pending``; one item without content refuses the
whole call; too many items and too long content are cut.
"""

import asyncio
from collections import Counter
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from app.domain.ids import SessionId
from app.domain.messages import canonical_json, clean_text
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import TodoStore
from app.tools.tool import CORE, RegisteredTool

MAX_ITEMS = 256
MAX_CONTENT = 4_000
"""Characters of one item, the marker of a cut included."""
CUT_MARKER = "… [cut]"
STATUSES = ("pending", "in_progress", "completed", "cancelled")

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "todos": {
            "type": "array",
            "description": "The items to write. Leave out to read the list.",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": ["string", "integer"], "description": "Names the item in this list."},
                    "content": {"type": "string", "description": "What is to be done."},
                    "status": {"type": "string", "description": "pending, in_progress, completed or cancelled."},
                },
                "required": ["id"],
            },
        },
        "merge": {"type": "boolean", "description": "true: update items by id and add new ones. false (default): replace the list."},
    },
}
_DESCRIPTION = (
    "Keep the list of steps of the work in this session. Without arguments it returns the list. Use it for work of three steps or more; "
    "have one item in_progress at a time and mark it completed as soon as it is done."
)


class _Item(msgspec.Struct, frozen=True):
    id: str
    content: str
    status: str


_Change: TypeAlias = dict[str, Any]
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[_Item])


class _RefusedError(Exception):
    """The list stays as it is; the message says why."""


def todo_tool(store: TodoStore) -> RegisteredTool:
    """The tool, with its lists in ``store``."""
    # Calls of one answer run at once: without the lock two of them could overwrite each other.
    locks: WeakValueDictionary[SessionId, asyncio.Lock] = WeakValueDictionary()

    async def run(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        session_id = context.session_id
        if session_id is None:
            return ToolOutcome(output="A list belongs to a session, and this call has none.", is_error=True)
        lock = locks.setdefault(session_id, asyncio.Lock())
        async with lock:
            try:
                return await _todo(store, session_id, arguments)
            except _RefusedError as refused:
                return ToolOutcome(output=f"{refused} The list was not changed.", is_error=True)

    return RegisteredTool(name="todo", description=_DESCRIPTION, parameters=_PARAMETERS, handler=run, toolset=CORE, origin="built in")


async def _todo(store: TodoStore, session_id: SessionId, arguments: dict[str, Any]) -> ToolOutcome:
    stored = await store.read(session_id)
    items = {item.id: item for item in _decoder.decode(stored)} if stored else {}
    if "todos" not in arguments:
        return _shown(list(items.values()), left_out=0)
    merge = arguments.get("merge", False)
    wanted = list(_merged(items if merge else {}, arguments["todos"]).values())
    kept = wanted[:MAX_ITEMS]
    await store.write(session_id, _encoder.encode(kept))
    return _shown(kept, left_out=len(wanted) - len(kept))


def _merged(items: dict[str, _Item], changes: list[_Change]) -> dict[str, _Item]:
    """``items`` with ``changes`` by id: known ones in their place, new ones at the end."""
    last: dict[str, _Change] = {}
    for change in changes:
        item_id = clean_text(str(change["id"])).strip()
        if not item_id:
            raise _RefusedError("An item has an empty id.")
        last.pop(item_id, None)  # of equal ids the last also takes the last position
        last[item_id] = change
    return items | {item_id: _item(item_id, change, items.get(item_id)) for item_id, change in last.items()}


def _item(item_id: str, change: _Change, old: _Item | None) -> _Item:
    content = change.get("content", old.content if old else "")
    if not content.strip():
        raise _RefusedError(f"Item {item_id[:64]!a} has no content.")
    if len(content) > MAX_CONTENT:
        content = content[: MAX_CONTENT - len(CUT_MARKER)] + CUT_MARKER
    status = change.get("status", old.status if old else "pending")
    return _Item(item_id, clean_text(content), status if status in STATUSES else "pending")


def _shown(items: list[_Item], *, left_out: int) -> ToolOutcome:
    counts = Counter(item.status for item in items)
    result: dict[str, Any] = {
        "todos": msgspec.to_builtins(items),
        "summary": {"total": len(items), **{status: counts[status] for status in STATUSES}},
    }
    if left_out:
        result["note"] = f"The list holds {MAX_ITEMS} items; the last {left_out} were left out."
    return ToolOutcome(output=canonical_json(result))
