"""Rules that several parts of a tenant's configuration share. Errors and pointers as in :mod:`app.domain.tenant_rules`."""

import re
from urllib.parse import urlsplit

from app.domain.errors import InvalidRequestError

ENV_PREFIX = "env:"
"""Of a credential that is the name of an environment variable of the gateway."""

MASKED = "***"
"""Stands for a stored header value: shown when read back, and keeps the stored value when written."""

MAX_ITEMS = 256
"""Providers of a tenant, routes of a chain, headers of a provider, keys of one configuration."""

_MAX_ADDRESS_CHARACTERS = 2_048
_MAX_PORT = 65_535
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")  # RFC 9110, 5.6.2: token
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")  # RFC 9110, 5.5, without obs-text
_SECRET = re.compile(r"[\x21-\x7e]+")
_TRANSPORT_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
_GATEWAY_SECRETS = frozenset(
    {"DATABASE_URL", "GATEWAY_DATABASE_URL", "GATEWAY_DIRECT_DATABASE_URL", "GATEWAY_ADMIN_KEY", "GATEWAY_SECRET_KEY"}
)


def env_name(value: str) -> str | None:
    """``NAME`` of ``env:NAME``, ``None`` for a literal."""
    return value.removeprefix(ENV_PREFIX) if value.startswith(ENV_PREFIX) else None


def is_credential(value: str) -> bool:
    """Whether ``value`` can be sent in a header as it is: visible ASCII without spaces."""
    return _SECRET.fullmatch(value) is not None


def require(condition: bool, detail: str, pointer: str) -> None:
    """Raise InvalidRequestError unless ``condition`` holds."""
    if not condition:
        raise InvalidRequestError(detail, pointer=pointer)


def check_count(count: int, pointer: str) -> None:
    """Raise InvalidRequestError for more than :data:`MAX_ITEMS` of something."""
    require(count <= MAX_ITEMS, f"There are more than {MAX_ITEMS} of these.", pointer)


def check_env_name(name: str, pointer: str) -> None:
    """Raise InvalidRequestError unless ``name`` is a variable that may be referred to."""
    require(_ENV_NAME.fullmatch(name) is not None, "What follows env: is the name of an environment variable.", pointer)
    require(name.upper() not in _GATEWAY_SECRETS, "This environment variable is the gateway's own and is given to nobody.", pointer)


def check_address(address: str, pointer: str) -> None:
    """Raise InvalidRequestError unless ``address`` can be called and holds no credential."""
    # urlsplit silently drops tabs and line ends, so the characters are looked at first.
    legal = len(address) <= _MAX_ADDRESS_CHARACTERS and is_credential(address) and "\\" not in address
    require(legal, "An address is visible ASCII without spaces and backslashes.", pointer)
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise InvalidRequestError("This is not an address.", pointer=pointer) from None
    require(parts.scheme in {"http", "https"} and bool(parts.hostname), "An address begins with http:// or https:// and a host.", pointer)
    require(port is None or 0 < port <= _MAX_PORT, "The port is not one.", pointer)
    require("@" not in parts.netloc, "An address holds no credential: use api_key or headers.", pointer)
    detail = "An address has no query and no fragment: a credential goes into api_key or headers."
    require("?" not in address and "#" not in address, detail, pointer)


def check_headers(headers: dict[str, str], pointer: str) -> None:
    """Raise InvalidRequestError for a header that cannot be sent."""
    check_count(len(headers), pointer)
    names: set[str] = set()
    for name, value in headers.items():
        require(_HEADER_NAME.fullmatch(name) is not None, "This is not the name of a header.", pointer)
        place = f"{pointer}/{name.replace('~', '~0')}"  # a legal name holds no slash
        require(name.lower() not in _TRANSPORT_HEADERS, "This header is the transport's own.", place)
        require(name.lower() not in names, "This header is given twice.", place)
        require(value == MASKED or _HEADER_VALUE.fullmatch(value) is not None, "A header's value is visible ASCII.", place)
        names.add(name.lower())
