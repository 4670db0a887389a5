"""Providers' credentials between configuration, storage and use."""

import logging
from collections.abc import Mapping

import msgspec

from app.domain.errors import InvalidRequestError
from app.domain.ids import ProviderId
from app.domain.tenant_rules import env_name, is_credential, origin
from app.domain.tenants import ENV_PREFIX, MASKED, CredentialState, Provider, ProviderSpec
from app.store.secrets import Sealer, UnsealError
from app.store.tenant_rows import StoredProvider

logger = logging.getLogger(__name__)


class Credentials:
    """Resolves, seals and masks credentials. ``environ`` is what ``env:NAME`` refers to."""

    def __init__(self, sealer: Sealer, environ: Mapping[str, str]) -> None:
        self._sealer = sealer
        self._environ = environ
        self._reported: set[tuple[ProviderId, CredentialState]] = set()

    def variable(self, name: str) -> str:
        """The variable's value without surrounding whitespace; empty when unset."""
        return self._environ.get(name, "").strip()

    def resolve(self, stored: StoredProvider, tenant_name: str) -> Provider:
        """The provider as it is called.

        A credential that is missing or unreadable is left empty and logged once: its calls are refused by the provider, and the
        tenant's other routes, and all other tenants, go on.
        """
        api_key, state = self._api_key(stored)
        headers = self._headers(stored)
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
        return CredentialState.UNREADABLE if self._headers(stored) is None else self._api_key(stored)[1]

    def spec(self, stored: StoredProvider) -> ProviderSpec:
        """The provider as its owner may read it back: no secret in it."""
        return ProviderSpec(
            name=stored.name,
            base_url=stored.base_url,
            api_mode=stored.api_mode,
            api_key=None if stored.api_key_env is None else ENV_PREFIX + stored.api_key_env,
            headers=dict.fromkeys(self._headers(stored) or {}, MASKED),
        )

    def store(self, spec: ProviderSpec, stored: StoredProvider | None, new_id: ProviderId, pointer: str) -> StoredProvider:
        """``spec`` as a row, with what it keeps of ``stored``. Equal to ``stored`` when nothing changes.

        Raises InvalidRequestError when something would have to be sealed without a secret key, or kept that is not there.
        """
        env, sealed = self._store_api_key(spec, stored, pointer)
        return StoredProvider(
            id=new_id if stored is None else stored.id,
            name=spec.name,
            api_mode=spec.api_mode,
            base_url=spec.base_url,
            api_key_env=env,
            api_key_sealed=sealed,
            headers_sealed=self._store_headers(spec, stored, pointer),
        )

    def _api_key(self, stored: StoredProvider) -> tuple[str, CredentialState]:
        if stored.api_key_env is not None:
            value = self.variable(stored.api_key_env)
            return (value, CredentialState.ENVIRONMENT) if is_credential(value) else ("", CredentialState.MISSING)
        if stored.api_key_sealed is None:
            return "", CredentialState.NONE
        try:
            return self._sealer.unseal(stored.api_key_sealed), CredentialState.SEALED
        except UnsealError:
            return "", CredentialState.UNREADABLE

    def _headers(self, stored: StoredProvider) -> dict[str, str] | None:
        """``None`` when they cannot be decrypted."""
        if stored.headers_sealed is None:
            return {}
        try:
            return msgspec.json.decode(self._sealer.unseal(stored.headers_sealed), type=dict[str, str])
        except UnsealError:
            return None

    def _store_api_key(self, spec: ProviderSpec, stored: StoredProvider | None, pointer: str) -> tuple[str | None, bytes | None]:
        if spec.api_key is None:
            return self._keep_api_key(spec, stored, pointer)
        name = env_name(spec.api_key)
        if name is not None or not spec.api_key:
            return name, None
        if stored is not None and stored.api_key_sealed is not None and self._api_key(stored)[0] == spec.api_key:
            return None, self._sealer.renew(stored.api_key_sealed)
        return None, self._sealer.seal(spec.api_key, pointer=f"{pointer}/api_key")

    def _keep_api_key(self, spec: ProviderSpec, stored: StoredProvider | None, pointer: str) -> tuple[str | None, bytes | None]:
        if stored is None:
            return None, None
        if stored.api_key_sealed is None:
            return stored.api_key_env, None
        _check_same_origin(spec, stored, f"{pointer}/api_key")
        return None, self._sealer.renew(stored.api_key_sealed)

    def _store_headers(self, spec: ProviderSpec, stored: StoredProvider | None, pointer: str) -> bytes | None:
        if not spec.headers:
            return None
        place = f"{pointer}/headers"
        known = ({} if stored is None else self._headers(stored)) or {}
        headers = {}
        for name, value in sorted(spec.headers.items()):
            if value == MASKED and name not in known:
                raise InvalidRequestError(f"{MASKED} keeps a stored value, and there is none of this header.", pointer=place)
            if value == MASKED and stored is not None:
                _check_same_origin(spec, stored, place)
            headers[name] = known[name] if value == MASKED else value
        if stored is not None and stored.headers_sealed is not None and headers == known:
            return self._sealer.renew(stored.headers_sealed)
        return self._sealer.seal(msgspec.json.encode(headers).decode(), pointer=place)


def _check_same_origin(spec: ProviderSpec, stored: StoredProvider, pointer: str) -> None:
    """Nobody can read a stored credential, so nobody may have it sent somewhere else either."""
    if origin(spec.base_url) != origin(stored.base_url):
        raise InvalidRequestError("The address has another host: give the credential and the header values again.", pointer=pointer)
