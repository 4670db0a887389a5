"""An MCP server behind the gateway's own idea of a session, and what a test makes of it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.domain.mcp_servers import McpServer
from app.tools.mcp_session import ListedTool, McpLostError, McpResult, Target


def listed(name: str, **fields: Any) -> ListedTool:
    values = {"title": "", "description": f"Does {name}.", "parameters": {"type": "object"}, "read_only": False, **fields}
    return ListedTool(name=name, **values)


def server_of(name: str = "box", **fields: Any) -> McpServer:
    values: dict[str, Any] = {
        "url": f"https://{name}.example/mcp",
        "credential": "",
        "headers": {},
        "usable": True,
        "timeout_s": 5.0,
        "read_only_tools": (),
        "needs_approval": False,
        **fields,
    }
    return McpServer(name=name, **values)


def text(said: str) -> McpResult:
    return McpResult(blocks=[{"type": "text", "text": said}], structured=None, is_error=False)


@dataclass
class FakeMcpServer:
    """``outcomes`` are what the next calls come to; without any, the call's name is said. ``dead``: nobody can reach it."""

    tools: list[ListedTool] = field(default_factory=lambda: [listed("echo")])
    outcomes: list[McpResult | Exception] = field(default_factory=list)
    dead: bool = False
    dialed: list[Target] = field(default_factory=list)
    sessions: "list[FakeMcpSession]" = field(default_factory=list)
    lists: int = 0
    hold: asyncio.Event | None = None
    """Where there is one, calls and openings wait for it."""

    async def dial(self, target: Target, changed: Callable[[], None]) -> "FakeMcpSession":
        self.dialed.append(target)
        if self.hold is not None:
            await self.hold.wait()
        if self.dead:
            raise McpLostError("It cannot be reached.", delivered=False)
        session = FakeMcpSession(self, changed)
        self.sessions.append(session)
        return session


class FakeMcpSession:
    """One session with it."""

    def __init__(self, server: FakeMcpServer, changed: Callable[[], None]) -> None:
        self._server = server
        self.changed = changed
        self.lost = False
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def list_tools(self) -> Sequence[ListedTool]:
        self._server.lists += 1
        return list(self._server.tools)

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        self.calls.append((name, arguments))
        if self._server.hold is not None:
            await self._server.hold.wait()
        outcome = self._server.outcomes.pop(0) if self._server.outcomes else text(f"did {name}")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def finish(self) -> None:
        await self.close()

    async def close(self) -> None:
        self.lost = True
