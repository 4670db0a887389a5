import logging
from typing import Any

import pytest

from app.domain.guardrails import ToolTraits
from app.tools.mcp_session import McpResult
from app.tools.mcp_tools import MAX_DESCRIPTION, MAX_SCHEMA_BYTES, MAX_TOOLS, outcome_of, prepared_tools
from tests.fakes.tooling.builders import context_of
from tests.fakes.tooling.mcp import listed, server_of


async def nothing(name: str, arguments: dict[str, Any]) -> object:
    return f"{name} {arguments}"


def result(*blocks: dict[str, Any], structured: Any = None, is_error: bool = False) -> McpResult:
    return McpResult(blocks=blocks, structured=structured, is_error=is_error)


TEXT = {"type": "text", "text": "said"}
BLOCKS: dict[str, tuple[McpResult, str]] = {
    "text": (result(TEXT, {"type": "text", "text": "more"}), "said\nmore"),
    "image": (result({"type": "image", "data": "AAAA" * 100, "mimeType": "image/png"}), "[image of 300 bytes (image/png), not shown]"),
    "audio": (result({"type": "audio", "data": "AAAA"}), "[audio of 3 bytes (unknown type), not shown]"),
    "embedded text": (result({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}), "inside"),
    "embedded blob": (
        result({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA", "mimeType": "application/pdf"}}),
        "[resource of 3 bytes (application/pdf), not shown]",
    ),
    "link": (result({"type": "resource_link", "uri": "https://a.example/b", "name": "b"}), "[link to a resource: https://a.example/b]"),
    "unknown": (result({"type": "hologram"}), "[content of type 'hologram', not shown]"),
    "structured": (result(structured={"b": 1, "a": [None]}), '{"a":[null],"b":1}'),
    "structured beside text": (result(TEXT, structured={"a": 1}), "said"),
    "structured beside an image": (
        result({"type": "image", "data": "AAAA", "mimeType": "image/png"}, structured={"a": 1}),
        '{"a":1}\n[image of 3 bytes (image/png), not shown]',
    ),
    "nothing": (result(), ""),
}


@pytest.mark.parametrize(("answer", "shown"), BLOCKS.values(), ids=BLOCKS)
def test_what_a_server_answers_becomes_text(answer: McpResult, shown: str) -> None:
    assert outcome_of(answer).output == shown
    assert not outcome_of(answer).is_error


def test_an_error_stays_one() -> None:
    assert outcome_of(result(TEXT, is_error=True)).is_error


async def test_a_tool_is_called_by_its_own_name() -> None:
    tools = prepared_tools(server_of(timeout_s=7.0), [listed("read.file")], nothing)
    tool = tools["box__read_file"]
    assert await tool.handler({"a": 1}, context_of()) == "read.file {'a': 1}"
    assert (tool.spec.name, tool.toolset, tool.timeout_s) == ("box__read_file", "mcp_box", 7.0)


def test_descriptions_are_cleaned_capped_and_never_missing() -> None:
    tools = [
        listed("long", description="d" * 10_000),
        listed("hidden", description=" Shows\u200b \x1bit.\nTwo \U000e0041lines. "),
        listed("titled", description="", title="A title"),
        listed("silent", description=" \u200b "),
    ]
    described = {name: tool.spec.description for name, tool in prepared_tools(server_of(), tools, nothing).items()}
    assert len(described["box__long"]) == MAX_DESCRIPTION
    assert described["box__hidden"] == "Shows it.\nTwo lines."
    assert described["box__titled"] == "A title"
    assert described["box__silent"] == "silent of the MCP server box."


@pytest.mark.parametrize(
    "parameters",
    [{"type": "array"}, {"type": "object", "properties": 3}, {"type": "object", "description": "x" * MAX_SCHEMA_BYTES}],
    ids=["no object", "invalid", "too large"],
)
def test_a_schema_that_cannot_be_used_costs_its_tool_only(parameters: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tools = prepared_tools(server_of(), [listed("bad", parameters=parameters), listed("good")], nothing)
    assert list(tools) == ["box__good"]
    assert "bad" in caplog.text


def test_patterns_are_left_to_the_server() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^a$"}}}
    tool = prepared_tools(server_of(), [listed("a", parameters=parameters)], nothing)["box__a"]
    assert tool.schema.problems({"x": "b"}) == []
    assert tool.spec.parameters == parameters
    assert len(tool.schema.problems({"x": 1})) == 1


def test_more_tools_than_can_be_offered_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert len(prepared_tools(server_of(), [listed(f"t{number}") for number in range(MAX_TOOLS + 1)], nothing)) == MAX_TOOLS
    assert "left out" in caplog.text


def test_traits_come_from_the_server_and_from_the_configuration() -> None:
    server = server_of(read_only_tools=("b",), needs_approval=True)
    tools = prepared_tools(server, [listed("a", read_only=True), listed("b"), listed("c")], nothing)
    assert [tool.traits for tool in tools.values()] == [
        ToolTraits(read_only=True, approval=True),
        ToolTraits(read_only=True, approval=True),
        ToolTraits(approval=True),
    ]
