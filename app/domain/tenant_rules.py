"""What a tenant's configuration must be like to work: checked before anything of it is stored.

Every rule that is broken is an :class:`app.domain.errors.InvalidRequestError` with a JSON pointer. Error texts repeat names, never
credentials, header values or addresses (an address may hold a credential).
"""

import math
import re
from urllib.parse import urlsplit

from app.domain.mcp_rules import check_mcp_servers
from app.domain.spec_rules import check_address, check_count, check_env_name, check_headers, env_name, is_credential, require
from app.domain.tenants import ProviderSpec, RouteSpec, TenantSettings, TenantSpec
from app.domain.tool_rules import check_tools

MIN_KEY_CHARACTERS = 8
"""Of an API key that the operator chose: only a hash of it is kept, so it has to be hard to guess."""

MAX_KEY_CHARACTERS = 512
KEY_RULE = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} visible ASCII characters"
_MAX_TOKENS = 100_000_000
_MAX_SECONDS = 86_400.0
_MAX_ATTEMPTS = 100
_MAX_PER_MINUTE = 1_000_000_000
_MAX_ITERATIONS = 10_000
_MAX_CHILDREN = 32
_MAX_DEPTH = 5
_MAX_QUEUED_TURNS = 10_000
_MAX_CONCURRENT_TURNS = 1_000_000
_MAX_TOKENS_PER_DAY = 1_000_000_000_000
_MAX_COST_USD = 1_000_000_000.0
_MAX_PROMPT_CHARACTERS = 1_000_000

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MODEL_NAME = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?")


def check_spec(spec: TenantSpec, at: str = "") -> None:
    """Raise InvalidRequestError for the first thing in ``spec`` that cannot work; ``at`` is the pointer to ``spec`` itself."""
    require(is_tenant_name(spec.name), "A tenant's name is 1 to 63 of a-z, 0-9, _ and -, not beginning with _ or -.", f"{at}/name")
    check_count(len(spec.api_keys), f"{at}/api_keys")
    for index, key in enumerate(spec.api_keys):
        _check_api_key(key, f"{at}/api_keys/{index}")
    check_count(len(spec.providers), f"{at}/providers")
    names: set[str] = set()
    for index, provider in enumerate(spec.providers):
        pointer = f"{at}/providers/{index}"
        _check_provider(provider, pointer)
        require(provider.name not in names, f"There are two providers named {provider.name!r}.", f"{pointer}/name")
        names.add(provider.name)
    for purpose, chain in spec.chains.items():
        check_count(len(chain), f"{at}/chains/{purpose.value}")
        for index, route in enumerate(chain):
            pointer = f"{at}/chains/{purpose.value}/{index}"
            require(route.provider in names, f"The tenant has no provider named {route.provider[:64]!r}.", f"{pointer}/provider")
            _check_route(route, pointer)
    check_tools(spec.tools, f"{at}/tools")
    check_mcp_servers(spec.mcp_servers, f"{at}/mcp_servers")
    _check_settings(spec.settings, f"{at}/settings")


def is_tenant_name(name: str) -> bool:
    """Whether a tenant could have this name."""
    return _TENANT_NAME.fullmatch(name) is not None


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
        check_env_name(name, pointer)
        return
    require(is_strong_key(key), f"An API key is env:NAME or {KEY_RULE}.", pointer)


def _check_provider(provider: ProviderSpec, pointer: str) -> None:
    detail = "A provider's name is 1 to 63 of letters, digits, '.', '_' and '-', beginning with a letter or digit."
    require(_PROVIDER_NAME.fullmatch(provider.name) is not None, detail, f"{pointer}/name")
    check_address(provider.base_url, f"{pointer}/base_url")
    if provider.api_key:
        name = env_name(provider.api_key)
        if name is None:
            require(is_credential(provider.api_key), "A credential is visible ASCII without spaces.", f"{pointer}/api_key")
        else:
            check_env_name(name, f"{pointer}/api_key")
    check_headers(provider.headers, f"{pointer}/headers")
    _check_rates(provider, pointer)


def _check_route(route: RouteSpec, pointer: str) -> None:
    require(
        _MODEL_NAME.fullmatch(route.model) is not None, "A model's name is 1 to 256 characters, none of them a control.", f"{pointer}/model"
    )
    _between(route.context_window, (2, _MAX_TOKENS), f"{pointer}/context_window")
    _between(route.output_tokens, (1, _MAX_TOKENS), f"{pointer}/output_tokens")
    detail = "output_tokens leaves no room for input: it must be below context_window."
    require(route.output_tokens < route.context_window, detail, f"{pointer}/output_tokens")
    _between(route.max_output_tokens, (1, _MAX_TOKENS), f"{pointer}/max_output_tokens")
    detail = "max_output_tokens is below output_tokens."
    require(route.max_output_tokens >= route.output_tokens, detail, f"{pointer}/max_output_tokens")
    _between(route.max_attempts, (1, _MAX_ATTEMPTS), f"{pointer}/max_attempts")
    for name in ("connect_timeout_s", "first_token_timeout_s", "stale_timeout_s", "patience_s"):
        seconds: float = getattr(route, name)
        require(0.0 < seconds <= _MAX_SECONDS, f"{name} is more than 0 and at most {_MAX_SECONDS:.0f} seconds.", f"{pointer}/{name}")
    _check_rates(route, pointer)
    if route.prices is not None:
        for name in route.prices.__struct_fields__:
            price: float | None = getattr(route.prices, name)
            require(
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
    _between(settings.max_concurrent_children, (1, _MAX_CHILDREN), f"{pointer}/max_concurrent_children")
    _between(settings.max_delegation_depth, (0, _MAX_DEPTH), f"{pointer}/max_delegation_depth")
    _between(settings.max_child_iterations, (1, _MAX_ITERATIONS), f"{pointer}/max_child_iterations")
    _between(settings.max_queued_turns, (0, _MAX_QUEUED_TURNS), f"{pointer}/max_queued_turns")
    legal = len(settings.system_prompt) <= _MAX_PROMPT_CHARACTERS and "\x00" not in settings.system_prompt
    require(legal, f"A system prompt has at most {_MAX_PROMPT_CHARACTERS} characters, none of them NUL.", f"{pointer}/system_prompt")
    for name in ("preflight_threshold", "gateway_threshold"):
        threshold: float = getattr(settings, name)
        require(0.0 < threshold <= 1.0, f"{name} is a part of the context window: more than 0 and at most 1.", f"{pointer}/{name}")
    detail = "preflight_threshold is above gateway_threshold."
    require(settings.preflight_threshold <= settings.gateway_threshold, detail, f"{pointer}/preflight_threshold")
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
        require(cost is None or 0.0 < cost <= _MAX_COST_USD, detail, f"{pointer}/{name}")


def _between(value: int, bounds: tuple[int, int], pointer: str) -> None:
    low, high = bounds
    require(low <= value <= high, f"{pointer.rpartition('/')[2]} is from {low} to {high}.", pointer)
