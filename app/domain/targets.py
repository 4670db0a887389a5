"""Names of what a model call uses: for cool-downs and for rate windows. Digests, so that neither a table nor a log holds a credential.

Cool-downs are a tenant's own, also behind a credential that several tenants use: one tenant's failures never keep another from a
provider. A rate window belongs to whom the credential belongs to: a literal one is its tenant's, one from the environment is the
operator's, so at one address its window holds for all tenants that use it.
"""

import hashlib

import msgspec

from app.domain.delivery import Limit
from app.domain.ids import TenantId
from app.domain.tenants import Provider, Route

_DIGEST_BYTES = 16


class TargetKeys(msgspec.Struct, frozen=True):
    """What a failure of a route can concern: ``key`` the credential, ``key_model`` one model through it, ``route`` the model whatever
    the credential, each at the route's address and for one tenant.
    """

    key: str
    key_model: str
    route: str

    @property
    def all(self) -> tuple[str, str, str]:
        """The three, widest first."""
        return self.key, self.key_model, self.route


def target_keys(tenant_id: TenantId, route: Route) -> TargetKeys:
    """The names of a route for cool-downs: the same for every alias of the same address, credential and model."""
    provider = route.provider
    address = _address(provider)
    credential = (provider.api_key, *(part for header in sorted(provider.headers.items()) for part in header))
    return TargetKeys(
        key="k:" + _digest("key", tenant_id, address, *credential),
        key_model="m:" + _digest("key_model", tenant_id, address, route.model, *credential),
        route="r:" + _digest("route", tenant_id, address, route.model),
    )


def rate_limits(tenant_id: TenantId, route: Route) -> tuple[Limit, ...]:
    """The configured limits that a call of ``route`` must keep: its credential's, then the model's; empty when none is set."""
    provider = route.provider
    limits = []
    if provider.rpm is not None or provider.tpm is not None:
        limits.append(Limit(key=credential_window(tenant_id, provider), rpm=provider.rpm, tpm=provider.tpm))
    if route.rpm is not None or route.tpm is not None:
        limits.append(Limit(key=model_window(tenant_id, route), rpm=route.rpm, tpm=route.tpm))
    return tuple(limits)


def credential_window(tenant_id: TenantId, provider: Provider) -> str:
    """The name of a credential's rate window. Headers stand for the credential of a provider that has no other."""
    return "w:" + _digest("window", _address(provider), *_account(tenant_id, provider))


def model_window(tenant_id: TenantId, route: Route) -> str:
    """The name of the rate window of one model through its credential."""
    return "v:" + _digest("model_window", _address(route.provider), route.model, *_account(tenant_id, route.provider))


def _account(tenant_id: TenantId, provider: Provider) -> tuple[str, ...]:
    if provider.api_key_env is not None:
        return ("env", provider.api_key_env)
    if provider.api_key:
        return ("literal", tenant_id, provider.api_key)
    return ("headers", tenant_id, *(part for header in sorted(provider.headers.items()) for part in header))


def _address(provider: Provider) -> str:
    return provider.base_url.strip().rstrip("/")


def _digest(*parts: str) -> str:
    # Each part with its length, so that no two lists of parts look the same.
    return hashlib.blake2b("".join(f"{len(part)}:{part}" for part in parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()
