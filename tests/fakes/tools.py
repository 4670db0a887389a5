"""Tools in memory: :class:`app.ports.Toolbox`."""

from collections.abc import Iterable

from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.messages import ToolCall, ToolSpec
from app.domain.tenants import Tenant
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import Toolbox, Toolboxes


class InMemoryToolbox(Toolbox, Toolboxes):
    """Toolsets of tools that answer with their own name."""

    def __init__(self, toolsets: dict[str, tuple[str, ...]]) -> None:
        self._toolsets = toolsets

    @override
    def for_tenant(self, tenant: Tenant) -> Toolbox:
        return self

    @override
    def toolset_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._toolsets))

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        names: set[str] = set()
        for toolset in toolsets:
            if toolset not in self._toolsets:
                raise InvalidRequestError("There is no such toolset.")
            names.update(self._toolsets[toolset])
        return tuple(ToolSpec(name=name, description=f"Does {name}.", parameters={"type": "object"}) for name in sorted(names))

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        return ToolOutcome(output=call.name)
