"""A secret and headers that belong to one address, between configuration, storage and use: a provider's, a webhook's."""

from collections.abc import Mapping

import msgspec
from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.spec_rules import ENV_PREFIX, MASKED, env_name, is_credential
from app.domain.tenant_rules import origin
from app.domain.tenants import CredentialState
from app.store.secrets import Sealer, UnsealError


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """As it is stored: the name of an environment variable or an encrypted secret, and headers as encrypted JSON."""

    address: str
    env: str | None = None
    secret: bytes | None = None
    headers: bytes | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """As somebody configured it; ``field`` is what the secret is called there. ``secret`` is ``None`` to keep what there is."""

    address: str
    secret: str | None
    headers: dict[str, str]
    field: str

    @override
    def __repr__(self) -> str:
        return f"Given(field={self.field!r})"


class SealedSecrets:
    """Resolves, seals and masks. ``environ`` is what ``env:NAME`` refers to."""

    def __init__(self, sealer: Sealer, environ: Mapping[str, str]) -> None:
        self._sealer = sealer
        self._environ = environ

    def variable(self, name: str) -> str:
        """The variable's value without surrounding whitespace; empty when unset."""
        return self._environ.get(name, "").strip()

    def secret(self, stored: Sealed) -> tuple[str, CredentialState]:
        """The secret, empty where there is none to be had, and where it stands."""
        if stored.env is not None:
            value = self.variable(stored.env)
            return (value, CredentialState.ENVIRONMENT) if is_credential(value) else ("", CredentialState.MISSING)
        if stored.secret is None:
            return "", CredentialState.NONE
        try:
            return self._sealer.unseal(stored.secret), CredentialState.SEALED
        except UnsealError:
            return "", CredentialState.UNREADABLE

    def headers(self, stored: Sealed) -> dict[str, str] | None:
        """``None`` when they cannot be decrypted."""
        if stored.headers is None:
            return {}
        try:
            return msgspec.json.decode(self._sealer.unseal(stored.headers), type=dict[str, str])
        except UnsealError:
            return None

    def state(self, stored: Sealed) -> CredentialState:
        """Where secret and headers stand."""
        return CredentialState.UNREADABLE if self.headers(stored) is None else self.secret(stored)[1]

    def shown(self, stored: Sealed) -> tuple[str | None, dict[str, str]]:
        """Secret and headers as their owner may read them back: nothing secret in them."""
        return None if stored.env is None else ENV_PREFIX + stored.env, dict.fromkeys(self.headers(stored) or {}, MASKED)

    def store(self, given: Given, stored: Sealed | None, pointer: str) -> Sealed:
        """``given`` as it is stored, with what it keeps of ``stored``. Equal to ``stored`` when nothing changes.

        Raises InvalidRequestError when something would have to be sealed without a secret key, kept that is not there, or sent to
        somebody else than before.
        """
        env, secret = self._store_secret(given, stored, pointer)
        return Sealed(address=given.address, env=env, secret=secret, headers=self._store_headers(given, stored, pointer))

    def _store_secret(self, given: Given, stored: Sealed | None, pointer: str) -> tuple[str | None, bytes | None]:
        if given.secret is None:
            return self._keep_secret(given, stored, pointer)
        name = env_name(given.secret)
        if name is not None or not given.secret:
            return name, None
        if stored is not None and stored.secret is not None and self.secret(stored)[0] == given.secret:
            return None, self._sealer.renew(stored.secret)
        return None, self._sealer.seal(given.secret, pointer=f"{pointer}/{given.field}")

    def _keep_secret(self, given: Given, stored: Sealed | None, pointer: str) -> tuple[str | None, bytes | None]:
        if stored is None:
            return None, None
        if stored.secret is None:
            return stored.env, None
        _check_same_origin(given, stored, f"{pointer}/{given.field}")
        return None, self._sealer.renew(stored.secret)

    def _store_headers(self, given: Given, stored: Sealed | None, pointer: str) -> bytes | None:
        if not given.headers:
            return None
        place = f"{pointer}/headers"
        known = ({} if stored is None else self.headers(stored)) or {}
        headers = {}
        for name, value in sorted(given.headers.items()):
            if value == MASKED and name not in known:
                raise InvalidRequestError(f"{MASKED} keeps a stored value, and there is none of this header.", pointer=place)
            if value == MASKED and stored is not None:
                _check_same_origin(given, stored, place)
            headers[name] = known[name] if value == MASKED else value
        if stored is not None and stored.headers is not None and headers == known:
            return self._sealer.renew(stored.headers)
        return self._sealer.seal(msgspec.json.encode(headers).decode(), pointer=place)


def _check_same_origin(given: Given, stored: Sealed, pointer: str) -> None:
    """Nobody can read a stored credential, so nobody may have it sent somewhere else either."""
    if origin(given.address) != origin(stored.address):
        raise InvalidRequestError("The address has another host: give the credential and the header values again.", pointer=pointer)
