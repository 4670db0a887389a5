"""How a stateless turn lies in the database: one row that holds its conversation once, for as long as its deltas are kept."""

import msgspec
import pytest
from sqlalchemy import text

from app.domain.ids import MessageId, TenantId, TurnId
from app.domain.messages import Message, Role
from app.domain.openings import NewTurn, OpenTurn, StatelessCall
from app.domain.turns import EventRow, RowKind, TurnRequest
from app.store.engine import Database
from app.store.turns import PRUNE_BATCH, TurnRepository
from tests.contract.steps import DONE, PRUNE_AGES, step
from tests.integration.store.builders import A, a_tenant, an_id

LARGE = "needle " * 20_000


@pytest.fixture
def turns(database: Database) -> TurnRepository:
    return TurnRepository(database, lease_ttl_s=20.0)


async def opened(turns: TurnRepository, tenant_id: TenantId) -> OpenTurn:
    turn_id = TurnId(an_id("turn"))
    opening = await turns.open(
        NewTurn(
            id=turn_id,
            tenant_id=tenant_id,
            session_id=None,
            request=TurnRequest(),
            owner=A,
            message_id=MessageId(an_id("msg")),
            rows=(EventRow(1, 1, RowKind.FACTS, b"id: 1\n\n"),),
            max_queued=1,
            idempotency_key="k",
            fingerprint=b"",
            created_at_ms=0,
            stateless=StatelessCall(system_prompt="", tools=b"[]", history=(Message(role=Role.USER, content=LARGE),)),
        )
    )
    assert isinstance(opening, OpenTurn)
    return opening


async def test_a_large_conversation_is_stored_once_and_adds_no_rows(turns: TurnRepository, database: Database) -> None:
    await opened(turns, await a_tenant(database))
    (row,) = await database.fetch(text("SELECT * FROM turns"))
    holding = [name for name, value in row._mapping.items() if isinstance(value, bytes) and b"needle" in value]
    assert holding == ["history"]
    assert msgspec.json.decode(row.history, type=list[Message]) == [Message(role=Role.USER, content=LARGE)]
    for table in ("sessions", "messages"):
        assert (await database.fetch(text(f"SELECT count(*) AS number FROM {table}")))[0].number == 0


async def test_its_conversation_goes_with_its_deltas(turns: TurnRepository, database: Database) -> None:
    turn = await opened(turns, await a_tenant(database))
    await turns.commit(step(turn, closing=DONE))
    await turns.prune(PRUNE_AGES)
    assert (await database.fetch(text("SELECT history FROM turns")))[0].history is not None
    await database.fetch(text("UPDATE turns SET ended_at = ended_at - interval '2 hours'"))
    await turns.prune(PRUNE_AGES)
    (row,) = await database.fetch(text("SELECT history, outcome FROM turns"))
    assert (row.history, row.outcome) == (None, DONE.outcome)


async def test_pruning_goes_on_until_nothing_old_is_left(turns: TurnRepository, database: Database) -> None:
    turn = await opened(turns, await a_tenant(database))
    await turns.commit(step(turn, closing=DONE))
    await database.fetch(text("UPDATE turns SET ended_at = ended_at - interval '8 days'"))
    await database.fetch(text("DELETE FROM stateless_keys"))
    columns = "tenant_id, state, request, message_id, input_message, machine, ended_at, history"
    await database.fetch(
        text(f"INSERT INTO turns (id, {columns}) SELECT 'turn_copy' || n, {columns} FROM turns, generate_series(1, 2 * :batch) AS n"),
        {"batch": PRUNE_BATCH},
    )
    undeleted = msgspec.structs.replace(PRUNE_AGES, stateless_s=30 * 86_400.0)
    await turns.prune(undeleted)
    (row,) = await database.fetch(text("SELECT count(*) AS number, count(history) AS histories FROM turns"))
    assert (row.number, row.histories) == (2 * PRUNE_BATCH + 1, 0)
    assert await turns.prune(PRUNE_AGES) == 2 * PRUNE_BATCH + 1
    for table in ("turns", "turn_events"):
        assert (await database.fetch(text(f"SELECT count(*) AS number FROM {table}")))[0].number == 0


async def test_its_key_goes_with_it(turns: TurnRepository, database: Database) -> None:
    turn = await opened(turns, await a_tenant(database))
    await database.fetch(text("DELETE FROM turns WHERE id = :id"), {"id": turn.fence.turn_id})
    assert (await database.fetch(text("SELECT count(*) AS number FROM stateless_keys")))[0].number == 0
