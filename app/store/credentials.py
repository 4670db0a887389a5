"""Providers' credentials between configuration, storage and use."""

import logging
from collections.abc import Mapping

from app.domain.ids import ProviderId
from app.domain.tenants import CredentialState, Provider, ProviderSpec
from app.store.sealed_secrets import Given, Sealed, SealedSecrets
from app.store.secrets import Sealer
from app.store.tenant_rows import StoredProvider

logger = logging.getLogger(__name__)


class Credentials:
    """Resolves, seals and masks credentials. ``environ`` is what ``env:NAME`` refers to."""

    def __init__(self, sealer: Sealer, environ: Mapping[str, str]) -> None:
        self.secrets = SealedSecrets(sealer, environ)
        self._reported: set[tuple[ProviderId, CredentialState]] = set()

    def variable(self, name: str) -> str:
        """The variable's value without surrounding whitespace; empty when unset."""
        return self.secrets.variable(name)

    def resolve(self, stored: StoredProvider, tenant_name: str) -> Provider:
        """The provider as it is called.

        A credential that is missing or unreadable is left empty and logged once: its calls are refused by the provider, and the
        tenant's other routes, and all other tenants, go on.
        """
        sealed = _sealed(stored)
        api_key, state = self.secrets.secret(sealed)
        headers = self.secrets.headers(sealed)
        if headers is None:
            headers, state = {}, CredentialState.UNREADABLE
        if state in {CredentialState.MISSING, CredentialState.UNREADABLE} and (stored.id, state) not in self._reported:
            self._reported.add((stored.id, state))
            logger.warning("the credential of provider %s of tenant %s is %s", stored.name, tenant_name, state.value)
        return Provider(
            id=stored.id,
            name=stored.name,
            api_mode=stored.api_mode,
            base_url=stored.base_url,
            api_key=api_key,
            headers=headers,
            api_key_env=stored.api_key_env,
        )

    def state(self, stored: StoredProvider) -> CredentialState:
        """Where the provider's credential stands."""
        return self.secrets.state(_sealed(stored))

    def spec(self, stored: StoredProvider) -> ProviderSpec:
        """The provider as its owner may read it back: no secret in it."""
        api_key, headers = self.secrets.shown(_sealed(stored))
        return ProviderSpec(name=stored.name, base_url=stored.base_url, api_mode=stored.api_mode, api_key=api_key, headers=headers)

    def store(self, spec: ProviderSpec, stored: StoredProvider | None, new_id: ProviderId, pointer: str) -> StoredProvider:
        """``spec`` as a row, with what it keeps of ``stored``. Equal to ``stored`` when nothing changes.

        Raises InvalidRequestError when something would have to be sealed without a secret key, or kept that is not there.
        """
        given = Given(address=spec.base_url, secret=spec.api_key, headers=spec.headers, field="api_key")
        sealed = self.secrets.store(given, None if stored is None else _sealed(stored), pointer)
        return StoredProvider(
            id=new_id if stored is None else stored.id,
            name=spec.name,
            api_mode=spec.api_mode,
            base_url=spec.base_url,
            api_key_env=sealed.env,
            api_key_sealed=sealed.secret,
            headers_sealed=sealed.headers,
        )


def _sealed(stored: StoredProvider) -> Sealed:
    return Sealed(address=stored.base_url, env=stored.api_key_env, secret=stored.api_key_sealed, headers=stored.headers_sealed)
