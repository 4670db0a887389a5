"""Tenants in memory: :class:`app.ports.TenantStore` as far as authentication goes; what the operator does to tenants is not in it."""

import hashlib

from typing_extensions import override

from app.domain.ids import KeyId, ProviderId, TenantId
from app.domain.model import ApiMode
from app.domain.sessions import Page
from app.domain.tenant_tools import EditTools
from app.domain.tenants import KeyInfo, Principal, Provider, Purpose, Route, Tenant, TenantChange, TenantInfo, TenantSettings, TenantSpec
from app.ports import TenantStore


class InMemoryTenants(TenantStore):
    """Tenants by the keys that they were made with."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, Principal] = {}

    def add(self, name: str, api_key: str, *, models: tuple[str, ...] = ("m-test",), settings: TenantSettings | None = None) -> Tenant:
        """A tenant with a chain of ``models``."""
        provider = Provider(
            id=ProviderId(f"prov_{name}"),
            name="primary",
            api_mode=ApiMode.CHAT_COMPLETIONS,
            base_url="http://127.0.0.1:9/v1",
            api_key="sk-test",
            headers={},
        )
        routes = tuple(Route(provider=provider, model=model) for model in models)
        tenant = Tenant(
            id=TenantId(f"ten_{name}"), name=name, revision=1, settings=settings or TenantSettings(), chains={Purpose.CHAT: routes}
        )
        self._by_hash[hashlib.sha256(api_key.encode()).digest()] = Principal(tenant=tenant, key_id=KeyId(f"key_{name}"))
        return tenant

    def forget(self, tenant: Tenant) -> None:
        """Nobody finds the tenant any more."""
        self._by_hash = {key_hash: entry for key_hash, entry in self._by_hash.items() if entry.tenant.id != tenant.id}

    @override
    async def authenticate(self, key_hash: bytes) -> Principal | None:
        return self._by_hash.get(key_hash)

    @override
    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        return next((entry.tenant for entry in self._by_hash.values() if entry.tenant.id == tenant_id), None)

    @override
    async def apply(self, spec: TenantSpec, *, generate_key: bool, create_only: bool = False) -> tuple[TenantInfo, str | None]:
        raise NotImplementedError

    @override
    async def change(self, name: str, change: TenantChange) -> TenantInfo | None:
        raise NotImplementedError

    @override
    async def change_tools(self, name: str, edit: EditTools) -> TenantInfo | None:
        raise NotImplementedError

    @override
    async def infos(self) -> list[TenantInfo]:
        return []

    @override
    async def page(self, limit: int, after: str | None) -> Page[TenantInfo]:
        return Page(data=(), next_cursor=None)

    @override
    async def info(self, name: str) -> TenantInfo | None:
        return None

    @override
    async def set_disabled(self, name: str, disabled: bool) -> bool:
        return False

    @override
    async def add_key(self, tenant_name: str, name: str) -> tuple[KeyInfo, str] | None:
        return None

    @override
    async def rotate_key(self, key_id: KeyId) -> tuple[KeyInfo, str] | None:
        return None

    @override
    async def disable_key(self, key_id: KeyId) -> bool:
        return False
