"""MCP servers as sources of tools: one toolset for each server of a tenant, and for each of the operator's."""

import math
from collections.abc import Iterator, Mapping, Sequence

from typing_extensions import override

from app.domain.errors import UnavailableError
from app.domain.guardrails import ToolTraits
from app.domain.tenants import Tenant
from app.tools.mcp_names import server_of
from app.tools.mcp_pool import McpPool
from app.tools.mcp_session import McpProgram, McpUnavailableError, Target, toolset_of
from app.tools.mcp_tools import traits_of, unlisted_tool
from app.tools.registry import ToolSource
from app.tools.tool import PreparedTool

_UNUSABLE = "Its credential or a header is not to be had."


class McpSource(ToolSource):
    """``programs`` are the operator's servers, there for every tenant: a tenant's server with the name of one of them is not used."""

    def __init__(self, pool: McpPool, programs: Sequence[McpProgram] = ()) -> None:
        self._pool = pool
        self._programs = {program.name: program for program in programs}

    @override
    def toolset_names(self, tenant: Tenant) -> tuple[str, ...]:
        return tuple(toolset_of(target) for target in self._targets(tenant).values())

    @override
    async def tools(self, tenant: Tenant, toolset: str) -> Sequence[PreparedTool]:
        target = next(target for target in self._targets(tenant).values() if toolset_of(target) == toolset)
        try:
            return tuple((await self._tools(tenant, target)).values())
        except McpUnavailableError as error:
            detail = f"The toolset {toolset} is not available: its MCP server cannot be used now. {error.reason}"
            raise UnavailableError("toolset_unavailable", detail, retry_after_s=max(1, math.ceil(error.retry_after_s))) from error

    @override
    async def find(self, tenant: Tenant, name: str) -> PreparedTool | None:
        target = self._target_of(tenant, name)
        if target is None:
            return None
        try:
            return (await self._tools(tenant, target)).get(name)
        except McpUnavailableError as error:
            known = self._known(tenant, target).get(name)
            # What was listed before may still work, and says so itself if it does not.
            return unlisted_tool(target, name, error.reason) if known is None else known

    @override
    def traits(self, tenant: Tenant) -> Mapping[str, ToolTraits]:
        return _Traits(self, tenant)

    def traits_of(self, tenant: Tenant, name: str) -> ToolTraits | None:
        """What is known now of one tool, also of one that was not listed yet."""
        target = self._target_of(tenant, name)
        if target is None:
            return None
        tool = self._known(tenant, target).get(name)
        return traits_of(target, read_only=False) if tool is None else tool.traits

    def known_names(self, tenant: Tenant) -> tuple[str, ...]:
        """The tools that were listed."""
        return tuple(name for target in self._targets(tenant).values() for name in self._known(tenant, target))

    def _targets(self, tenant: Tenant) -> dict[str, Target]:
        return {**{server.name: server for server in tenant.mcp_servers}, **self._programs}

    def _target_of(self, tenant: Tenant, name: str) -> Target | None:
        server = server_of(name)
        return None if server is None else self._targets(tenant).get(server)

    async def _tools(self, tenant: Tenant, target: Target) -> Mapping[str, PreparedTool]:
        if not isinstance(target, McpProgram) and not target.usable:
            raise McpUnavailableError(_UNUSABLE)
        return await self._pool.of(tenant.id, target).tools()

    def _known(self, tenant: Tenant, target: Target) -> Mapping[str, PreparedTool]:
        connection = self._pool.existing(tenant.id, target)
        return (None if connection is None else connection.known) or {}


class _Traits(Mapping[str, ToolTraits]):
    """By name, also of tools that were not listed in this process: whether a call needs an approval must not depend on that."""

    def __init__(self, source: McpSource, tenant: Tenant) -> None:
        self._source = source
        self._tenant = tenant

    @override
    def __getitem__(self, name: str) -> ToolTraits:
        traits = self._source.traits_of(self._tenant, name)
        if traits is None:
            raise KeyError(name)
        return traits

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._source.known_names(self._tenant))

    @override
    def __len__(self) -> int:
        return len(self._source.known_names(self._tenant))
