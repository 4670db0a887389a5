"""The demo tenant: made sure of at each start with ``--demo``; its provider is the best that the environment offers."""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.cli.errors import CommandError
from app.domain.errors import InvalidRequestError
from app.domain.tenant_rules import KEY_RULE, check_spec, is_strong_key
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantChange, TenantSpec
from app.simulator import Simulator
from app.store.tenants import TenantRepository

TENANT = "demo"
KEY_FILE = "demo-key"
SIMULATOR = "simulator"
SIMULATOR_MODEL = "demo:first_ms=200,pace_ms=25"
"""The simulator's default answers, at the pace of a model."""
LOCAL_MODEL = "local-model"

UNKNOWN_MODEL = "default"
"""The model that a server is asked for when it did not list any."""

_MAX_NAME = 63
_NAMES = {"api.openai.com": "openai", "openrouter.ai": "openrouter"}
_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_MODEL = "gpt-4.1-mini"
_OPENROUTER_URL = "https://openrouter.ai/api/v1"
_OPENROUTER_MODEL = "openrouter/auto"
_MODELS_TIMEOUT_S = 3.0
_TAKE_OVER_S = 0.3
_KEPT_REQUESTS = 100
_NONE_KEPT = 10**12


class DemoSettings(BaseSettings):
    """What only ``--demo`` reads."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True)

    openai_api_key: SecretStr | None = Field(None, validation_alias="OPENAI_API_KEY", description="the demo tenant uses OpenAI")
    openrouter_api_key: SecretStr | None = Field(None, validation_alias="OPENROUTER_API_KEY", description="else OpenRouter")
    provider_base_url: str | None = Field(None, description="else this chat-completions server; else the simulator")
    provider_api_key: SecretStr | None = Field(None, description="credential for GATEWAY_PROVIDER_BASE_URL, if it wants one")
    demo_model: str | None = Field(None, description="model of the demo tenant; unset: the provider's default or first one")
    demo_key: SecretStr | None = Field(None, description="API key of the demo tenant; unset: made once")
    demo_simulator_port: int = Field(9101, ge=1, le=65_535, description="loopback port of the simulator that serve --demo runs")

    @field_validator("provider_base_url", mode="after")
    @classmethod
    def _check_base_url(cls, base_url: str | None) -> str | None:
        if base_url is None or not base_url.strip():
            return None
        try:
            check_spec(TenantSpec(name=TENANT, providers=(ProviderSpec(name=TENANT, base_url=base_url.strip()),)))
        except InvalidRequestError as error:
            raise ValueError(error.detail) from None
        return base_url.strip()

    @field_validator("demo_key", mode="after")
    @classmethod
    def _check_demo_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is None or not key.get_secret_value().strip():
            return None
        if not is_strong_key(key.get_secret_value().strip()):
            msg = f"an API key is {KEY_RULE}"
            raise ValueError(msg)
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProvider:
    """Who answers the demo tenant. ``reachable``: false when it was asked for its models just now and did not answer."""

    provider: ProviderSpec
    route: RouteSpec
    reachable: bool = True

    @property
    def simulated(self) -> bool:
        """Whether nobody but the simulator answers."""
        return self.provider.name == SIMULATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoKey:
    """The demo tenant's API key as far as this process knows it. ``value`` is ``None`` when it was shown elsewhere, once."""

    value: str | None
    new: bool = False
    file: Path | None = None
    variable: str | None = None


async def choose_provider(settings: DemoSettings) -> DemoProvider:
    """The provider that the environment offers; credentials stay references to it."""
    if settings.openai_api_key is not None:
        return _real("openai", _OPENAI_URL, settings.demo_model or _OPENAI_MODEL, "env:OPENAI_API_KEY")
    if settings.openrouter_api_key is not None:
        return _real("openrouter", _OPENROUTER_URL, settings.demo_model or _OPENROUTER_MODEL, "env:OPENROUTER_API_KEY")
    if settings.provider_base_url is not None:
        answer = await _ask_for_models(settings.provider_base_url, settings.provider_api_key)
        model = settings.demo_model or _first_model(answer)
        credential = "" if settings.provider_api_key is None else "env:GATEWAY_PROVIDER_API_KEY"
        chosen = _real(provider_name(settings.provider_base_url), settings.provider_base_url, model, credential)
        return replace(chosen, reachable=answer is not None)
    return _real(SIMULATOR, f"http://127.0.0.1:{settings.demo_simulator_port}/v1", SIMULATOR_MODEL, "")


def _real(name: str, base_url: str, model: str, api_key: str) -> DemoProvider:
    return DemoProvider(provider=ProviderSpec(name=name, base_url=base_url, api_key=api_key), route=RouteSpec(provider=name, model=model))


def provider_name(base_url: str) -> str:
    """A provider's name after the host and port of its address: ``api.example.com``, ``127.0.0.1-9001``; legal for any address."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in _NAMES:
        return _NAMES[host]
    named = re.sub(r"[^A-Za-z0-9.]+", "-", host if parts.port is None else f"{host}-{parts.port}").strip("-.")
    if named in {"", SIMULATOR, LOCAL_MODEL}:
        named = f"host-{named}"
    return named[:_MAX_NAME]


async def _ask_for_models(base_url: str, api_key: SecretStr | None) -> bytes | None:
    """What the server answers to the question for its models; ``None`` when it does not answer."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value().strip()}"}
    try:
        async with httpx.AsyncClient(timeout=_MODELS_TIMEOUT_S, trust_env=False) as client:
            return (await client.get(f"{base_url.rstrip('/')}/models", headers=headers)).content
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return None


def _first_model(answer: bytes | None) -> str:
    """The first model of a server's list, :data:`UNKNOWN_MODEL` when there is none."""
    try:
        return msgspec.json.decode(answer or b"", type=_Models).data[0].id
    except (msgspec.MsgspecError, UnicodeError, IndexError):
        return UNKNOWN_MODEL


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def ensure_tenant(tenants: TenantRepository, demo: DemoProvider) -> None:
    """Have a tenant ``demo`` answered by ``demo``; its settings, keys and sessions stay."""
    chains: dict[Purpose, tuple[RouteSpec, ...]] = {Purpose.CHAT: (demo.route,)}
    if await tenants.change(TENANT, TenantChange(providers=(demo.provider,), chains=chains)) is None:
        await tenants.apply(TenantSpec(name=TENANT, providers=(demo.provider,), chains=chains), generate_key=False)


async def ensure_key(tenants: TenantRepository, data_dir: Path, wanted: SecretStr | None) -> DemoKey:
    """Have a key of the demo tenant: the ``wanted`` one, the one kept in ``data_dir``, or a new one that is kept there.

    Where nothing can be kept (a container), a key is made only for a tenant without any, and its value is known this once. Raises
    InvalidRequestError, ConflictError for a wanted key that cannot be used.
    """
    if wanted is not None:
        await _add_key(tenants, "env:GATEWAY_DEMO_KEY")
        return DemoKey(value=wanted.get_secret_value().strip(), variable="GATEWAY_DEMO_KEY")
    file = data_dir / KEY_FILE
    kept = read_key(file)
    if kept is not None:
        await _add_key(tenants, kept)
        if await tenants.authenticate(hashlib.sha256(kept.encode()).digest()) is not None:
            return DemoKey(value=kept, file=file)
    if not _can_write(file):
        made = await _only_key(tenants)
        return DemoKey(value=made, new=made is not None)
    made = await _only_key(tenants) or await _another_key(tenants)
    file.write_text(made + "\n")
    return DemoKey(value=made, new=True, file=file)


def read_key(file: Path) -> str | None:
    """The key kept in ``file``, if there is one."""
    try:
        return file.read_text().strip() or None
    except (OSError, UnicodeError):
        return None


async def _add_key(tenants: TenantRepository, key: str) -> None:
    info = await tenants.info(TENANT)
    if info is None:
        raise CommandError("The demo tenant was removed just now.")
    spec = TenantSpec(name=TENANT, api_keys=(key,), providers=info.providers, chains=info.chains, settings=info.settings)
    await tenants.apply(spec, generate_key=False)


async def _only_key(tenants: TenantRepository) -> str | None:
    """A key for the tenant if it has none, decided in one transaction: of two replicas one makes it."""
    info = await tenants.info(TENANT)
    if info is None:
        raise CommandError("The demo tenant was removed just now.")
    spec = TenantSpec(name=TENANT, providers=info.providers, chains=info.chains, settings=info.settings)
    return (await tenants.apply(spec, generate_key=True))[1]


async def _another_key(tenants: TenantRepository) -> str:
    made = await tenants.add_key(TENANT, "demo")
    if made is None:
        raise CommandError("The demo tenant was removed just now.")
    return made[1]


def _can_write(file: Path) -> bool:
    """Whether the file can be written; makes it, empty and for its owner only, and its folder."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return False
    return True


@asynccontextmanager
async def demo_simulator(port: int) -> AsyncIterator[None]:
    """The simulator on a fixed loopback port: every gateway on one database reaches one under the address kept there.

    When another gateway of this machine runs it already, that one is used, and replaced as soon as it is gone.
    """
    simulator = Simulator(log_size=_KEPT_REQUESTS)
    taking_over = None
    try:
        await simulator.start("127.0.0.1", port)
    except OSError:
        if not await _is_simulator(port):
            text = f"Port {port} on 127.0.0.1, where the demo's simulator listens, is in use: GATEWAY_DEMO_SIMULATOR_PORT chooses another."
            raise CommandError(text) from None
        taking_over = asyncio.create_task(_take_over(simulator, port))
    try:
        yield
    finally:
        if taking_over is not None:
            taking_over.cancel()
        await simulator.stop()


async def _take_over(simulator: Simulator, port: int) -> None:
    while True:
        await asyncio.sleep(_TAKE_OVER_S)
        try:
            await simulator.start("127.0.0.1", port)
        except OSError:
            continue
        return


async def _is_simulator(port: int) -> bool:
    try:
        async with httpx.AsyncClient(timeout=_MODELS_TIMEOUT_S, trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/_simulator/requests?after={_NONE_KEPT}")
    except httpx.HTTPError:
        return False
    return answer.is_success and b'"requests"' in answer.content
