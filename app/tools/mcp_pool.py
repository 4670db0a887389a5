"""All connections to MCP servers of this process. Each belongs to one tenant, one configuration and one credential."""

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Any, Final

from app.domain.ids import TenantId
from app.domain.tools import ToolOutcome
from app.ports import Clock
from app.tools.mcp_connection import McpConnection
from app.tools.mcp_session import Dial, McpUnavailableError, Target, digest_of
from app.tools.mcp_tools import unavailable

MAX_CONNECTIONS: Final = 256
IDLE_S: Final = 300.0
"""After this long without use a connection is closed."""
LOOK_S: Final = 30.0


class McpPool:
    """Connections by tenant and target. ``size`` bounds them: the one not used for the longest gives way."""

    def __init__(self, dial: Dial, clock: Clock, size: int = MAX_CONNECTIONS) -> None:
        self._dial = dial
        self._clock = clock
        self._size = size
        self._connections: OrderedDict[tuple[TenantId, str], McpConnection] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, tenant_id: TenantId, target: Target) -> McpConnection:
        """The tenant's connection; nothing is opened yet. Raises McpUnavailableError when all are busy."""
        key = (tenant_id, digest_of(target))
        connection = self._connections.get(key)
        if connection is None:
            self._make_room()
            connection = McpConnection(target, self._dial, self._clock, partial(self.call, tenant_id, target))
            self._connections[key] = connection
        self._connections.move_to_end(key)
        return connection

    async def call(self, tenant_id: TenantId, target: Target, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool by the server's name for it, over the tenant's connection as it then is. Failures are results."""
        try:
            connection = self.of(tenant_id, target)
        except McpUnavailableError as error:
            return unavailable(target, error.reason)
        return await connection.call(name, arguments)

    def existing(self, tenant_id: TenantId, target: Target) -> McpConnection | None:
        """The tenant's connection, if there is one."""
        return self._connections.get((tenant_id, digest_of(target)))

    async def run(self) -> None:
        """Close what is idle, for ever."""
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._clock.monotonic()
            for key, connection in list(self._connections.items()):
                if not connection.busy and now - connection.used_at >= IDLE_S:
                    self._retire(key)

    async def close(self) -> None:
        """Close all; returns when they are."""
        for key in list(self._connections):
            self._retire(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _make_room(self) -> None:
        if len(self._connections) < self._size:
            return
        idle = next((key for key, connection in self._connections.items() if not connection.busy), None)
        if idle is None:
            raise McpUnavailableError("The gateway has no connection to spare for it.")
        self._retire(idle)

    def _retire(self, key: tuple[TenantId, str]) -> None:
        task = asyncio.create_task(self._connections.pop(key).close(), name="close an MCP connection")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
