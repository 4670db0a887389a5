"""The model clients of all tenants."""

from collections import OrderedDict
from typing import Final

from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.ids import TenantId
from app.domain.tenants import Purpose, Tenant
from app.ports import ModelClient, ModelClients
from app.providers.chain import FallbackChain, ProviderLayer

_CACHED_CHAINS: Final = 4_096


class ChainModelClients(ModelClients):
    """Makes a tenant's chains ready once per revision and keeps the most recently used ones."""

    def __init__(self, layer: ProviderLayer) -> None:
        self._layer = layer
        self._chains: OrderedDict[tuple[TenantId, Purpose, str | None], tuple[int, FallbackChain]] = OrderedDict()

    @override
    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        """See :class:`app.ports.ModelClients`."""
        return self._cached(tenant, Purpose.CHAT, model)

    @override
    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        """See :class:`app.ports.ModelClients`."""
        return self._cached(tenant, purpose if tenant.chains.get(purpose) else Purpose.CHAT, None)

    def _cached(self, tenant: Tenant, purpose: Purpose, model: str | None) -> FallbackChain:
        key = (tenant.id, purpose, model)
        cached = self._chains.get(key)
        if cached is not None and cached[0] == tenant.revision:
            self._chains.move_to_end(key)
            return cached[1]
        chain = self._build(tenant, purpose, model)
        self._chains[key] = (tenant.revision, chain)
        self._chains.move_to_end(key)
        if len(self._chains) > _CACHED_CHAINS:
            self._chains.popitem(last=False)
        return chain

    def _build(self, tenant: Tenant, purpose: Purpose, model: str | None) -> FallbackChain:
        routes = tenant.chains.get(purpose, ())
        if not routes:
            raise InvalidRequestError("This tenant has no chat chain.")
        if model is None:
            return FallbackChain(tenant.id, routes, self._layer)
        chosen = next((route for route in routes if route.model == model), None)
        if chosen is None:
            raise InvalidRequestError("No route of this tenant's chat chain offers this model.", pointer="/model")
        return FallbackChain(tenant.id, (chosen, *(route for route in routes if route is not chosen)), self._layer)
