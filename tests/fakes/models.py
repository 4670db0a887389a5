"""Models that nobody calls: :class:`app.ports.ModelClients` as far as the choice of a route goes."""

from collections.abc import AsyncGenerator, Sequence

from typing_extensions import override

from app.domain.compaction import Room
from app.domain.errors import InvalidRequestError, ModelUnavailableError
from app.domain.model import FailureReason, ModelChunk, ModelRequest, RouteRef, Usage
from app.domain.tenants import Purpose, Tenant
from app.ports import ModelClient, ModelClients


class SilentModel(ModelClient):
    """A route that never answers."""

    def __init__(self, route: RouteRef) -> None:
        self._route = route

    @property
    @override
    def primary(self) -> RouteRef:
        return self._route

    @property
    @override
    def room(self) -> Room:
        return Room(window=131_072, output_tokens=4_096)

    @override
    def cost_usd(self, route: RouteRef, usage: Usage) -> float | None:
        return None

    @override
    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[ModelChunk], None]:
        raise ModelUnavailableError(FailureReason.CONNECT_FAILED, "There is no provider.")
        yield ()


class SilentModels(ModelClients):
    """The chains of tenants, each route silent."""

    @override
    def for_chat(self, tenant: Tenant, model: str | None) -> SilentModel:
        for route in tenant.chains.get(Purpose.CHAT, ()):
            if model in (None, route.model):
                return SilentModel(route.ref)
        raise InvalidRequestError("The chain has no such model.")

    @override
    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> SilentModel:
        return self.for_chat(tenant, None)
