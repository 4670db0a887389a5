"""What the inside needs from the outside. Each Protocol lists what it may raise; everything else is a fault.

Storage faults (database away) are :class:`app.domain.errors.UnavailableError` with code ``storage_unavailable`` in every store port.
"""

from app.ports.calls import ChildTurns, ModelClient, ModelClients, Toolbox, Toolboxes, ToolCapacity
from app.ports.clock import Clock
from app.ports.delivery import HealthStore, RateWindowStore
from app.ports.sessions import ArchiveStore, KanbanStore, MemoryStore, MessageStore, SearchStore, SessionStore, SummaryStore, TodoStore
from app.ports.tenants import TenantStore, ToolRules
from app.ports.turns import CallStore, ReplicaStore, TurnStore, UsageStore, Wakeups

__all__ = [
    "ArchiveStore",
    "CallStore",
    "ChildTurns",
    "Clock",
    "HealthStore",
    "KanbanStore",
    "MemoryStore",
    "MessageStore",
    "ModelClient",
    "ModelClients",
    "RateWindowStore",
    "ReplicaStore",
    "SearchStore",
    "SessionStore",
    "SummaryStore",
    "TenantStore",
    "TodoStore",
    "ToolCapacity",
    "ToolRules",
    "Toolbox",
    "Toolboxes",
    "TurnStore",
    "UsageStore",
    "Wakeups",
]
