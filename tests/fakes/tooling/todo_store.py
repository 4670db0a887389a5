"""Todo lists in memory, as :class:`app.ports.TodoStore`."""

import asyncio

from app.domain.ids import SessionId


class MemoryTodoStore:
    """Gives the event loop a chance to switch tasks inside every call, as a database does."""

    def __init__(self) -> None:
        self.lists: dict[SessionId, bytes] = {}
        self.writes = 0

    async def read(self, session_id: SessionId) -> bytes | None:
        await asyncio.sleep(0)
        return self.lists.get(session_id)

    async def write(self, session_id: SessionId, items: bytes) -> None:
        await asyncio.sleep(0)
        self.writes += 1
        self.lists[session_id] = items
