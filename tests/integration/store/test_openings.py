import asyncio

from sqlalchemy import text

from app.domain.messages import Message, Role, encode_message
from app.domain.openings import OpenTurn
from app.store.engine import Database
from app.store.turns import TurnRepository
from tests.integration.store.builders import a_session, a_tenant, a_turn, an_id

WAITING = text("SELECT count(*) AS waiting FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


async def test_an_opening_that_waited_for_its_session_brings_no_older_history(database: Database) -> None:
    """It reads the messages as they were when it began, and the session as it is when the wait is over."""
    turns = TurnRepository(database, lease_ttl_s=20.0)
    tenant_id = await a_tenant(database)
    session_id = await a_session(database, tenant_id)
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE sessions SET next_seq = 2 WHERE id = :id"), {"id": session_id})
        await connection.execute(
            text("INSERT INTO messages (session_id, seq, id, body) VALUES (:session, 1, :id, :body)"),
            {"session": session_id, "id": an_id("msg"), "body": encode_message(Message(role=Role.USER, content="newer"))},
        )
        opening = asyncio.ensure_future(turns.open(a_turn(tenant_id, session_id)))
        async with asyncio.timeout(10):
            while not (await database.fetch(WAITING))[0].waiting:
                await asyncio.sleep(0.01)
    turn = await opening
    assert isinstance(turn, OpenTurn)
    assert turn.next_message_seq == 3
    assert turn.working_set is None


async def test_an_opening_that_did_not_wait_brings_everything(database: Database) -> None:
    turns = TurnRepository(database, lease_ttl_s=20.0)
    tenant_id = await a_tenant(database)
    turn = await turns.open(a_turn(tenant_id, await a_session(database, tenant_id)))
    assert isinstance(turn, OpenTurn)
    assert turn.working_set is not None
    assert [stored.message.content for stored in turn.working_set] == ["hello"]
