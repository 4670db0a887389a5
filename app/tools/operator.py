"""The operator's own tools, from the Python modules that ``GATEWAY_TOOL_MODULES`` names.

A module has a list ``TOOLS``::

    from app.tools.operator import Tool

    def stock(article: str, warehouse: str = "main") -> dict[str, int]:
        \"\"\"How many pieces of an article are in a warehouse.\"\"\"
        return {"pieces": look_up(article, warehouse)}

    TOOLS = [
        Tool(stock, parameters={
            "type": "object",
            "properties": {"article": {"type": "string"}, "warehouse": {"type": "string"}},
            "required": ["article"],
        }),
    ]

- The function is called with the arguments as keywords, after they were checked against ``parameters`` (JSON schema, draft 2020-12).
- ``async def`` functions run on the event loop and must not block it; all others run on a pool of threads.
- A function with a parameter ``context`` is given the call's :class:`app.domain.tools.ToolContext` (tenant, session, turn).
- It returns text or anything JSON can show. An exception becomes a failed result: its type and message, without credentials and paths.
- A call that is interrupted or takes longer than ``GATEWAY_TOOL_TIMEOUT_S`` is cancelled; a thread cannot be, so its result is dropped.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.domain.guardrails import ToolTraits
from app.domain.tools import ToolContext
from app.tools.pool import ToolPool
from app.tools.schema import ParameterSchema, ToolConfigurationError
from app.tools.tool import OPERATOR, Handler, RegisteredTool

_CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as a tool. Without ``name`` it has the function's, without ``description`` the function's docstring.

    ``read_only``: it changes nothing, so the same call with the same result is taken for no progress. ``polling``: it watches something
    that changes by itself, so it may be asked again and again. ``needs_approval``: each call waits until somebody allows it; in calls
    over the OpenAI facades, where nobody can, the tool is not offered. ``secret_arguments`` are names of arguments that no log and no event
    shows, beside those that the schema marks by ``"format": "password"`` or ``"writeOnly": true``.
    """

    function: Callable[..., object]
    parameters: dict[str, Any]
    name: str | None = None
    description: str | None = None
    read_only: bool = False
    polling: bool = False
    needs_approval: bool = False
    secret_arguments: Sequence[str] = ()


def load_operator_tools(modules: str, pool: ToolPool) -> tuple[RegisteredTool, ...]:
    """The tools of the comma-separated import paths ``modules``, in that order; none for an empty string.

    Raises ToolConfigurationError, naming the module, when one cannot be imported or a tool in it cannot be called.
    """
    names = dict.fromkeys(name.strip() for name in modules.split(",") if name.strip())
    return tuple(_registered(tool, name, pool) for name in names for tool in _tools_of(name))


def _tools_of(module_name: str) -> Iterable[Tool]:
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Importing runs the operator's code: anything can come out of it.
        raise ToolConfigurationError(f"Tool module {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    tools = getattr(module, "TOOLS", None)
    if not isinstance(tools, list | tuple):
        raise ToolConfigurationError(f"Tool module {module_name} has no list TOOLS")
    for tool in tools:
        if not isinstance(tool, Tool):
            raise ToolConfigurationError(f"Tool module {module_name}: TOOLS holds a {type(tool).__name__}, not an app.tools.operator.Tool")
    return tools


def _registered(tool: Tool, module_name: str, pool: ToolPool) -> RegisteredTool:
    name = tool.name or str(getattr(tool.function, "__name__", ""))
    origin = f"module {module_name}"
    try:
        takes_context = _check(tool)
    except ToolConfigurationError as error:
        raise ToolConfigurationError(f"Tool {name!r} ({origin}): {error}") from error
    return RegisteredTool(
        name=name,
        description=tool.description or inspect.getdoc(tool.function) or "",
        parameters=tool.parameters,
        handler=_handler(tool.function, pool, takes_context=takes_context),
        toolset=OPERATOR,
        origin=origin,
        traits=ToolTraits(read_only=tool.read_only, polling=tool.polling, approval=tool.needs_approval),
        secret_arguments=frozenset(tool.secret_arguments),
    )


def _handler(function: Callable[..., object], pool: ToolPool, *, takes_context: bool) -> Handler:
    on_loop = _has_kind(function, inspect.iscoroutinefunction)

    async def run(arguments: dict[str, Any], context: ToolContext) -> object:
        extra = {_CONTEXT: context} if takes_context else {}
        call = partial(function, **arguments, **extra)
        result = call() if on_loop else await pool.run(call)
        return await result if inspect.isawaitable(result) else result

    return run


def _check(tool: Tool) -> bool:
    """Whether the function wants the context. Raises ToolConfigurationError when it cannot be called with what its schema allows."""
    function = tool.function
    if _has_kind(function, inspect.isgeneratorfunction) or _has_kind(function, inspect.isasyncgenfunction):
        raise ToolConfigurationError("its function is a generator; return the whole result")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ToolConfigurationError(f"its function has no signature that can be read: {error}") from error
    schema = ParameterSchema(tool.parameters).document
    _check_fit(parameters.values(), schema)
    for name in tool.secret_arguments:
        if name not in schema.get("properties", {}):
            raise ToolConfigurationError(f"its secret argument {name!r} is not in the schema")
    return _CONTEXT in parameters


def _check_fit(parameters: Iterable[inspect.Parameter], schema: dict[str, Any]) -> None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if _CONTEXT in properties:
        raise ToolConfigurationError("its schema has a property 'context', a name kept for the call's ToolContext")
    takes_any, named = False, set()
    for parameter in parameters:
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                takes_any = True
            case inspect.Parameter.POSITIONAL_ONLY:
                raise ToolConfigurationError(f"its parameter {parameter.name!r} is positional-only; arguments are passed as keywords")
            case inspect.Parameter.POSITIONAL_OR_KEYWORD | inspect.Parameter.KEYWORD_ONLY:
                named.add(parameter.name)
                if parameter.default is parameter.empty and parameter.name not in {_CONTEXT, *required}:
                    raise ToolConfigurationError(f"its parameter {parameter.name!r} has no default, so the schema has to require it")
            case _:
                pass
    if not takes_any and (surplus := sorted(set(properties).difference(named))):
        raise ToolConfigurationError(f"its function has no parameter {surplus[0]!r}, which is in the schema")


def _has_kind(function: Callable[..., object], kind: Callable[[object], bool]) -> bool:
    """Whether a function, or the ``__call__`` of an object in its place, is of a kind."""
    return kind(function) or kind(type(function).__call__)
