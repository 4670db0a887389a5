import asyncio
import hashlib

import msgspec
import pytest
from sqlalchemy import insert, select, text

from app.domain.errors import ConflictError
from app.domain.ids import ENTROPY_BYTES, SessionId, TenantId, make_id
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.sessions import NewSession, Session, SessionChange
from app.ports import Clock
from app.store.engine import Database
from app.store.messages import MessageRepository
from app.store.sessions import SessionRepository
from app.store.tables import messages, sessions, tenants, turns
from app.store.todos import TodoRepository

ACME = TenantId("ten_acme")
OTHER = TenantId("ten_other")


@pytest.fixture
async def repository(database: Database) -> SessionRepository:
    for tenant_id in (ACME, OTHER):
        await database.fetch(insert(tenants).values(id=tenant_id, name=tenant_id, settings=b"{}"))
    return SessionRepository(database)


def session_id(number: int) -> SessionId:
    return SessionId(make_id("sess", number, bytes(ENTROPY_BYTES)))


def new_session(number: int = 1, tenant_id: TenantId = ACME, user: str | None = "ada") -> NewSession:
    return NewSession(
        id=session_id(number),
        tenant_id=tenant_id,
        system_prompt="Be brief.",
        model="m-test",
        toolsets=("time", "todo"),
        tools=b'[{"name":"get_time"}]',
        user=user,
        keep_interrupted_text=True,
        metadata={"team": "blue"},
        messages=(),
        idempotency_key=None,
        fingerprint=b"",
    )


def with_key(session: NewSession, key: str, body: bytes) -> NewSession:
    return msgspec.structs.replace(session, idempotency_key=key, fingerprint=hashlib.sha256(body).digest())


async def add_turn(database: Database, session: SessionId, state: str, turn_id: str = "turn_1") -> None:
    await database.fetch(
        insert(turns).values(
            id=turn_id,
            tenant_id=ACME,
            session_id=session,
            state=state,
            request=b"{}",
            message_id="msg_1",
            input_message=b"{}",
            machine=b"{}",
        )
    )


async def test_a_created_session_reads_back(repository: SessionRepository, clock: Clock) -> None:
    created, replayed = await repository.create(new_session())

    assert not replayed
    assert created == await repository.get(ACME, created.id)
    assert (created.toolsets, created.metadata, created.user) == (("time", "todo"), {"team": "blue"}, "ada")
    assert created.keep_interrupted_text is True
    assert created.active_turn_id is None
    assert created.created_at_ms > 1_600_000_000_000


async def test_a_session_is_unknown_to_another_tenant(repository: SessionRepository) -> None:
    created, _ = await repository.create(new_session())

    assert await repository.get(OTHER, created.id) is None
    assert await repository.change(OTHER, created.id, SessionChange(user="eve")) is None
    assert await repository.delete(OTHER, created.id) is False
    assert await repository.get(ACME, created.id) == created


async def test_an_imported_history_is_written_with_the_session(database: Database, repository: SessionRepository) -> None:
    history = (
        ("msg_1", Message(role=Role.USER, content="time?")),
        ("msg_2", Message(role=Role.ASSISTANT, tool_calls=(ToolCall("c", "get_time", "{}"),))),
        ("msg_3", Message(role=Role.TOOL, content="noon", tool_call_id="c")),
        ("msg_4", Message(role=Role.ASSISTANT, content="", kind=MessageKind.NOTE)),
    )
    created, _ = await repository.create(msgspec.structs.replace(new_session(), messages=history))

    rows = await MessageRepository(database).working_set(created.id)
    next_seq = (await database.fetch(select(sessions.c.next_seq)))[0][0]
    notes = [row[0] for row in await database.fetch(select(messages.c.note).order_by(messages.c.seq))]

    assert [(row.id, row.seq, row.message) for row in rows] == [(item[0], n, item[1]) for n, item in enumerate(history, start=1)]
    assert next_seq == 5
    assert notes == [False, False, False, True]


async def test_a_large_import_is_one_statement(database: Database, repository: SessionRepository) -> None:
    history = tuple((f"msg_{n}", Message(role=Role.USER if n % 2 else Role.ASSISTANT, content=f"text {n}")) for n in range(10_000))

    created, _ = await repository.create(msgspec.structs.replace(new_session(), messages=history))

    assert len(await MessageRepository(database).working_set(created.id)) == 10_000


async def test_an_idempotency_key_makes_one_session_however_many_ask_at_once(repository: SessionRepository) -> None:
    made = await asyncio.gather(*(repository.create(with_key(new_session(n), "one", b"body")) for n in range(8)))

    assert len({session.id for session, _ in made}) == 1
    assert [replayed for _, replayed in made].count(False) == 1


async def test_an_idempotency_key_with_another_body_is_refused(repository: SessionRepository) -> None:
    await repository.create(with_key(new_session(1), "one", b"body"))

    with pytest.raises(ConflictError) as refused:
        await repository.create(with_key(new_session(2), "one", b"other"))

    assert refused.value.code == "idempotency_mismatch"
    foreign, replayed = await repository.create(with_key(new_session(3, OTHER), "one", b"other"))
    assert (foreign.id, replayed) == (session_id(3), False)


async def test_pages_are_newest_first_and_a_tenants_own(repository: SessionRepository) -> None:
    for number in range(5):
        await repository.create(new_session(number, user="ada" if number % 2 else None))
    await repository.create(new_session(9, OTHER))

    first = await repository.page(ACME, 3, None, None)
    second = await repository.page(ACME, 3, first.next_cursor, None)
    adas = await repository.page(ACME, 2, None, "ada")

    assert [session.id for session in first.data + second.data] == [session_id(number) for number in (4, 3, 2, 1, 0)]
    assert second.next_cursor is None
    assert [session.id for session in adas.data] == [session_id(3), session_id(1)]
    assert adas.next_cursor is None


CHANGES = {
    "prompt": SessionChange(system_prompt="New."),
    "model-off": SessionChange(model=None),
    "user-off": SessionChange(user=None),
    "toolsets": SessionChange(toolsets=("time",), tools=b"[]"),
    "keep": SessionChange(keep_interrupted_text=False),
    "metadata": SessionChange(metadata={}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_changes_what_it_names(database: Database, repository: SessionRepository, change: SessionChange) -> None:
    created, _ = await repository.create(new_session())

    changed = await repository.change(ACME, created.id, change)

    assert changed is not None
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET and name != "tools"}
    assert changed == msgspec.structs.replace(created, updated_at_ms=changed.updated_at_ms, **given)
    assert changed.updated_at_ms >= created.updated_at_ms
    tools = (await database.fetch(select(sessions.c.tools)))[0][0]
    assert tools == (b"[]" if change.tools is not msgspec.UNSET else b'[{"name":"get_time"}]')


async def test_an_empty_change_changes_nothing(repository: SessionRepository) -> None:
    created, _ = await repository.create(new_session())

    assert await repository.change(ACME, created.id, SessionChange()) == created


async def test_deleting_takes_everything_along(database: Database, repository: SessionRepository) -> None:
    created, _ = await repository.create(
        msgspec.structs.replace(new_session(), messages=(("msg_1", Message(role=Role.USER, content="hi")),))
    )
    await add_turn(database, created.id, "completed")
    await TodoRepository(database).write(created.id, b"[]")

    assert await repository.delete(ACME, created.id) is True

    assert await repository.get(ACME, created.id) is None
    for table in ("messages", "turns", "todos"):
        assert (await database.fetch(text(f"SELECT count(*) FROM {table}")))[0][0] == 0
    assert await repository.delete(ACME, created.id) is False


@pytest.mark.parametrize(("state", "active"), [("running", "turn_1"), ("queued", None)])
async def test_a_session_with_an_open_turn_is_not_deleted(
    database: Database, repository: SessionRepository, state: str, active: str | None
) -> None:
    created, _ = await repository.create(new_session())
    await add_turn(database, created.id, state)

    with pytest.raises(ConflictError) as refused:
        await repository.delete(ACME, created.id)

    assert (refused.value.code, refused.value.turn_id) == ("turn_in_progress", "turn_1")
    still = await repository.get(ACME, created.id)
    assert isinstance(still, Session)
    assert still.active_turn_id == active


async def test_a_delete_that_races_with_the_start_of_a_turn_loses_neither(database: Database, repository: SessionRepository) -> None:
    created, _ = await repository.create(new_session())
    async with database.transaction() as connection:
        await connection.execute(
            insert(turns).values(
                id="turn_1",
                tenant_id=ACME,
                session_id=created.id,
                state="running",
                request=b"{}",
                message_id="msg_1",
                input_message=b"{}",
                machine=b"{}",
            )
        )
        deleting = asyncio.create_task(repository.delete(ACME, created.id))
        done, _ = await asyncio.wait({deleting}, timeout=0.3)
        assert not done

    with pytest.raises(ConflictError):
        await deleting


async def test_a_todo_list_is_what_was_written_last(database: Database, repository: SessionRepository) -> None:
    created, _ = await repository.create(new_session())
    todos = TodoRepository(database)

    assert await todos.read(created.id) is None
    await todos.write(created.id, b"[1]")
    await todos.write(created.id, b"[2]")
    assert await todos.read(created.id) == b"[2]"
