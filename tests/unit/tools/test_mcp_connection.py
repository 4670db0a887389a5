"""Connections to MCP servers: opened when needed, shared by callers, leaving a dead server alone, never calling twice what may have run."""

import asyncio
from typing import Any

import pytest

from app.domain.ids import TenantId
from app.domain.tools import ToolOutcome
from app.tools.mcp_connection import FIRST_PAUSE_S, REFRESH_S, McpConnection
from app.tools.mcp_pool import IDLE_S, LOOK_S, McpPool
from app.tools.mcp_session import McpAnswerError, McpLostError, McpUnavailableError, digest_of
from tests.fakes.clock import HandClock, settle
from tests.fakes.tooling.mcp import FakeMcpServer, listed, server_of

ACME, OTHER = TenantId("ten_acme"), TenantId("ten_other")


async def uncalled(name: str, arguments: dict[str, Any]) -> object:
    raise AssertionError


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def server() -> FakeMcpServer:
    return FakeMcpServer()


@pytest.fixture
def connection(server: FakeMcpServer, clock: HandClock) -> McpConnection:
    return McpConnection(server_of(), server.dial, clock, uncalled)


async def test_nothing_is_opened_before_it_is_needed_and_everybody_shares_it(connection: McpConnection, server: FakeMcpServer) -> None:
    assert server.dialed == []
    found, outcome = await asyncio.gather(asyncio.gather(*(connection.tools() for _ in range(3))), connection.call("echo", {}))
    assert [list(tools) for tools in found] == [["box__echo"]] * 3
    assert outcome == ToolOutcome(output="did echo")
    assert (len(server.dialed), server.lists) == (1, 1)


async def test_a_list_is_kept_for_a_while_and_until_the_server_says_that_it_changed(
    connection: McpConnection, server: FakeMcpServer, clock: HandClock
) -> None:
    await connection.tools()
    await clock.advance(REFRESH_S - 1)
    await connection.tools()
    assert server.lists == 1
    await clock.advance(1)
    await connection.tools()
    assert server.lists == 2
    server.tools.append(listed("new"))
    server.sessions[0].changed()
    assert list(await connection.tools()) == ["box__echo", "box__new"]
    assert len(server.dialed) == 1


async def test_a_dead_server_is_left_alone_for_growing_pauses(connection: McpConnection, server: FakeMcpServer, clock: HandClock) -> None:
    server.dead = True
    pauses = []
    for _ in range(8):
        with pytest.raises(McpUnavailableError) as refused:
            await connection.tools()
        pauses.append(refused.value.retry_after_s)
        dialed = len(server.dialed)
        with pytest.raises(McpUnavailableError, match="cannot be reached"):
            await connection.tools()
        assert (await connection.call("echo", {})).is_error
        assert len(server.dialed) == dialed, "nobody calls it before its time"
        await clock.advance(refused.value.retry_after_s)
    assert pauses == [FIRST_PAUSE_S, 2, 4, 8, 16, 32, 60, 60]
    server.dead = False
    assert (await connection.call("echo", {})).output == "did echo"


async def test_a_lost_session_is_replaced_by_the_next_call(connection: McpConnection, server: FakeMcpServer) -> None:
    await connection.call("echo", {})
    server.sessions[0].lost = True
    assert (await connection.call("echo", {})).output == "did echo"
    assert len(server.sessions) == 2


async def test_a_call_that_may_have_run_is_never_repeated(connection: McpConnection, server: FakeMcpServer) -> None:
    server.outcomes.append(McpLostError("The connection broke."))
    outcome = await connection.call("echo", {})
    assert outcome.is_error
    assert "effect is unknown" in outcome.output
    assert sum(len(session.calls) for session in server.sessions) == 1


async def test_a_call_that_cannot_have_run_is_made_in_a_new_session_once(connection: McpConnection, server: FakeMcpServer) -> None:
    server.outcomes.append(McpLostError("It forgot the session.", delivered=False))
    assert (await connection.call("echo", {})).output == "did echo"
    assert [len(session.calls) for session in server.sessions] == [1, 1]
    server.outcomes += [McpLostError("It forgot the session.", delivered=False)] * 2
    outcome = await connection.call("echo", {})
    assert outcome.output.startswith("Not run:")
    assert sum(len(session.calls) for session in server.sessions) == 4


async def test_a_refusal_is_a_result(connection: McpConnection, server: FakeMcpServer) -> None:
    server.outcomes.append(McpAnswerError("no such file"))
    assert await connection.call("echo", {}) == ToolOutcome(output="no such file", is_error=True)


async def test_a_refusal_repeats_no_credential(connection: McpConnection, server: FakeMcpServer) -> None:
    server.outcomes += [McpAnswerError("bad header Authorization: Bearer abcDEF123"), McpAnswerError("")]
    assert "abcDEF123" not in (await connection.call("echo", {})).output
    assert (await connection.call("echo", {})).output == "It gave no reason."


async def test_who_gives_up_takes_the_session_from_nobody(connection: McpConnection, server: FakeMcpServer) -> None:
    server.hold = asyncio.Event()
    impatient, patient = asyncio.create_task(connection.tools()), asyncio.create_task(connection.tools())
    await settle()
    impatient.cancel()
    await settle()
    assert impatient.cancelled()
    server.hold.set()
    assert list(await patient) == ["box__echo"]
    assert len(server.dialed) == 1


async def test_tenants_servers_and_credentials_have_connections_of_their_own(server: FakeMcpServer, clock: HandClock) -> None:
    pool = McpPool(server.dial, clock)
    targets = [server_of(), server_of(credential="a"), server_of(credential="b"), server_of(headers={"X": "1"}), server_of("other")]
    found = {id(pool.of(tenant, target)) for tenant in (ACME, OTHER) for target in targets}
    assert len(found) == 10
    assert pool.of(ACME, server_of(credential="a")) is pool.of(ACME, server_of(credential="a"))
    assert "secret" not in digest_of(server_of(credential="secret"))


async def test_idle_connections_are_closed_and_busy_ones_are_not(server: FakeMcpServer, clock: HandClock) -> None:
    pool = McpPool(server.dial, clock)
    running = asyncio.create_task(pool.run())
    await settle()
    await pool.call(ACME, server_of(), "echo", {})
    server.hold = asyncio.Event()
    busy = asyncio.create_task(pool.call(OTHER, server_of(), "echo", {}))
    await settle()
    server.hold.set()
    await busy
    server.hold = asyncio.Event()
    busy = asyncio.create_task(pool.call(OTHER, server_of(), "echo", {}))
    for _ in range(int((IDLE_S + LOOK_S) / LOOK_S)):
        await clock.advance(LOOK_S)
    assert [session.lost for session in server.sessions] == [True, False]
    server.hold.set()
    assert (await busy).output == "did echo"
    running.cancel()
    await pool.close()
    assert [session.lost for session in server.sessions] == [True, True]


async def test_connections_are_bounded(server: FakeMcpServer, clock: HandClock) -> None:
    pool = McpPool(server.dial, clock, size=2)
    await pool.call(ACME, server_of("a"), "echo", {})
    server.hold = asyncio.Event()
    busy = [asyncio.create_task(pool.call(ACME, server_of(name), "echo", {})) for name in ("b", "c")]
    await settle()
    assert [session.lost for session in server.sessions] == [True], "the one not used for the longest gives way"
    assert "no connection to spare" in (await pool.call(ACME, server_of("d"), "echo", {})).output
    server.hold.set()
    assert [(await call).output for call in busy] == ["did echo", "did echo"]
    assert (await pool.call(ACME, server_of("d"), "echo", {})).output == "did echo"
    await pool.close()
    assert all(session.lost for session in server.sessions)
