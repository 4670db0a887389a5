import pytest
from sqlalchemy import insert, update

from app.domain.ids import SessionId, TenantId
from app.domain.messages import Message, MessageKind, Role, encode_message
from app.store.engine import Database
from app.store.messages import MessageRepository
from app.store.tables import messages, sessions, tenants

ACME = TenantId("ten_acme")
OTHER = TenantId("ten_other")
SESSION = SessionId("sess_1")
EMPTY = SessionId("sess_2")


@pytest.fixture
async def repository(database: Database) -> MessageRepository:
    """Two sessions, one of them empty; the other has seven messages, the third of them a note."""
    for tenant_id in (ACME, OTHER):
        await database.fetch(insert(tenants).values(id=tenant_id, name=tenant_id, settings=b"{}"))
    for session in (SESSION, EMPTY):
        row = {"id": session, "tenant_id": ACME, "system_prompt": "", "toolsets": b"[]", "tools": b"[]", "metadata": b"{}"}
        await database.fetch(insert(sessions).values({sessions.c[name]: value for name, value in row.items()}))
    for seq in (1, 2, 3, 5, 6, 7, 9):
        kind = MessageKind.NOTE if seq == 3 else MessageKind.SAID
        message = Message(role=Role.USER if seq % 2 else Role.ASSISTANT, content=f"message {seq} \U0001f980", kind=kind)
        await database.fetch(
            insert(messages).values(
                session_id=SESSION,
                seq=seq,
                id=f"msg_{seq}",
                turn_id="turn_1" if seq > 2 else None,
                note=kind is MessageKind.NOTE,
                body=encode_message(message),
            )
        )
    return MessageRepository(database)


async def test_the_working_set_is_in_order_with_notes_and_without_archived_rows(database: Database, repository: MessageRepository) -> None:
    await database.fetch(update(messages).where(messages.c.seq < 3).values(archived=True))

    rows = await repository.working_set(SESSION)

    assert [row.seq for row in rows] == [3, 5, 6, 7, 9]
    assert rows[0].message.kind is MessageKind.NOTE
    assert rows[1].message.content == "message 5 \U0001f980"
    assert (rows[1].id, rows[1].turn_id, rows[1].session_id, rows[1].archived) == ("msg_5", "turn_1", SESSION, False)
    assert rows[1].created_at_ms > 1_600_000_000_000
    assert await repository.working_set(EMPTY) == []


async def test_the_transcript_pages_in_order_with_archived_rows_and_without_notes(
    database: Database, repository: MessageRepository
) -> None:
    await database.fetch(update(messages).where(messages.c.seq < 3).values(archived=True))

    first = await repository.page(ACME, SESSION, 4, 0)
    assert first is not None
    second = await repository.page(ACME, SESSION, 4, int(first.next_cursor or 0))
    assert second is not None

    assert [(row.seq, row.archived) for row in first.data] == [(1, True), (2, True), (5, False), (6, False)]
    assert first.data[0].turn_id is None
    assert [row.seq for row in second.data] == [7, 9]
    assert second.next_cursor is None


async def test_a_page_that_ends_with_the_last_message_has_no_next_one(repository: MessageRepository) -> None:
    page = await repository.page(ACME, SESSION, 6, 0)

    assert page is not None
    assert len(page.data) == 6
    assert page.next_cursor is None


async def test_an_empty_session_has_an_empty_page_and_a_foreign_one_none(repository: MessageRepository) -> None:
    empty = await repository.page(ACME, EMPTY, 10, 0)

    assert empty is not None
    assert empty.data == ()
    assert await repository.page(OTHER, SESSION, 10, 0) is None
    assert await repository.page(ACME, SessionId("sess_unknown"), 10, 0) is None
