"""A tenant whose every chain is one scripted model."""

from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.tenants import Purpose, Tenant
from app.ports import ModelClient, ModelClients
from app.tools.auxiliary import Auxiliary
from tests.fakes.scripted_model import ScriptedModel
from tests.fakes.tenants import InMemoryTenants


class ScriptedClients(ModelClients):
    """``asked`` are the purposes of the calls so far; without a model the tenant has no chain."""

    def __init__(self, model: ScriptedModel | None) -> None:
        self._model = model
        self.asked: list[Purpose] = []

    @override
    def for_chat(self, tenant: Tenant, model: str | None) -> ModelClient:
        return self.for_purpose(tenant, Purpose.CHAT)

    @override
    def for_purpose(self, tenant: Tenant, purpose: Purpose) -> ModelClient:
        self.asked.append(purpose)
        if self._model is None:
            raise InvalidRequestError("This tenant has no chat chain.")
        return self._model


def auxiliary_of(clients: ScriptedClients) -> Auxiliary:
    """Auxiliary calls of the tenant ``ten_1``."""
    tenants = InMemoryTenants()
    tenants.add("1", "agw_key")
    return Auxiliary(clients, tenants)
