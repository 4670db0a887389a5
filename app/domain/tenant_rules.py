"""What a tenant's configuration must be like to work: checked before anything of it is stored.

Every rule that is broken is an :class:`app.domain.errors.InvalidRequestError` with a JSON pointer. Error texts repeat names, never
credentials, header values or addresses (an address may hold a credential).
"""

import math
import re
from urllib.parse import urlsplit

from app.domain.errors import InvalidRequestError
from app.domain.tenants import ENV_PREFIX, MASKED, ProviderSpec, RouteSpec, TenantSettings, TenantSpec

MIN_KEY_CHARACTERS = 8
"""Of an API key that the operator chose: only a hash of it is kept, so it has to be hard to guess."""

MAX_KEY_CHARACTERS = 512
KEY_RULE = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} visible ASCII characters"
MAX_ITEMS = 256
"""Providers of a tenant, routes of a chain, headers of a provider, keys of one configuration."""

_MAX_TOKENS = 100_000_000
_MAX_SECONDS = 86_400.0
_MAX_ATTEMPTS = 100
_MAX_PER_MINUTE = 1_000_000_000
_MAX_ITERATIONS = 10_000
_MAX_QUEUED_TURNS = 10_000
_MAX_CONCURRENT_TURNS = 1_000_000
_MAX_TOKENS_PER_DAY = 1_000_000_000_000
_MAX_COST_USD = 1_000_000_000.0
_MAX_ADDRESS_CHARACTERS = 2_048
_MAX_PROMPT_CHARACTERS = 1_000_000
_MAX_PORT = 65_535

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MODEL_NAME = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?")
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


def check_spec(spec: TenantSpec, at: str = "") -> None:
    """Raise InvalidRequestError for the first thing in ``spec`` that cannot work; ``at`` is the pointer to ``spec`` itself."""
    _require(is_tenant_name(spec.name), "A tenant's name is 1 to 63 of a-z, 0-9, _ and -, not beginning with _ or -.", f"{at}/name")
    _limit(len(spec.api_keys), f"{at}/api_keys")
    for index, key in enumerate(spec.api_keys):
        _check_api_key(key, f"{at}/api_keys/{index}")
    _limit(len(spec.providers), f"{at}/providers")
    names: set[str] = set()
    for index, provider in enumerate(spec.providers):
        pointer = f"{at}/providers/{index}"
        _check_provider(provider, pointer)
        _require(provider.name not in names, f"There are two providers named {provider.name!r}.", f"{pointer}/name")
        names.add(provider.name)
    for purpose, chain in spec.chains.items():
        _limit(len(chain), f"{at}/chains/{purpose.value}")
        for index, route in enumerate(chain):
            pointer = f"{at}/chains/{purpose.value}/{index}"
            _require(route.provider in names, f"The tenant has no provider named {route.provider[:64]!r}.", f"{pointer}/provider")
            _check_route(route, pointer)
    _check_settings(spec.settings, f"{at}/settings")


def is_tenant_name(name: str) -> bool:
    """Whether a tenant could have this name."""
    return _TENANT_NAME.fullmatch(name) is not None


def env_name(value: str) -> str | None:
    """``NAME`` of ``env:NAME``, ``None`` for a literal."""
    return value.removeprefix(ENV_PREFIX) if value.startswith(ENV_PREFIX) else None


def is_credential(value: str) -> bool:
    """Whether ``value`` can be sent in a header as it is: visible ASCII without spaces."""
    return _SECRET.fullmatch(value) is not None


def is_strong_key(value: str) -> bool:
    """Whether ``value`` may be a tenant's API key."""
    return MIN_KEY_CHARACTERS <= len(value) <= MAX_KEY_CHARACTERS and is_credential(value)


def origin(base_url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a checked address: whom a credential is sent to."""
    parts = urlsplit(base_url)
    return parts.scheme, parts.hostname or "", parts.port


def _check_api_key(key: str, pointer: str) -> None:
    name = env_name(key)
    if name is not None:
        _check_env_name(name, pointer)
        return
    _require(is_strong_key(key), f"An API key is env:NAME or {KEY_RULE}.", pointer)


def _check_env_name(name: str, pointer: str) -> None:
    _require(_ENV_NAME.fullmatch(name) is not None, "What follows env: is the name of an environment variable.", pointer)
    _require(name.upper() not in _GATEWAY_SECRETS, "This environment variable is the gateway's own and is given to nobody.", pointer)


def _check_provider(provider: ProviderSpec, pointer: str) -> None:
    detail = "A provider's name is 1 to 63 of letters, digits, '.', '_' and '-', beginning with a letter or digit."
    _require(_PROVIDER_NAME.fullmatch(provider.name) is not None, detail, f"{pointer}/name")
    _check_base_url(provider.base_url, f"{pointer}/base_url")
    if provider.api_key:
        name = env_name(provider.api_key)
        if name is None:
            _require(is_credential(provider.api_key), "A credential is visible ASCII without spaces.", f"{pointer}/api_key")
        else:
            _check_env_name(name, f"{pointer}/api_key")
    _check_headers(provider.headers, f"{pointer}/headers")
    _check_rates(provider, pointer)


def _check_base_url(address: str, pointer: str) -> None:
    # urlsplit silently drops tabs and line ends, so the characters are looked at first.
    legal = len(address) <= _MAX_ADDRESS_CHARACTERS and is_credential(address) and "\\" not in address
    _require(legal, "An address is visible ASCII without spaces and backslashes.", pointer)
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise InvalidRequestError("This is not an address.", pointer=pointer) from None
    _require(parts.scheme in {"http", "https"} and bool(parts.hostname), "An address begins with http:// or https:// and a host.", pointer)
    _require(port is None or 0 < port <= _MAX_PORT, "The port is not one.", pointer)
    _require("@" not in parts.netloc, "An address holds no credential: use api_key or headers.", pointer)
    detail = "An address has no query and no fragment: a credential goes into api_key or headers."
    _require("?" not in address and "#" not in address, detail, pointer)


def _check_headers(headers: dict[str, str], pointer: str) -> None:
    _limit(len(headers), pointer)
    names: set[str] = set()
    for name, value in headers.items():
        _require(_HEADER_NAME.fullmatch(name) is not None, "This is not the name of a header.", pointer)
        place = f"{pointer}/{name.replace('~', '~0')}"  # a legal name holds no slash
        _require(name.lower() not in _TRANSPORT_HEADERS, "This header is the transport's own.", place)
        _require(name.lower() not in names, "This header is given twice.", place)
        _require(value == MASKED or _HEADER_VALUE.fullmatch(value) is not None, "A header's value is visible ASCII.", place)
        names.add(name.lower())


def _check_route(route: RouteSpec, pointer: str) -> None:
    _require(
        _MODEL_NAME.fullmatch(route.model) is not None, "A model's name is 1 to 256 characters, none of them a control.", f"{pointer}/model"
    )
    _between(route.context_window, (2, _MAX_TOKENS), f"{pointer}/context_window")
    _between(route.output_tokens, (1, _MAX_TOKENS), f"{pointer}/output_tokens")
    detail = "output_tokens leaves no room for input: it must be below context_window."
    _require(route.output_tokens < route.context_window, detail, f"{pointer}/output_tokens")
    _between(route.max_output_tokens, (1, _MAX_TOKENS), f"{pointer}/max_output_tokens")
    detail = "max_output_tokens is below output_tokens."
    _require(route.max_output_tokens >= route.output_tokens, detail, f"{pointer}/max_output_tokens")
    _between(route.max_attempts, (1, _MAX_ATTEMPTS), f"{pointer}/max_attempts")
    for name in ("connect_timeout_s", "first_token_timeout_s", "stale_timeout_s", "patience_s"):
        seconds: float = getattr(route, name)
        _require(0.0 < seconds <= _MAX_SECONDS, f"{name} is more than 0 and at most {_MAX_SECONDS:.0f} seconds.", f"{pointer}/{name}")
    _check_rates(route, pointer)
    if route.prices is not None:
        for name in route.prices.__struct_fields__:
            price: float | None = getattr(route.prices, name)
            _require(
                price is None or (math.isfinite(price) and price >= 0.0),
                "A price is a number that is not negative.",
                f"{pointer}/prices/{name}",
            )


def _check_rates(limited: ProviderSpec | RouteSpec, pointer: str) -> None:
    for name, limit in (("rpm", limited.rpm), ("tpm", limited.tpm)):
        if limit is not None:
            _between(limit, (1, _MAX_PER_MINUTE), f"{pointer}/{name}")


def _check_settings(settings: TenantSettings, pointer: str) -> None:
    _between(settings.max_iterations, (1, _MAX_ITERATIONS), f"{pointer}/max_iterations")
    _between(settings.max_queued_turns, (0, _MAX_QUEUED_TURNS), f"{pointer}/max_queued_turns")
    legal = len(settings.system_prompt) <= _MAX_PROMPT_CHARACTERS and "\x00" not in settings.system_prompt
    _require(legal, f"A system prompt has at most {_MAX_PROMPT_CHARACTERS} characters, none of them NUL.", f"{pointer}/system_prompt")
    for name in ("preflight_threshold", "gateway_threshold"):
        threshold: float = getattr(settings, name)
        _require(0.0 < threshold <= 1.0, f"{name} is a part of the context window: more than 0 and at most 1.", f"{pointer}/{name}")
    detail = "preflight_threshold is above gateway_threshold."
    _require(settings.preflight_threshold <= settings.gateway_threshold, detail, f"{pointer}/preflight_threshold")
    _check_quotas(settings, pointer)


def _check_quotas(settings: TenantSettings, pointer: str) -> None:
    for name, value, most in (
        ("requests_per_minute", settings.requests_per_minute, _MAX_PER_MINUTE),
        ("max_concurrent_turns", settings.max_concurrent_turns, _MAX_CONCURRENT_TURNS),
        ("tokens_per_day", settings.tokens_per_day, _MAX_TOKENS_PER_DAY),
        ("max_tokens_per_turn", settings.max_tokens_per_turn, _MAX_TOKENS_PER_DAY),
    ):
        if value is not None:
            _between(value, (1, most), f"{pointer}/{name}")
    for name, cost in (("cost_usd_per_day", settings.cost_usd_per_day), ("max_cost_usd_per_turn", settings.max_cost_usd_per_turn)):
        detail = f"{name} is more than 0 and at most {_MAX_COST_USD:.0f} US dollars."
        _require(cost is None or 0.0 < cost <= _MAX_COST_USD, detail, f"{pointer}/{name}")


def _limit(count: int, pointer: str) -> None:
    _require(count <= MAX_ITEMS, f"There are more than {MAX_ITEMS} of these.", pointer)


def _between(value: int, bounds: tuple[int, int], pointer: str) -> None:
    low, high = bounds
    _require(low <= value <= high, f"{pointer.rpartition('/')[2]} is from {low} to {high}.", pointer)


def _require(condition: bool, detail: str, pointer: str) -> None:
    if not condition:
        raise InvalidRequestError(detail, pointer=pointer)
