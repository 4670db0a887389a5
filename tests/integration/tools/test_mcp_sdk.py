"""Sessions over the SDK with servers that misbehave. Those that behave are called end to end."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.domain.mcp_servers import McpServer
from app.domain.outbound import OutboundPolicy
from app.tools.mcp_dialing import dialing
from app.tools.mcp_session import McpAnswerError, McpLostError, McpProgram, McpSession
from app.tools.outbound import Outbound
from tests.e2e.mcp_processes import MODULE, logged
from tests.e2e.processes import ROOT
from tests.fakes.tooling.mcp import server_of

dial = dialing(Outbound(OutboundPolicy("127.0.0.0/8")).client)
Reply = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What a server answers a request with: a result, or nothing at all."""


HANGS_UP = "hangs_up"
"""The tool for which a server answers with the end of the connection."""


def nothing_changed() -> None:
    return


@asynccontextmanager
async def answering(reply: Reply, *, until: asyncio.Event | None = None) -> AsyncIterator[McpServer]:
    """A server of before 2026 that speaks JSON, with these answers; calls of tools are answered once ``until`` is set."""

    enough = asyncio.Event()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            serving.add(task)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        request = json.loads(await reader.readexactly(length) or b"{}")
        await respond(request, writer)
        writer.close()

    async def respond(request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "id" not in request:
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        if request["method"] == "server/discover":
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        if request.get("params", {}).get("name") == HANGS_UP:
            return
        result = reply(request)
        if result is None:
            await enough.wait()
            return
        if until is not None and request["method"] == "tools/call":
            await until.wait()
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server_of(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
    finally:
        server.close()
        enough.set()
        await asyncio.wait(serving)


def initialized(request: dict[str, Any]) -> dict[str, Any]:
    version = request["params"]["protocolVersion"]
    return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}


def replying(**results: dict[str, Any] | None) -> Reply:
    """Answers by method, its slash an underscore."""

    def reply(request: dict[str, Any]) -> dict[str, Any] | None:
        return initialized(request) if request["method"] == "initialize" else results[request["method"].replace("/", "_")]

    return reply


@asynccontextmanager
async def session_with(server: McpServer | McpProgram) -> AsyncIterator[McpSession]:
    session = await dial(server, nothing_changed)
    try:
        yield session
    finally:
        await session.close()


def tasks_of_sessions() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "MCP server" in task.get_name()]


async def test_a_server_that_does_not_speak_the_protocol_is_refused() -> None:
    async with answering(lambda _: {"hello": "world"}) as server:
        with pytest.raises(McpLostError) as lost:
            await dial(server, nothing_changed)
    assert not lost.value.delivered
    assert lost.value.reason


async def test_an_opening_that_is_given_up_leaves_nothing_behind() -> None:
    async with answering(lambda _: None) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await dial(server, nothing_changed)
        async with asyncio.timeout(2):
            while tasks_of_sessions():
                await asyncio.sleep(0.01)


async def test_a_list_that_never_ends_is_cut_off() -> None:
    page = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "nextCursor": "again"}
    async with answering(replying(tools_list=page)) as server, session_with(server) as session:
        assert 1 < len(await session.list_tools()) < 100


@pytest.mark.parametrize(
    "result",
    [{"content": "no list"}, {"content": [{"type": "text"}]}, {}],
    ids=["no blocks", "half a block", "nothing"],
)
async def test_an_answer_that_is_none_is_an_error_and_the_session_goes_on(result: dict[str, Any]) -> None:
    listing = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
    async with answering(replying(tools_call=result, tools_list=listing)) as server, session_with(server) as session:
        with pytest.raises(McpAnswerError, match="cannot be used"):
            await session.call("a", {})
        assert not session.lost
        assert len(await session.list_tools()) == 1


async def test_an_answer_is_not_judged_by_the_servers_schema() -> None:
    endless = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
    listing = {"tools": [{"name": "a", "inputSchema": {"type": "object"}, "outputSchema": endless}]}
    said = {"content": [], "structuredContent": {"x": "a" * 40 + "!"}}  # would take longer than the test may
    async with answering(replying(tools_call=said, tools_list=listing)) as server, session_with(server) as session:
        await session.list_tools()
        assert (await session.call("a", {})).structured == said["structuredContent"]


async def test_a_request_that_breaks_leaves_the_others_alone() -> None:
    answered = asyncio.Event()
    said = {"content": [{"type": "text", "text": "a"}]}
    listing = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
    async with answering(replying(tools_call=said, tools_list=listing), until=answered) as server, session_with(server) as session:
        slow = asyncio.create_task(session.call("a", {}))
        with pytest.raises(McpLostError) as lost:
            await session.call(HANGS_UP, {})
        assert lost.value.delivered
        answered.set()
        assert [block["text"] for block in (await slow).blocks] == ["a"]
        assert not session.lost


async def test_a_session_that_is_left_stays_for_the_calls_that_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with session_with(program("-m", MODULE, "--log", str(log))) as session:
        slow = asyncio.create_task(session.call("slow", {"seconds": 0.3}))
        await logged(log, "slow begins")
        await session.finish()
        assert session.lost
        assert [block["text"] for block in (await slow).blocks] == ["slept"]


async def test_a_cancelled_call_returns_at_once_although_the_server_does_not_react() -> None:
    async with answering(replying(tools_call=None)) as server, session_with(server) as session:
        call = asyncio.create_task(session.call("a", {}))
        await asyncio.sleep(0.1)
        call.cancel()
        async with asyncio.timeout(0.3):
            await asyncio.wait((call,))
        assert call.cancelled()


async def test_closing_ends_the_calls_that_run() -> None:
    async with answering(replying(tools_call=None)) as server, session_with(server) as session:
        call = asyncio.create_task(session.call("a", {}))
        await asyncio.sleep(0.1)
        await session.close()
        with pytest.raises(McpLostError):
            await call
        assert session.lost
        with pytest.raises(McpLostError):
            await session.call("a", {})
    assert tasks_of_sessions() == []


def program(*arguments: str, command: str = sys.executable) -> McpProgram:
    env = {"PYTHONPATH": str(ROOT)}
    return McpProgram(name="files", command=command, args=arguments, env=env, timeout_s=5, read_only_tools=(), needs_approval=False)


@pytest.mark.parametrize(
    "target",
    [program(command="/no/such/program"), program("-c", "pass"), program("-c", "print('no JSON')")],
    ids=["not there", "ends at once", "says nonsense"],
)
async def test_a_program_that_is_no_server_is_refused(target: McpProgram) -> None:
    with pytest.raises(McpLostError) as lost:
        await dial(target, nothing_changed)
    assert "/no/such" not in lost.value.reason


async def test_a_program_that_ends_takes_its_session_along(tmp_path: Path) -> None:
    async with session_with(program("-m", MODULE, "--log", str(tmp_path / "log"))) as session:
        assert "echo" in [tool.name for tool in await session.list_tools()]
        with pytest.raises(McpLostError):
            await session.call("die", {})
        async with asyncio.timeout(5):
            while not session.lost:
                await asyncio.sleep(0.01)
