"""Webhook tools: what a tenant configured, as tools of its sessions (toolset ``webhooks``)."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.guardrails import NO_TRAITS, ToolTraits
from app.domain.ids import TenantId
from app.domain.tenant_tools import WEBHOOKS_TOOLSET, WebhookTool, WebhookToolSpec
from app.domain.tenants import Tenant
from app.domain.tools import ToolContext
from app.ports import ToolRules
from app.tools.registry import ToolSource
from app.tools.schema import ParameterSchema, ToolConfigurationError
from app.tools.tool import Handler, PreparedTool, RegisteredTool, prepare
from app.tools.webhook_call import WebhookCaller

_CACHED_TENANTS: Final = 1_024
_ORIGIN: Final = "webhook"
_MARGIN_S: Final = 1.0
"""The call ends itself at its time, with a better text than the executor's."""

logger = logging.getLogger(__name__)


class WebhookSource(ToolSource):
    """The webhook tools of every tenant, made ready once per revision of the tenant."""

    def __init__(self, caller: WebhookCaller) -> None:
        self._caller = caller
        self._prepared: OrderedDict[TenantId, tuple[int, dict[str, PreparedTool]]] = OrderedDict()

    @override
    def toolset_names(self, tenant: Tenant) -> tuple[str, ...]:
        return (WEBHOOKS_TOOLSET,) if tenant.webhook_tools else ()

    @override
    async def tools(self, tenant: Tenant, toolset: str) -> Sequence[PreparedTool]:
        return tuple(self._of(tenant).values())

    @override
    async def find(self, tenant: Tenant, name: str) -> PreparedTool | None:
        return self._of(tenant).get(name)

    @override
    def traits(self, tenant: Tenant) -> Mapping[str, ToolTraits]:
        return {name: tool.traits for name, tool in self._of(tenant).items() if tool.traits != NO_TRAITS}

    def _of(self, tenant: Tenant) -> dict[str, PreparedTool]:
        cached = self._prepared.get(tenant.id)
        if cached is None or cached[0] != tenant.revision:
            cached = (tenant.revision, self._make(tenant))
            self._prepared[tenant.id] = cached
        self._prepared.move_to_end(tenant.id)
        if len(self._prepared) > _CACHED_TENANTS:
            self._prepared.popitem(last=False)
        return cached[1]

    def _make(self, tenant: Tenant) -> dict[str, PreparedTool]:
        made = {}
        for tool in tenant.webhook_tools:
            try:
                made[tool.name] = prepare(_registered(tool, self._handler(tool, tenant.name)))
            except ToolConfigurationError as error:
                logger.warning("a tool of tenant %s is left out: %s", tenant.name, error)
        return made

    def _handler(self, tool: WebhookTool, tenant_name: str) -> Handler:
        async def run(arguments: dict[str, Any], context: ToolContext) -> object:
            return await self._caller.call(tool, arguments, context, tenant=tenant_name)

        return run


class WebhookRules(ToolRules):
    """Judges webhook tools before they are stored. ``taken`` gives the names of the process' own tools, asked for at each check."""

    def __init__(self, taken: Callable[[], Collection[str]]) -> None:
        self._taken = taken

    @override
    def check(self, tools: Sequence[WebhookToolSpec]) -> None:
        taken = self._taken() if tools else ()
        for index, tool in enumerate(tools):
            if tool.name in taken:
                raise InvalidRequestError(f"The gateway has a tool named {tool.name} itself.", pointer=f"/tools/{index}/name")
            try:
                document = ParameterSchema(tool.parameters).document
            except ToolConfigurationError as error:
                raise InvalidRequestError(
                    f"The tool {tool.name} cannot be offered: {error}.", pointer=f"/tools/{index}/parameters"
                ) from None
            _check_secret_arguments(tool, document, f"/tools/{index}/secret_arguments")


def _check_secret_arguments(tool: WebhookToolSpec, document: dict[str, Any], pointer: str) -> None:
    properties = document.get("properties", {})
    for name in tool.secret_arguments:
        if name not in properties:
            raise InvalidRequestError(f"The tool {tool.name} has no parameter {name[:64]!r}.", pointer=pointer)


def _registered(tool: WebhookTool, handler: Handler) -> RegisteredTool:
    return RegisteredTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        handler=handler,
        toolset=WEBHOOKS_TOOLSET,
        origin=_ORIGIN,
        traits=ToolTraits(read_only=tool.read_only, polling=tool.polling, approval=tool.needs_approval),
        timeout_s=tool.timeout_s + _MARGIN_S,
        secret_arguments=frozenset(tool.secret_arguments),
        foreign=True,
    )
