"""The operator's own tools."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.tools.execution import ToolExecutor
from app.tools.operator import Tool, load_operator_tools
from app.tools.pool import ToolPool
from app.tools.registry import ToolRegistry
from app.tools.schema import ToolConfigurationError
from tests.fakes.tooling import shop
from tests.fakes.tooling.builders import call_of, context_of

SHOP = "tests.fakes.tooling.shop"


@pytest.fixture
def pool() -> Iterator[ToolPool]:
    pool = ToolPool(2)
    yield pool
    pool.close()


@pytest.fixture
def registry(pool: ToolPool) -> ToolRegistry:
    return ToolRegistry(load_operator_tools(f" {SHOP} ,, {SHOP}", pool), ToolExecutor(5))


async def call(registry: ToolRegistry, name: str, arguments: str) -> str:
    outcome = await registry.call(call_of(name, arguments), context_of(name))
    return outcome.output


async def test_modules_are_listed_in_the_toolset_operator(registry: ToolRegistry) -> None:
    assert registry.toolset_names() == ("operator",)
    specs = {spec.name: spec for spec in await registry.specs(["operator"])}
    assert list(specs) == ["greet", "order", "order_later", "stock", "who-is-it"]
    assert specs["stock"].description == "How many pieces of an article are there."
    assert specs["order"].description == "Order it."
    assert specs["order"].parameters == shop.ARTICLE


def test_no_modules_no_tools(pool: ToolPool) -> None:
    assert load_operator_tools("", pool) == ()


async def test_sync_functions_run_on_a_thread_and_async_ones_on_the_loop(registry: ToolRegistry) -> None:
    assert await call(registry, "stock", '{"article":"pen"}') == '{"article":"pen","main_thread":false,"pieces":3}'
    assert await call(registry, "order", '{"article":"pen"}') == "pen for ten_1 on True"
    assert await call(registry, "order_later", '{"article":"pen"}') == "pen for ten_1 on True"
    assert await call(registry, "greet", "{}") == "hello you"


async def test_a_function_that_asks_for_it_gets_the_context_and_the_callers_variables(registry: ToolRegistry) -> None:
    shop.request_id.set("req_1")
    assert await call(registry, "who-is-it", "{}") == "sess_1 req_1"


async def test_an_argument_the_function_does_not_know_is_a_failed_result(registry: ToolRegistry) -> None:
    assert "unexpected keyword argument 'colour'" in await call(registry, "stock", '{"article":"pen","colour":"red"}')


MODULES = {
    "import_fails": ("import no_such_module_of_anybody", "cannot be imported: ModuleNotFoundError"),
    "import_raises": ("raise ValueError('at import')", "cannot be imported: ValueError: at import"),
    "no_tools": ("x = 1", "has no list TOOLS"),
    "wrong_tools": ("TOOLS = [print]", "TOOLS holds a builtin_function_or_method"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_be_used_is_named_at_start(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: ToolPool) -> None:
    source, reason = MODULES[name]
    (tmp_path / f"gateway_test_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolConfigurationError) as refused:
        load_operator_tools(f"gateway_test_{name}", pool)
    assert f"gateway_test_{name} {reason}" in str(refused.value) or f"gateway_test_{name}: {reason}" in str(refused.value)


def needs(a: str) -> str:
    """Needs a."""
    return a


def positional(a: str, /) -> str:
    """Positional."""
    return a


def numbers() -> Iterator[int]:
    """Yields."""
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    """Yields."""
    yield 1


def undescribed() -> None: ...


OBJECT: dict[str, Any] = {"type": "object"}
A: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
TOOLS: list[Tool] = []


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (Tool(needs, OBJECT), "parameter 'a' has no default, so the schema has to require it"),
        (Tool(needs, A | {"properties": {"a": {}, "b": {}}}), "no parameter 'b'"),
        (Tool(needs, A | {"properties": {"a": {}, "context": {}}}), "a property 'context'"),
        (Tool(needs, {"type": "object", "properties": 3}), "not a valid JSON schema"),
        (Tool(needs, {"type": "string"}), '"type": "object"'),
        (Tool(positional, A), "positional-only"),
        (Tool(numbers, OBJECT), "is a generator"),
        (Tool(async_numbers, OBJECT), "is a generator"),
        (Tool(undescribed, OBJECT), "no description"),
        (Tool(lambda: 1, OBJECT, description="A lambda."), "1 to 64 letters"),
        (Tool(dict, OBJECT, description="A type."), "no signature"),
    ],
)
def test_a_tool_that_could_not_be_called_is_refused_at_start(tool: Tool, reason: str, pool: ToolPool) -> None:
    TOOLS[:] = [tool]
    with pytest.raises(ToolConfigurationError) as refused:
        ToolRegistry(load_operator_tools(__name__, pool), ToolExecutor(1))
    assert reason in str(refused.value)
    assert f"(module {__name__})" in str(refused.value)
