"""Tenants and what they configure: providers, chains of routes, settings.

:class:`TenantSpec` is the one structure of the bootstrap file (TOML) and of the admin API (JSON); :class:`Tenant` is what a request
works with: resolved, decrypted, immutable, cached for a few seconds.

A chain that this version does not call (``session_search``) is kept and checked like the others, so a file that is accepted now stays
valid when a later version acts on it.
"""

import enum
import hashlib

import msgspec
from typing_extensions import override

from app.domain.compaction import Thresholds
from app.domain.guardrails import GuardrailThresholds
from app.domain.ids import KeyId, ProviderId, TenantId
from app.domain.mcp_servers import McpServer, McpServerSpec
from app.domain.model import ApiMode, ModelOptions, RouteRef, Usage
from app.domain.tenant_tools import WebhookTool, WebhookToolSpec


class Purpose(enum.StrEnum):
    """What a chain is for: turns are answered by ``chat``, summaries of sessions written by ``compression``; the tools of the same names
    use ``vision``, ``web_extract`` and ``session_search``. What a tenant has no chain for, its ``chat`` chain does.
    """

    CHAT = "chat"
    COMPRESSION = "compression"
    VISION = "vision"
    WEB_EXTRACT = "web_extract"
    SESSION_SEARCH = "session_search"


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float
    cached_input: float
    output: float
    cache_write: float | None = None
    """For input that is written to a cache; ``None``: as other input."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint with its credential, decrypted. ``headers`` are sent with every request.

    ``api_key_env`` names the environment variable that the credential comes from: it is the operator's. ``rpm`` and ``tpm`` are
    requests and tokens in any 60 seconds through the credential, over all replicas; ``None`` is no limit.
    """

    id: ProviderId
    name: str
    api_mode: ApiMode
    base_url: str
    api_key: str
    headers: dict[str, str]
    api_key_env: str | None = None
    rpm: int | None = None
    tpm: int | None = None

    @override
    def __repr__(self) -> str:
        return f"Provider(name={self.name!r}, api_mode={self.api_mode.value!r})"  # never the credential: reprs reach logs


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's model with its limits. Sizes in tokens, durations in seconds.

    ``rpm`` and ``tpm`` are requests and tokens of this model in any 60 seconds, beside those of the provider. ``patience_s`` is the
    longest wait for any of them: beyond it the next route is taken.
    """

    provider: Provider
    model: str
    context_window: int = 131_072
    output_tokens: int = 4_096
    max_output_tokens: int = 32_768
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 60.0
    stale_timeout_s: float = 90.0
    max_attempts: int = 3
    patience_s: float = 5.0
    prices: Prices | None = None
    rpm: int | None = None
    tpm: int | None = None

    def output_limit(self, options: ModelOptions) -> int:
        """Tokens that a reply may have: what was asked for, else the route's, doubled as often as asked, within the route's largest."""
        wanted = (options.max_output_tokens or self.output_tokens) << min(options.doublings, 16)
        return max(1, min(wanted, self.max_output_tokens, wanted if options.output_cap is None else options.output_cap))

    @property
    def origin(self) -> str:
        """Whom reasoning that is to be sent back belongs to: the protocol, the address and the model, as a short digest."""
        provider = self.provider
        target = f"{provider.api_mode.value}|{provider.base_url.strip().rstrip('/')}|{self.model}"
        return hashlib.sha256(target.encode()).hexdigest()[:16]

    @property
    def ref(self) -> RouteRef:
        """The route as clients see it."""
        return RouteRef(provider=self.provider.name, model=self.model, api_mode=self.provider.api_mode)

    def cost_usd(self, usage: Usage) -> float | None:
        """What ``usage`` costs on this route, ``None`` when it has no prices."""
        prices = self.prices
        if prices is None:
            return None
        fresh = max(0, usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens)
        write = prices.input if prices.cache_write is None else prices.cache_write
        total = fresh * prices.input + usage.cached_input_tokens * prices.cached_input + usage.cache_write_tokens * write
        return (total + usage.output_tokens * prices.output) / 1_000_000


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may tune, with the defaults."""

    max_iterations: int = 90
    max_queued_turns: int = 16
    """Queued turns of one session."""
    system_prompt: str = "You are a helpful assistant."
    """For sessions that bring none."""
    preflight_threshold: float = 0.5
    """Part of the context window from which a turn's context is compacted before it begins, on a window that is smaller than before."""
    preflight_every_turn: bool = False
    """Look at ``preflight_threshold`` at every turn's start, not only when the session moves to a smaller window."""
    gateway_threshold: float = 0.85
    """Part of the context window from which a context is compacted before any model call."""
    guardrails: GuardrailThresholds = GuardrailThresholds()
    """When turns whose tool calls go round in circles are warned and stopped."""
    max_concurrent_children: int = 3
    """Child turns of one turn at the same time."""
    max_delegation_depth: int = 2
    """How deep turns may delegate: 1 is a turn's own children, 0 none at all."""
    max_child_iterations: int = 50
    """Iterations of one child, beside what is left of its parent's budget."""
    max_tokens_per_turn: int | None = None
    """Input and output tokens of one turn, its closing call included."""
    max_cost_usd_per_turn: float | None = None
    """What one turn may cost, by the prices of its routes."""
    requests_per_minute: int | None = None
    """Turns started in any 60 seconds, all replicas together."""
    max_concurrent_turns: int | None = None
    """Turns running, queued and waiting for somebody at the same time, all replicas together."""
    tokens_per_day: int | None = None
    """Input and output tokens that turns use on the same day (UTC). Once they are used up no turn starts, and those that run end."""
    cost_usd_per_day: float | None = None
    """What those tokens cost, by the prices of the routes."""

    @property
    def limits_turns(self) -> bool:
        """Whether starting a turn is limited by any quota."""
        return self.requests_per_minute is not None or self.max_concurrent_turns is not None or self.limits_day

    @property
    def limits_day(self) -> bool:
        """Whether what turns use on a day is limited."""
        return self.tokens_per_day is not None or self.cost_usd_per_day is not None


def thresholds_of(settings: TenantSettings) -> Thresholds:
    """The tenant's thresholds of compaction."""
    return Thresholds(
        preflight=settings.preflight_threshold, gateway=settings.gateway_threshold, preflight_every_turn=settings.preflight_every_turn
    )


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as a request sees it. ``revision`` changes with every change of the tenant, its providers or chains."""

    id: TenantId
    name: str
    revision: int
    settings: TenantSettings
    chains: dict[Purpose, tuple[Route, ...]]
    webhook_tools: tuple[WebhookTool, ...] = ()
    mcp_servers: tuple[McpServer, ...] = ()


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling: the tenant and the key used."""

    tenant: Tenant
    key_id: KeyId


class ProviderSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider as configured.

    ``api_key`` is ``env:NAME`` or a literal (encrypted at rest); absent when read back, but for ``env:``. Written without one, a
    provider keeps the credential it has, so what was read can be written again; an empty one removes it. Header values are masked
    when read back. ``rpm`` and ``tpm`` as in :class:`Provider`.
    """

    name: str
    base_url: str
    api_mode: ApiMode = ApiMode.CHAT_COMPLETIONS
    api_key: str | None = None
    headers: dict[str, str] = {}
    rpm: int | None = None
    tpm: int | None = None

    @override
    def __repr__(self) -> str:
        return f"ProviderSpec(name={self.name!r}, api_mode={self.api_mode.value!r})"  # never the credential: reprs reach logs


class RouteSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """A route as configured; ``provider`` is a provider's name. The rest, with its defaults, as in :class:`Route`."""

    provider: str
    model: str
    context_window: int = 131_072
    output_tokens: int = 4_096
    max_output_tokens: int = 32_768
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 60.0
    stale_timeout_s: float = 90.0
    max_attempts: int = 3
    patience_s: float = 5.0
    prices: Prices | None = None
    rpm: int | None = None
    tpm: int | None = None


class TenantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as configured. ``api_keys`` are literals (``agw_…``) or ``env:NAME``; without any, one is generated and shown once."""

    name: str
    api_keys: tuple[str, ...] = ()
    providers: tuple[ProviderSpec, ...] = ()
    chains: dict[Purpose, tuple[RouteSpec, ...]] = {}
    settings: TenantSettings = TenantSettings()
    tools: tuple[WebhookToolSpec, ...] = ()
    mcp_servers: tuple[McpServerSpec, ...] = ()

    @override
    def __repr__(self) -> str:
        return f"TenantSpec(name={self.name!r})"  # never the keys


class TenantChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parts of a tenant to be replaced, each as a whole; ``None`` leaves a part as it is."""

    providers: tuple[ProviderSpec, ...] | None = None
    chains: dict[Purpose, tuple[RouteSpec, ...]] | None = None
    settings: TenantSettings | None = None
    tools: tuple[WebhookToolSpec, ...] | None = None
    mcp_servers: tuple[McpServerSpec, ...] | None = None


class CredentialState(enum.StrEnum):
    """Where a provider's credential stands: the calls of one that is missing or unreadable are sent without it and refused."""

    NONE = "none"
    ENVIRONMENT = "environment"
    SEALED = "sealed"
    MISSING = "missing"
    """Its environment variable is not set, empty, or no legal header value."""
    UNREADABLE = "unreadable"
    """It was encrypted with another secret key."""


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. ``hint`` is its last four characters."""

    id: KeyId
    name: str
    hint: str
    disabled: bool
    created_at_ms: int


class TenantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as the admin API shows it: the configuration without secrets."""

    id: TenantId
    name: str
    disabled: bool
    created_at_ms: int
    providers: tuple[ProviderSpec, ...]
    chains: dict[Purpose, tuple[RouteSpec, ...]]
    settings: TenantSettings
    keys: tuple[KeyInfo, ...]
    credentials: dict[str, CredentialState]
    """By provider name, as this process finds them."""
    tools: tuple[WebhookToolSpec, ...]
    tool_secrets: dict[str, CredentialState]
    """By tool name."""
    mcp_servers: tuple[McpServerSpec, ...]
    mcp_credentials: dict[str, CredentialState]
    """By server name."""
