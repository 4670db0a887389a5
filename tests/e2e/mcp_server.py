"""An MCP server for tests, built with the official SDK, as a process of its own.

``python -m tests.e2e.mcp_server --log FILE [--port N [--era legacy] | --stdio]``. What happens in it is appended to the log, a line each.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

LONG_S = 30.0
Message = MutableMapping[str, Any]


class Weather(BaseModel):
    """A structured answer."""

    degrees: int


class Confirmation(BaseModel):
    """What the server asks of clients."""

    sure: bool


class Log:
    """Where lines go; set before the server runs."""

    path = Path(os.devnull)

    def __call__(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


note = Log()
server = MCPServer("tests", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def echo(text: str) -> str:
    """Say the same."""
    note(f"echo {text}")
    return f"echo: {text}"


@server.tool()
async def whoami(ctx: Context) -> str:
    """Say who calls."""
    headers = ctx.headers or {}
    note(f"session {headers.get('mcp-session-id')}")
    return f"{headers.get('authorization')} {headers.get('x-team')} {os.environ.get('MCP_TEST_TOKEN')}"


@server.tool()
async def slow(seconds: float = LONG_S) -> str:
    """Take a long time."""
    note("slow begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("slow is cancelled")
        raise
    note("slow ends")
    return "slept"


@server.tool()
async def fail() -> str:
    """Fail."""
    raise ToolError("the drawer is stuck")


@server.tool()
async def die() -> str:
    """End the process."""
    os._exit(1)


@server.tool()
async def picture() -> Image:
    """Return an image."""
    return Image(data=b"\x89PNG" + bytes(1_196), format="png")


@server.tool()
async def weather() -> Weather:
    """Return structured content."""
    return Weather(degrees=21)


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the client something."""
    answer = await ctx.elicit("Sure?", Confirmation)
    return f"asked: {answer.action}"


@server.tool(name="odd.name")
async def odd() -> str:
    """Have an illegal name."""
    return "odd with a dot"


@server.tool(name="odd/name")
async def odder() -> str:
    """Have another one that looks the same once it is legal."""
    return "odd with a slash"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    server.add_tool(grown)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "grown"


async def grown() -> str:
    """Be new."""
    return "new"


def without_discovery(app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A server of before 2026: it knows nothing of discovery."""

    async def answer(
        scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http" and (b"mcp-method", b"server/discover") in scope["headers"]:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return answer


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--era", choices=("modern", "legacy"), default="modern")
    arguments = parser.parse_args()
    note.path = arguments.log
    note(f"pid {os.getpid()}")
    if arguments.port is None:
        server.run("stdio")
        return
    app = server.streamable_http_app()
    served = without_discovery(app) if arguments.era == "legacy" else app
    uvicorn.run(served, host="127.0.0.1", port=arguments.port, log_level="warning", timeout_graceful_shutdown=0)


if __name__ == "__main__":
    main()
