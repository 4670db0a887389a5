"""The index behind the search: its queue, and what it does to the rows that it is about."""

import asyncio

import pytest
from sqlalchemy import delete, func, select, text
from typing_extensions import override

from app.clock import SystemClock
from app.domain.ids import SessionId, TenantId
from app.domain.messages import Message, MessageKind, Role, encode_message
from app.store.engine import Database
from app.store.search_index import BATCH, SWEPT, SearchIndex
from app.store.tables import message_search, messages, search_queue, sessions
from tests.integration.store.builders import a_session, a_tenant


@pytest.fixture
def index(database: Database) -> SearchIndex:
    return SearchIndex(database, SystemClock())


@pytest.fixture
async def tenant_id(database: Database) -> TenantId:
    return await a_tenant(database)


@pytest.fixture
async def session_id(database: Database, tenant_id: TenantId) -> SessionId:
    return await a_session(database, tenant_id)


_SAY = text("""
WITH m AS (
    INSERT INTO messages (session_id, seq, id, note, body)
    SELECT :session_id, x.seq, CAST(:session_id AS text) || x.seq, x.note, x.body
    FROM unnest(CAST(:seqs AS bigint[]), CAST(:notes AS boolean[]), CAST(:bodies AS bytea[])) AS x(seq, note, body)
)
INSERT INTO search_queue (session_id, seqs) SELECT :session_id, ARRAY[seq] FROM unnest(CAST(:seqs AS bigint[])) AS seq
""")


async def say(database: Database, session_id: SessionId, *said: str, first: int = 1, kind: MessageKind = MessageKind.SAID) -> None:
    """Write messages as a commit does."""
    params = {
        "session_id": session_id,
        "seqs": list(range(first, first + len(said))),
        "notes": [kind is MessageKind.NOTE] * len(said),
        "bodies": [encode_message(Message(role=Role.USER, content=each, kind=kind)) for each in said],
    }
    await database.fetch(_SAY, params)


async def count(database: Database, table: str) -> int:
    tables = {"queue": search_queue, "index": message_search}
    return int((await database.fetch(select(func.count()).select_from(tables[table])))[0][0])


async def test_the_terms_of_a_message_and_its_tenant_are_indexed(
    database: Database, index: SearchIndex, tenant_id: TenantId, session_id: SessionId
) -> None:
    await say(database, session_id, "Blue whale's, blau_wal 'quoted' \\ 数据库")
    assert await index.catch_up() == 1
    rows = await database.fetch(text("SELECT session_id, seq, tsvector_to_array(terms) AS terms FROM message_search"))
    assert (rows[0].session_id, rows[0].seq) == (session_id, 1)
    assert set(rows[0].terms) == {tenant_id, "blue", "whale", "s", "blau", "wal", "quoted", "数据", "据库", "库"}
    assert await count(database, "queue") == 0
    assert await index.catch_up() == 0


async def test_messages_without_words_are_indexed_and_notes_are_not(database: Database, index: SearchIndex, session_id: SessionId) -> None:
    await say(database, session_id, "", "🦀")
    await say(database, session_id, "note", first=3, kind=MessageKind.NOTE)
    assert await index.catch_up() == 3
    assert await count(database, "index") == 2
    assert await count(database, "queue") == 0


async def test_a_full_queue_is_worked_off_in_batches(database: Database, index: SearchIndex, session_id: SessionId) -> None:
    await say(database, session_id, *(f"word{number}" for number in range(BATCH + 5)))
    assert [await index.catch_up() for _ in range(3)] == [BATCH, 5, 0]
    assert await count(database, "index") == BATCH + 5


async def test_several_replicas_share_the_work_and_lose_nothing(database: Database, index: SearchIndex, session_id: SessionId) -> None:
    await say(database, session_id, *(f"word{number}" for number in range(5 * BATCH)))
    second = SearchIndex(database, SystemClock())
    done = 0
    while await count(database, "queue"):
        done += sum(await asyncio.gather(index.catch_up(), second.catch_up()))
    assert done == await count(database, "index") == 5 * BATCH


async def test_what_is_being_indexed_when_a_replica_dies_stays_in_the_queue(
    database: Database, index: SearchIndex, session_id: SessionId
) -> None:
    await say(database, session_id, "whale")

    class Killed(SystemClock):
        @override
        async def sleep(self, seconds: float) -> None:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await SearchIndex(database, Killed()).catch_up()
    assert (await count(database, "queue"), await count(database, "index")) == (1, 0)
    assert await index.catch_up() == 1


async def test_a_message_that_is_queued_twice_is_indexed_once(database: Database, index: SearchIndex, session_id: SessionId) -> None:
    await say(database, session_id, "whale")
    for _ in range(2):
        await database.fetch(text("INSERT INTO search_queue VALUES (:id, ARRAY[1, 1])"), {"id": session_id})
        await index.catch_up()
    assert await count(database, "index") == 1


async def swept(index: SearchIndex) -> int:
    """Sweep everything; returns the number of batches."""
    place, batches = await index.sweep(None), 0
    while place is not None:
        place, batches = await index.sweep(place), batches + 1
    return batches


async def test_messages_that_nobody_noted_are_found_by_a_sweep(
    database: Database, index: SearchIndex, tenant_id: TenantId, session_id: SessionId
) -> None:
    other = await a_session(database, tenant_id)
    for session in (session_id, other):
        await say(database, session, "known", "known")
        await index.catch_up()
        await say(database, session, "missed", "missed", first=3)
        await say(database, session, "a note", first=5, kind=MessageKind.NOTE)
        await database.fetch(delete(search_queue))  # a replica of an earlier version writes none
    assert await swept(index) == 1
    assert await count(database, "queue") == 2
    assert await index.catch_up() == 4
    assert await count(database, "index") == 8
    await swept(index)
    assert await count(database, "queue") == 0, "a second one finds nothing"


async def test_a_sweep_goes_in_batches_over_sessions_of_any_size(
    database: Database, index: SearchIndex, tenant_id: TenantId, session_id: SessionId
) -> None:
    await say(database, session_id, *["word"] * (SWEPT + 1))
    await say(database, await a_session(database, tenant_id), *["word"] * SWEPT)
    await database.fetch(delete(search_queue))
    assert await swept(index) == 3
    queued = await database.fetch(text("SELECT sum(cardinality(seqs)) FROM search_queue"))
    assert queued[0][0] == 2 * SWEPT + 1
    await swept(index)
    while await index.catch_up():
        pass
    assert await count(database, "index") == 2 * SWEPT + 1


async def test_a_deleted_session_leaves_nothing_behind(
    database: Database, index: SearchIndex, tenant_id: TenantId, session_id: SessionId
) -> None:
    await say(database, session_id, "whale")
    await index.catch_up()
    queued = await a_session(database, tenant_id)
    await say(database, queued, "whale")
    await database.fetch(delete(sessions))
    assert await count(database, "index") == 0
    assert await index.catch_up() == 0
    assert (await count(database, "index"), await count(database, "queue")) == (0, 0)


async def test_archiving_a_message_keeps_it_indexed(database: Database, index: SearchIndex, session_id: SessionId) -> None:
    await say(database, session_id, "whale")
    await index.catch_up()
    await database.fetch(messages.update().values(archived=True))
    assert await count(database, "index") == 1


_MANY = text("""
WITH m AS (
    INSERT INTO messages (session_id, seq, id, body)
    SELECT :session_id, seq, 'msg_' || seq, :body FROM generate_series(1, 20000) AS seq
    RETURNING session_id, seq
)
INSERT INTO message_search (session_id, seq, terms)
SELECT session_id, seq, array_to_tsvector(ARRAY[:tenant_id, 'common', 'word' || seq]) FROM m
""")


async def test_a_search_by_words_uses_the_index(database: Database, tenant_id: TenantId, session_id: SessionId) -> None:
    body = encode_message(Message(role=Role.USER, content="common"))
    await database.fetch(_MANY, {"session_id": session_id, "tenant_id": tenant_id, "body": body})
    await database.fetch(text("VACUUM ANALYZE message_search"))
    plan = await database.fetch(
        text("EXPLAIN SELECT seq FROM message_search WHERE terms @@ CAST(CAST(:query AS text) AS tsquery)"),
        {"query": f"'{tenant_id}' & ('word777' & 'common')"},
    )
    assert "ix_message_search_terms" in "\n".join(row[0] for row in plan)
