"""The registry: the tools of this process, and of each tenant those that its sources add."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from typing_extensions import override

from app.domain.children import DELEGATION_TOOLSET
from app.domain.errors import InvalidRequestError, UnavailableError
from app.domain.guardrails import ToolTraits
from app.domain.messages import ToolCall, ToolSpec
from app.domain.tenants import Tenant
from app.domain.tools import ToolContext, ToolOutcome, refused
from app.ports import Toolbox, Toolboxes
from app.tools.execution import ToolExecutor
from app.tools.schema import ToolConfigurationError
from app.tools.tool import WEB, PreparedTool, RegisteredTool, echo, prepare

ON_REQUEST: Final = frozenset({DELEGATION_TOOLSET, WEB})
"""Toolsets that a session has only when it names them: they reach out, or spend, and their definitions cost tokens in every call."""


class ToolSource(Protocol):
    """Tools that a tenant has beside those of the process: its webhooks, its MCP servers.

    Their names never are those of the process' tools, which come first.
    """

    def toolset_names(self, tenant: Tenant) -> tuple[str, ...]:
        """The toolsets that the source adds for ``tenant``. No I/O."""

    async def tools(self, tenant: Tenant, toolset: str) -> Sequence[PreparedTool]:
        """The tools of one of them. Raises UnavailableError (``toolset_unavailable``) when they cannot be listed."""

    async def find(self, tenant: Tenant, name: str) -> PreparedTool | None:
        """One tool, whatever its toolset; ``None`` when the source has none of that name. Never raises."""

    def traits(self, tenant: Tenant) -> Mapping[str, ToolTraits]:
        """The traits of those tools that have any, as far as they are known now. No I/O."""


class ToolRegistry(Toolbox, Toolboxes):
    """The tools of this process. Fixed once built; ``sources`` add those of tenants.

    ``patience_s`` is what listing a toolset may take where nobody asked for it by name.
    """

    def __init__(
        self, tools: Iterable[RegisteredTool], executor: ToolExecutor, sources: Sequence[ToolSource] = (), *, patience_s: float = 5.0
    ) -> None:
        """Raises ToolConfigurationError for a tool that cannot be offered, or a name that is taken."""
        self._executor = executor
        self._sources = sources
        self.patience_s = patience_s
        self._tools: dict[str, PreparedTool] = {}
        for tool in tools:
            self._register(tool)
        self._traits = {name: tool.traits for name, tool in self._tools.items()}

    @override
    def for_tenant(self, tenant: Tenant) -> Toolbox:
        sources = tuple(source for source in self._sources if source.toolset_names(tenant))
        return _TenantToolbox(self, sources, tenant, self._executor) if sources else self

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return tuple(sorted({tool.toolset for tool in self._tools.values()}))

    @override
    def default_toolsets(self) -> tuple[str, ...]:
        return _default(self.toolset_names())

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        wanted = frozenset(toolsets)
        _check_known(wanted, self.toolset_names())
        return self.own_specs(wanted)

    def own_specs(self, toolsets: frozenset[str]) -> tuple[ToolSpec, ...]:
        """The process' tools of these toolsets, sorted by name; unknown ones are passed over."""
        return tuple(self._tools[name].spec for name in sorted(self._tools) if self._tools[name].toolset in toolsets)

    @override
    def traits(self) -> Mapping[str, ToolTraits]:
        return self._traits

    def find(self, name: str) -> PreparedTool | None:
        """A tool of the process."""
        return self._tools.get(name)

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Run one call. Never raises for what the tool or the model did; cancellation passes through once the tool has ended."""
        tool = self._tools.get(call.name) if call.name in context.enabled else None
        if tool is None:
            return unknown(call.name, context.enabled.intersection(self._tools))
        return await run_tool(self._executor, tool, call, context)

    def _register(self, tool: RegisteredTool) -> None:
        taken = self._tools.get(tool.name)
        if taken is not None:
            raise ToolConfigurationError(f"Tool {echo(tool.name)} ({tool.origin}): the name is taken ({taken.origin})")
        self._tools[tool.name] = prepare(tool)


class _TenantToolbox(Toolbox):
    """The process' tools and those that ``sources`` add for one tenant."""

    def __init__(self, registry: ToolRegistry, sources: Sequence[ToolSource], tenant: Tenant, executor: ToolExecutor) -> None:
        self._registry = registry
        self._sources = sources
        self._tenant = tenant
        self._executor = executor

    @override
    def toolset_names(self) -> tuple[str, ...]:
        added = (name for source in self._sources for name in source.toolset_names(self._tenant))
        return tuple(sorted({*self._registry.toolset_names(), *added}))

    @override
    def default_toolsets(self) -> tuple[str, ...]:
        return _default(self.toolset_names())

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        wanted = frozenset(toolsets)
        _check_known(wanted, self.toolset_names())
        listed = await self._listed(wanted)
        for tools in listed.values():
            if isinstance(tools, UnavailableError):
                raise tools
        return self._specs(wanted, listed)

    @override
    async def available(self) -> tuple[tuple[str, ...], tuple[ToolSpec, ...]]:
        wanted = self.default_toolsets()
        listed = await self._listed(frozenset(wanted), self._registry.patience_s)
        gone = {toolset for toolset, tools in listed.items() if isinstance(tools, UnavailableError)}
        names = tuple(name for name in wanted if name not in gone)
        return names, self._specs(frozenset(names), listed)

    @override
    def traits(self) -> Mapping[str, ToolTraits]:
        return _Layers((self._registry.traits(), *(source.traits(self._tenant) for source in self._sources)))

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        tool = await self._find(call.name) if call.name in context.enabled else None
        if tool is None:
            return unknown(call.name, context.enabled)
        return await run_tool(self._executor, tool, call, context)

    async def _listed(
        self, wanted: frozenset[str], patience_s: float | None = None
    ) -> dict[str, Sequence[PreparedTool] | UnavailableError]:
        """The tools that sources add with these toolsets, or why they cannot be listed. A slow source keeps no other one waiting."""
        added: dict[str, ToolSource] = {}
        for source in self._sources:
            for name in source.toolset_names(self._tenant):
                if name in wanted:
                    added.setdefault(name, source)
        return dict(
            zip(added, await asyncio.gather(*(self._tools(source, name, patience_s) for name, source in added.items())), strict=True)
        )

    async def _tools(self, source: ToolSource, toolset: str, patience_s: float | None) -> Sequence[PreparedTool] | UnavailableError:
        try:
            async with asyncio.timeout(patience_s):
                return await source.tools(self._tenant, toolset)
        except TimeoutError:
            return UnavailableError("toolset_unavailable", f"The toolset {toolset} took too long.")
        except UnavailableError as error:
            return error

    def _specs(self, wanted: frozenset[str], listed: Mapping[str, Sequence[PreparedTool] | UnavailableError]) -> tuple[ToolSpec, ...]:
        found = {spec.name: spec for spec in self._registry.own_specs(wanted)}
        for tools in listed.values():
            for tool in () if isinstance(tools, UnavailableError) else tools:
                # What could not be called under its name must not be shown under it either.
                if self._registry.find(tool.spec.name) is None:
                    found.setdefault(tool.spec.name, tool.spec)
        return tuple(found[name] for name in sorted(found))

    async def _find(self, name: str) -> PreparedTool | None:
        tool = self._registry.find(name)
        for source in self._sources:
            if tool is not None:
                break
            tool = await source.find(self._tenant, name)
        return tool


def _default(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in ON_REQUEST)


class _Layers(Mapping[str, ToolTraits]):
    """The first of several mappings that has a name counts. A mapping may know names that it does not list."""

    def __init__(self, layers: Sequence[Mapping[str, ToolTraits]]) -> None:
        self._layers = layers

    @override
    def __getitem__(self, name: str) -> ToolTraits:
        for layer in self._layers:
            if (traits := layer.get(name)) is not None:
                return traits
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for layer in self._layers for name in layer))

    @override
    def __len__(self) -> int:
        return len(dict.fromkeys(name for layer in self._layers for name in layer))


async def run_tool(executor: ToolExecutor, tool: PreparedTool, call: ToolCall, context: ToolContext) -> ToolOutcome:
    """Run one call of a tool that was found; its outcome says where the tool is from."""
    outcome = await executor.run(tool, call, msgspec.structs.replace(context, call_id=call.id))
    return msgspec.structs.replace(outcome, toolset=tool.toolset)


def unknown(name: str, available: Iterable[str]) -> ToolOutcome:
    """The result of a call of a tool that the session does not have."""
    names = sorted(available)
    listed = f"Available tools: {', '.join(names)}." if names else "No tools are available in this session."
    return refused(f"There is no tool {echo(name)}. {listed}")


def _check_known(wanted: frozenset[str], known: Sequence[str]) -> None:
    for toolset in sorted(wanted.difference(known)):
        raise InvalidRequestError(f"Unknown toolset {echo(toolset)}; available: {', '.join(known)}.", pointer="/toolsets")
