"""What the routes need, built by ``main`` and kept on ``app.state.services``."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from fastapi import Request

from app.api.authentication import Authenticator
from app.api.route_health import HealthDesk
from app.ports import (
    CallStore,
    Clock,
    KanbanStore,
    MemoryStore,
    MessageStore,
    ModelClients,
    SessionStore,
    SummaryStore,
    TenantStore,
    Toolboxes,
    ToolCapacity,
    UsageStore,
)
from app.turns.service import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything behind the HTTP edge of one process. Sizes in bytes, durations in seconds."""

    clock: Clock
    authenticator: Authenticator
    tenants: TenantStore
    sessions: SessionStore
    messages: MessageStore
    summaries: SummaryStore
    memory: MemoryStore
    kanban: KanbanStore
    toolboxes: Toolboxes
    tool_capacity: ToolCapacity
    model_clients: ModelClients
    turns: Turns
    calls: CallStore
    usage: UsageStore
    route_health: HealthDesk
    cooling: Callable[[], int]
    """How many targets of model calls are left alone now."""
    readiness: Callable[[], Awaitable[bool]]
    """Whether the storage answers."""
    admin_key: str | None
    """``None``: the admin API and the metrics are closed."""
    max_body_bytes: int
    heartbeat_s: float
    version: str


def services_of(request: Request) -> Services:
    """The services of the application that got ``request``."""
    return cast("Services", request.app.state.services)
