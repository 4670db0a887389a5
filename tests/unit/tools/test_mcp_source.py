"""The tools of MCP servers as a tenant's toolbox shows them."""

import asyncio
from typing import Any

import pytest

from app.domain.errors import UnavailableError
from app.domain.guardrails import ToolTraits
from app.domain.ids import TenantId
from app.domain.mcp_servers import McpServer
from app.domain.tenants import Tenant, TenantSettings
from app.tools.execution import ToolExecutor
from app.tools.mcp_pool import McpPool
from app.tools.mcp_session import McpProgram
from app.tools.mcp_source import McpSource
from app.tools.registry import ToolRegistry
from tests.fakes.clock import HandClock
from tests.fakes.tooling.builders import call_of, context_of, tool_of
from tests.fakes.tooling.mcp import FakeMcpServer, listed, server_of

PROGRAM = McpProgram(name="files", command="files", args=(), env={}, timeout_s=5.0, read_only_tools=(), needs_approval=False)


def tenant_of(*servers: McpServer, tenant_id: str = "ten_1") -> Tenant:
    return Tenant(id=TenantId(tenant_id), name="acme", revision=1, settings=TenantSettings(), chains={}, mcp_servers=servers)


class Boxes:
    """Some servers by name, behind one source."""

    def __init__(self, *programs: McpProgram, patience_s: float = 5.0) -> None:
        self.clock = HandClock()
        self.servers: dict[str, FakeMcpServer] = {}
        self.source = McpSource(McpPool(lambda target, changed: self[target.name].dial(target, changed), self.clock), programs)
        self.registry = ToolRegistry([tool_of(self.own)], ToolExecutor(5), [self.source], patience_s=patience_s)

    def __getitem__(self, name: str) -> FakeMcpServer:
        return self.servers.setdefault(name, FakeMcpServer())

    async def own(self, arguments: dict[str, Any], context: object) -> object:
        return "own"


@pytest.fixture
def boxes() -> Boxes:
    return Boxes()


async def test_each_server_is_a_toolset(boxes: Boxes) -> None:
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a"), server_of("b")))
    assert toolbox.toolset_names() == ("core", "mcp_a", "mcp_b")
    assert [spec.name for spec in await toolbox.specs(["mcp_b", "core"])] == ["b__echo", "probe"]
    assert boxes["a"].dialed == []


async def test_a_dead_server_is_named_and_left_out_where_nobody_asked_for_it(boxes: Boxes) -> None:
    boxes["b"].dead = True
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a"), server_of("b")))
    with pytest.raises(UnavailableError, match="mcp_b") as refused:
        await toolbox.specs(["mcp_a", "mcp_b"])
    assert (refused.value.code, refused.value.retry_after_s) == ("toolset_unavailable", 1)
    names, specs = await toolbox.available()
    assert names == ("core", "mcp_a")
    assert [spec.name for spec in specs] == ["a__echo", "probe"]


async def test_a_server_that_does_not_answer_keeps_nobody_waiting_for_long() -> None:
    boxes = Boxes(patience_s=0.05)
    boxes["b"].hold = asyncio.Event()
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a"), server_of("b")))
    names, _ = await toolbox.available()
    assert names == ("core", "mcp_a")
    boxes["b"].hold.set()
    assert (await toolbox.available())[0] == ("core", "mcp_a", "mcp_b")
    assert len(boxes["b"].dialed) == 1, "who waited no longer has not stopped it"


async def test_calls_reach_the_server_and_the_process_own_tools_come_first(boxes: Boxes) -> None:
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a")))
    assert (await toolbox.call(call_of("a__echo", '{"x": 1}'), context_of("a__echo"))).output == "did echo"
    assert boxes["a"].sessions[0].calls == [("echo", {"x": 1})]
    assert (await toolbox.call(call_of("probe"), context_of("probe"))).output == "own"
    assert "There is no tool" in (await toolbox.call(call_of("a__gone"), context_of("a__gone"))).output
    assert "There is no tool" in (await toolbox.call(call_of("z__echo"), context_of("z__echo"))).output
    assert "There is no tool" in (await toolbox.call(call_of("a__echo"), context_of())).output


async def test_a_tool_is_not_shown_under_a_name_that_calls_another(boxes: Boxes) -> None:
    registry = ToolRegistry([tool_of(boxes.own, "a__echo")], ToolExecutor(5), [boxes.source])
    boxes["a"].tools.append(listed("look"))
    toolbox = registry.for_tenant(tenant_of(server_of("a")))
    assert [spec.name for spec in await toolbox.specs(["mcp_a"])] == ["a__look"]
    assert (await toolbox.call(call_of("a__echo"), context_of("a__echo"))).output == "own"


async def test_a_call_of_a_server_that_was_never_listed_says_that_it_is_not_available(boxes: Boxes) -> None:
    boxes["a"].dead = True
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a")))
    outcome = await toolbox.call(call_of("a__echo"), context_of("a__echo"))
    assert outcome.is_error
    assert outcome.output == "Not run: the MCP server a is not available. It cannot be reached."


async def test_a_tool_that_was_listed_is_tried_although_the_list_is_not_to_be_had(boxes: Boxes) -> None:
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a")))
    await toolbox.specs(["mcp_a"])
    boxes["a"].sessions[0].lost = True
    boxes["a"].dead = True
    outcome = await toolbox.call(call_of("a__echo"), context_of("a__echo"))
    assert "not available" in outcome.output
    boxes["a"].dead = False
    await boxes.clock.advance(1)
    assert (await toolbox.call(call_of("a__echo"), context_of("a__echo"))).output == "did echo"


async def test_a_server_without_its_credential_is_not_called(boxes: Boxes) -> None:
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a", usable=False)))
    with pytest.raises(UnavailableError, match="credential"):
        await toolbox.specs(["mcp_a"])
    assert "credential" in (await toolbox.call(call_of("a__echo"), context_of("a__echo"))).output
    assert boxes["a"].dialed == []


async def test_an_approval_is_known_of_before_anything_is_listed(boxes: Boxes) -> None:
    toolbox = boxes.registry.for_tenant(tenant_of(server_of("a", needs_approval=True), server_of("b")))
    assert toolbox.traits().get("a__anything") == ToolTraits(approval=True)
    assert toolbox.traits().get("get_time") is None
    boxes["b"].tools.append(listed("look", read_only=True))
    await toolbox.specs(["mcp_b"])
    traits = toolbox.traits()
    assert traits["b__look"] == ToolTraits(read_only=True)
    assert traits["probe"] == ToolTraits()
    assert set(traits) == {"probe", "b__echo", "b__look"}
    assert len(traits) == 3


async def test_the_operators_programs_are_there_for_everybody_and_keep_their_names() -> None:
    boxes = Boxes(PROGRAM)
    assert boxes.registry.for_tenant(tenant_of()).toolset_names() == ("core", "mcp_files")
    for tenant_id in ("ten_1", "ten_2"):
        toolbox = boxes.registry.for_tenant(tenant_of(server_of("files"), tenant_id=tenant_id))
        assert toolbox.toolset_names() == ("core", "mcp_files")
        assert (await toolbox.call(call_of("files__echo"), context_of("files__echo"))).output == "did echo"
    assert boxes["files"].dialed == [PROGRAM, PROGRAM], "a program for each tenant, and no server of that name"
