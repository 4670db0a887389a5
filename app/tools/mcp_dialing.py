"""Opens sessions with MCP servers. The SDK is loaded by the first of them, on a thread: a process without MCP servers has no use for it."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from app.tools.mcp_session import Dial, McpSession, Target

if TYPE_CHECKING:
    from app.tools.mcp_http import HttpClients


def dialing(clients: "HttpClients") -> Dial:
    """How sessions are opened when servers of tenants are called with ``clients``."""

    async def dial(target: Target, changed: Callable[[], None]) -> McpSession:
        sdk = await asyncio.to_thread(import_module, "app.tools.mcp_sdk")
        session: McpSession = await sdk.open_session(target, changed, clients)
        return session

    return dial
