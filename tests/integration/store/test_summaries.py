from typing import Any

import asyncpg
import msgspec
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import IntegrityError

from app.clock import SystemClock
from app.domain.ids import SessionId, TenantId
from app.domain.messages import Message, Role, encode_message
from app.domain.model import Usage
from app.store.engine import Database
from app.store.search_index import SearchIndex
from app.store.summaries import ArchiveRepository, SummaryRepository
from app.store.tables import message_search, messages, summaries
from tests.integration.store.builders import a_session, a_tenant

USAGE = Usage(input_tokens=8_000, output_tokens=300)


@pytest.fixture
async def tenant_id(database: Database) -> TenantId:
    return await a_tenant(database)


@pytest.fixture
async def session_id(database: Database, tenant_id: TenantId) -> SessionId:
    return await a_session(database, tenant_id)


async def add(database: Database, session_id: SessionId, number: int, **changes: Any) -> None:
    row = {
        "id": f"sum_{number}",
        "session_id": session_id,
        "turn_id": "turn_1",
        "active": False,
        "body": f"# Summary {number}",
        "first_seq": 1,
        "last_seq": number * 10,
        "tokens_before": 9_000,
        "tokens_after": 900,
        "usage": msgspec.json.encode(USAGE),
        "cost_usd": None,
        "reason": "gateway",
    }
    await database.fetch(insert(summaries).values({**row, **changes}))


async def test_summaries_come_newest_first_in_pages(database: Database, tenant_id: TenantId, session_id: SessionId) -> None:
    for number in (1, 2, 3):
        await add(database, session_id, number, active=number == 3)
    repository = SummaryRepository(database)

    first = await repository.page(tenant_id, session_id, 2, None)
    assert first is not None
    second = await repository.page(tenant_id, session_id, 2, first.next_cursor)
    assert second is not None

    assert [(each.id, each.active, each.last_seq, each.usage) for each in first.data] == [
        ("sum_3", True, 30, USAGE),
        ("sum_2", False, 20, USAGE),
    ]
    assert ([each.body for each in second.data], second.next_cursor) == (["# Summary 1"], None)
    assert first.data[0].created_at_ms > 1_600_000_000_000


async def test_unknown_and_foreign_sessions_have_no_page(database: Database, tenant_id: TenantId, session_id: SessionId) -> None:
    await add(database, session_id, 1)
    repository = SummaryRepository(database)
    assert await repository.page(await a_tenant(database), session_id, 10, None) is None
    assert await repository.page(tenant_id, SessionId("sess_unknown"), 10, None) is None
    empty = await repository.page(tenant_id, await a_session(database, tenant_id), 10, None)
    assert empty is not None
    assert empty.data == ()


async def test_a_session_has_at_most_one_active_summary(database: Database, tenant_id: TenantId, session_id: SessionId) -> None:
    await add(database, session_id, 1, active=True)
    with pytest.raises((IntegrityError, asyncpg.UniqueViolationError)):
        await add(database, session_id, 2, active=True)
    await add(database, session_id, 3)
    await add(database, await a_session(database, tenant_id), 4, active=True)


async def test_pruning_deletes_what_is_archived_or_replaced_and_old(database: Database, session_id: SessionId) -> None:
    body = encode_message(Message(role=Role.USER, content="whale"))
    for seq, archived, age_s in ((1, True, 90), (2, True, 10), (3, False, 90)):
        row = {"session_id": session_id, "seq": seq, "id": f"msg_{seq}", "archived": archived, "body": body}
        await database.fetch(insert(messages).values(row))
        await database.fetch(text("INSERT INTO search_queue VALUES (:id, ARRAY[CAST(:seq AS bigint)])"), {"id": session_id, "seq": seq})
        await age(database, "messages", f"seq = {seq}", age_s)
    for number, active, age_s in ((1, False, 90), (2, False, 10), (3, True, 90)):
        await add(database, session_id, number, active=active)
        await age(database, "summaries", f"id = 'sum_{number}'", age_s)
    await SearchIndex(database, SystemClock()).catch_up()
    archive = ArchiveRepository(database)

    assert await archive.prune(60.0) == 2
    assert await archive.prune(60.0) == 0

    assert [row.seq for row in await database.fetch(select(messages.c.seq).order_by(messages.c.seq))] == [2, 3]
    assert [row.seq for row in await database.fetch(select(message_search.c.seq).order_by(message_search.c.seq))] == [2, 3]
    assert [row.id for row in await database.fetch(select(summaries.c.id).order_by(summaries.c.id))] == ["sum_2", "sum_3"]


async def test_an_answer_that_stands_in_the_transcript_for_its_parts_goes_with_them(database: Database, session_id: SessionId) -> None:
    body = encode_message(Message(role=Role.ASSISTANT, content="whale"))
    for seq, note, archived in ((1, False, False), (2, True, False), (3, False, True), (4, False, True)):
        row = {"session_id": session_id, "seq": seq, "id": f"msg_{seq}", "note": note, "archived": archived, "body": body}
        await database.fetch(insert(messages).values(row))
    await age(database, "messages", "true", 90)
    archive = ArchiveRepository(database)
    left = select(messages.c.seq).order_by(messages.c.seq)

    await archive.prune(60.0)
    assert [row.seq for row in await database.fetch(left)] == [1, 2, 3], "the model is still shown its last part"
    await database.fetch(text("UPDATE messages SET archived = true WHERE seq = 2"))
    await archive.prune(60.0)
    assert [row.seq for row in await database.fetch(left)] == [1]


async def age(database: Database, table: str, which: str, seconds: int) -> None:
    await database.fetch(text(f"UPDATE {table} SET created_at = created_at - make_interval(secs => {seconds}) WHERE {which}"))
