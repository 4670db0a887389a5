"""Rows that store tests begin with."""

import secrets

from sqlalchemy import text

from app.domain.events import FrameEncoder, IterationStarted
from app.domain.ids import MessageId, ReplicaId, SessionId, TenantId, TurnId, make_id
from app.domain.openings import NewTurn
from app.domain.turns import EventRow, OnBusy, RowKind, TurnRequest
from app.store.engine import Database

A = ReplicaId("rep_a")
B = ReplicaId("rep_b")


def an_id(prefix: str) -> str:
    return make_id(prefix, 1_800_000_000_000, secrets.token_bytes(10))


async def a_tenant(database: Database) -> TenantId:
    tenant_id = TenantId(an_id("ten"))
    await database.fetch(
        text("INSERT INTO tenants (id, name, settings) VALUES (:id, :name, '{}')"), {"id": tenant_id, "name": tenant_id.replace("_", "-")}
    )
    return tenant_id


async def a_session(database: Database, tenant_id: TenantId) -> SessionId:
    session_id = SessionId(an_id("sess"))
    await database.fetch(
        text(
            "INSERT INTO sessions (id, tenant_id, system_prompt, toolsets, tools, metadata) "
            "VALUES (:id, :tenant, 'be kind', '[]', '[]', '{}')"
        ),
        {"id": session_id, "tenant": tenant_id},
    )
    return session_id


async def alive(database: Database, replica: ReplicaId, for_s: float = 60.0) -> None:
    await database.fetch(
        text(
            "INSERT INTO replicas (id, expires_at) VALUES (:id, clock_timestamp() + make_interval(secs => :for_s)) "
            "ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at"
        ),
        {"id": replica, "for_s": for_s},
    )


def a_turn(
    tenant_id: TenantId,
    session_id: SessionId,
    *,
    owner: ReplicaId | None = A,
    key: str | None = None,
    fingerprint: bytes = b"same",
    on_busy: OnBusy = OnBusy.REJECT,
    max_queued: int = 16,
) -> NewTurn:
    turn_id = TurnId(an_id("turn"))
    frame = FrameEncoder(turn_id).frame(1, IterationStarted(iteration=1, max_iterations=90))
    return NewTurn(
        id=turn_id,
        tenant_id=tenant_id,
        session_id=session_id,
        request=TurnRequest(input="hello", on_busy=on_busy),
        owner=owner,
        message_id=MessageId(an_id("msg")),
        rows=(EventRow(1, 1, RowKind.FACTS, frame),),
        max_queued=max_queued,
        idempotency_key=key,
        fingerprint=fingerprint,
        created_at_ms=1_800_000_000_000,
    )
