"""Encryption of credentials at rest.

A token is Fernet's (AES-128-CBC with HMAC-SHA256). Its key is derived from ``GATEWAY_SECRET_KEY``: several comma-separated secrets are a
rotation, the first of them encrypts, all of them decrypt.
"""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from app.domain.errors import InvalidRequestError

_SALT = b"agent-gateway credentials v1"
"""Not secret. It cannot be random: every replica has to derive the same key from the secret alone."""


class UnsealError(Exception):
    """A stored secret cannot be decrypted: it was sealed with another secret key, or there is none. Holds no part of the secret."""


class Sealer:
    """Seals and unseals secrets. Deriving a key takes some ten milliseconds, once, here; sealing takes microseconds."""

    def __init__(self, secret_key: str | None) -> None:
        secrets = [part.strip() for part in (secret_key or "").split(",") if part.strip()]
        keys = [Fernet(_derive(secret)) for secret in secrets]
        self._newest = keys[0] if keys else None
        self._all = MultiFernet(keys) if keys else None

    def seal(self, text: str, *, pointer: str = "") -> bytes:
        """Encrypt ``text``. Raises InvalidRequestError at ``pointer`` (where the text came from) when there is no secret key."""
        if self._newest is None:
            detail = "The gateway has no GATEWAY_SECRET_KEY and stores no secret in the clear: set one, or name a variable with env:NAME."
            raise InvalidRequestError(detail, pointer=pointer)
        return self._newest.encrypt(text.encode())

    def unseal(self, token: bytes) -> str:
        """Decrypt. Raises UnsealError."""
        if self._all is None:
            raise UnsealError("sealed, but there is no secret key")
        try:
            return self._all.decrypt(token).decode()
        except InvalidToken:
            raise UnsealError("sealed with another secret key") from None

    def renew(self, token: bytes) -> bytes:
        """``token`` under the newest key: itself when it is so already, or when it cannot be read at all."""
        if self._newest is None or self._all is None:
            return token
        try:
            self._newest.decrypt(token)
        except InvalidToken:
            try:
                return self._all.rotate(token)
            except InvalidToken:
                return token
        return token


def _derive(secret: str) -> bytes:
    # scrypt, not a plain hash: operators do take passphrases, and a stolen dump must not make them cheap to try.
    key = hashlib.scrypt(secret.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)
    return base64.urlsafe_b64encode(key)
