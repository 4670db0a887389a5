"""Tenants, keys, providers, chains, tools."""

from collections.abc import Sequence
from typing import Protocol

from app.domain.ids import KeyId, TenantId
from app.domain.sessions import Page
from app.domain.tenant_tools import EditTools, WebhookToolSpec
from app.domain.tenants import KeyInfo, Principal, Tenant, TenantChange, TenantInfo, TenantSpec


class TenantStore(Protocol):
    """Tenants, keys, providers, chains. Literal credentials are encrypted before they are written.

    Raises InvalidRequestError for a configuration that cannot work (unknown provider name in a chain, a literal credential without a
    secret key, …).
    """

    async def authenticate(self, key_hash: bytes) -> Principal | None:
        """Who owns the key with this SHA-256; ``None`` when unknown or disabled."""

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        """A tenant, resolved; ``None`` when unknown or disabled."""

    async def apply(self, spec: TenantSpec, *, generate_key: bool, create_only: bool = False) -> tuple[TenantInfo, str | None]:
        """Create the tenant or make it match ``spec``; idempotent. Returns a generated key, shown this once, if it made one.

        Keys are only added. A key is generated when the tenant would have none at all. Raises ConflictError (``tenant_exists``)
        with ``create_only``, ConflictError (``key_taken``) when a key of ``spec`` belongs to another tenant.
        """

    async def change(self, name: str, change: TenantChange) -> TenantInfo | None:
        """Replace parts of a tenant; idempotent; ``None`` when unknown."""

    async def change_tools(self, name: str, edit: EditTools) -> TenantInfo | None:
        """Replace a tenant's tools by what ``edit`` makes of them, with no other change in between; ``None`` when unknown.

        ``edit`` gets them as they are read back. What it raises passes through, and nothing is changed.
        """

    async def infos(self) -> list[TenantInfo]:
        """All tenants, by name."""

    async def page(self, limit: int, after: str | None) -> Page[TenantInfo]:
        """Tenants by name, behind the name ``after``."""

    async def info(self, name: str) -> TenantInfo | None:
        """One tenant."""

    async def set_disabled(self, name: str, disabled: bool) -> bool:
        """Disable or enable a tenant; false when unknown."""

    async def add_key(self, tenant_name: str, name: str) -> tuple[KeyInfo, str] | None:
        """Make a key; returns it with its secret, shown this once; ``None`` when the tenant is unknown."""

    async def rotate_key(self, key_id: KeyId) -> tuple[KeyInfo, str] | None:
        """Make a key in place of another, which is disabled; ``None`` when unknown.

        Raises ConflictError (``key_disabled``) when that one is disabled already: a repeated call must not make a second key.
        """

    async def disable_key(self, key_id: KeyId) -> bool:
        """Disable a key; false when unknown."""


class ToolRules(Protocol):
    """Judges the tools of tenants that only who runs tools can judge."""

    def check(self, tools: Sequence[WebhookToolSpec]) -> None:
        """Raises InvalidRequestError, its pointer beginning with ``/tools``, for a schema that cannot be used or a name that is taken."""
