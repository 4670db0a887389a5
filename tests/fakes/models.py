"""Models that nobody calls: :class:`app.ports.ModelClients` as far as the choice of a route goes."""

from collections.abc import AsyncIterator, Sequence

from app.domain.errors import InvalidRequestError, ModelUnavailableError
from app.domain.model import FailureReason, ModelChunk, ModelRequest, RouteRef
from app.domain.tenants import Purpose, Tenant


class SilentModel:
    """A route that never answers."""

    def __init__(self, route: RouteRef) -> None:
        self._route = route

    @property
    def primary(self) -> RouteRef:
        return self._route

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[ModelChunk]]:
        raise ModelUnavailableError(FailureReason.CONNECT_FAILED, "There is no provider.", ())
        yield ()


class SilentModels:
    """The chains of tenants, each route silent."""

    def for_chat(self, tenant: Tenant, model: str | None) -> SilentModel:
        for route in tenant.chains.get(Purpose.CHAT, ()):
            if model in (None, route.model):
                return SilentModel(route.ref)
        raise InvalidRequestError("The chain has no such model.")
