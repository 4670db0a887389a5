"""The todo list of a session: one JSON document."""

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert

from app.domain.ids import SessionId
from app.store.engine import Database
from app.store.tables import todos

_READ = select(todos.c["items"]).where(todos.c.session_id == bindparam("session_id"))
_INSERT = insert(todos).values(session_id=bindparam("session_id"), items=bindparam("items"))
_WRITE = _INSERT.on_conflict_do_update(index_elements=[todos.c.session_id], set_={todos.c["items"]: _INSERT.excluded["items"]})


class TodoRepository:
    """:class:`app.ports.TodoStore` on Postgres. Only a turn's tool gets here, with the session that its tenant was checked for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, session_id: SessionId) -> bytes | None:
        """The list as written last."""
        rows = await self._database.fetch(_READ, {"session_id": session_id})
        return rows[0][0] if rows else None

    async def write(self, session_id: SessionId, items: bytes) -> None:
        """Replace the list."""
        await self._database.fetch(_WRITE, {"session_id": session_id, "items": items})
