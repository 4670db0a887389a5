"""The tool ``clarify``, as it is offered, and its calls that nobody can be asked with."""

import json
from typing import Any

import pytest

from app.domain.guardrails import ToolTraits
from app.tools.builtin.clarify import clarify_tool
from app.tools.execution import ToolExecutor
from app.tools.registry import ToolRegistry
from tests.fakes.tooling.builders import call_of, context_of

REGISTRY = ToolRegistry([clarify_tool()], ToolExecutor(5))


def test_it_asks_somebody_and_belongs_to_the_core() -> None:
    assert REGISTRY.toolset_names() == ("core",)
    assert REGISTRY.traits() == {"clarify": ToolTraits(interactive=True)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "'question' is a required property"),
        ({"question": ""}, "question"),
        ({"question": "x" * 4_001}, "question"),
        ({"question": "Which?", "choices": ["a", "b", "c", "d", "e"]}, "choices"),
        ({"question": "Which?", "choices": [""]}, "choices"),
        ({"question": "  "}, "Nobody was asked"),
        ({"question": "Which?"}, "Nobody was asked"),
    ],
    ids=["nothing", "empty", "long", "too many choices", "empty choice", "blank", "nobody there"],
)
async def test_a_call_that_comes_to_the_tool_is_a_failure_that_says_why(arguments: dict[str, Any], told: str) -> None:
    outcome = await REGISTRY.call(call_of("clarify", json.dumps(arguments)), context_of("clarify"))
    assert outcome.is_error
    assert told in outcome.output
