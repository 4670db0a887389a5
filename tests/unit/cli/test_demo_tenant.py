import asyncio
import socket

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from app.cli.demo_tenant import DemoSettings, choose_provider, demo_simulator, provider_name
from app.cli.errors import CommandError, described
from app.domain.tenant_rules import check_spec
from app.domain.tenants import ProviderSpec, Purpose, TenantSpec
from app.simulator import Simulator

KEY = SecretStr("sk-not-a-real-one")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("settings", "name", "model", "api_key"),
    [
        (DemoSettings(openai_api_key=KEY, openrouter_api_key=KEY), "openai", "gpt-4.1-mini", "env:OPENAI_API_KEY"),
        (DemoSettings(openai_api_key=KEY, demo_model="gpt-x"), "openai", "gpt-x", "env:OPENAI_API_KEY"),
        (DemoSettings(openrouter_api_key=KEY), "openrouter", "openrouter/auto", "env:OPENROUTER_API_KEY"),
        (DemoSettings(provider_base_url="http://127.0.0.1:1/v1", demo_model="m"), "127.0.0.1-1", "m", ""),
        (DemoSettings(provider_base_url="http://127.0.0.1:1/v1"), "127.0.0.1-1", "default", ""),
        (
            DemoSettings(provider_base_url="http://127.0.0.1:1/v1", provider_api_key=KEY),
            "127.0.0.1-1",
            "default",
            "env:GATEWAY_PROVIDER_API_KEY",
        ),
        (DemoSettings(demo_simulator_port=9_999), "simulator", "demo:first_ms=200,pace_ms=25", ""),
    ],
    ids=["openai-first", "model", "openrouter", "server", "unreachable-server", "server-with-key", "simulator"],
)
async def test_the_best_provider_of_the_environment_answers(settings: DemoSettings, name: str, model: str, api_key: str) -> None:
    chosen = await choose_provider(settings)
    assert (chosen.provider.name, chosen.route.provider, chosen.route.model, chosen.provider.api_key) == (name, name, model, api_key)
    assert chosen.simulated == (name == "simulator")
    assert chosen.reachable == (settings.provider_base_url is None)
    check_spec(TenantSpec(name="demo", providers=(chosen.provider,), chains={Purpose.CHAT: (chosen.route,)}))


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("http://127.0.0.1:9001/v1", "127.0.0.1-9001"),
        ("https://api.example.com/v1", "api.example.com"),
        ("https://API.OpenAI.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://[::1]:9001/v1", "1-9001"),
        ("http://_my_host_/v1", "my-host"),
        ("http://simulator/v1", "host-simulator"),
        ("http://local-model/v1", "host-local-model"),
        (f"http://{'a' * 100}.example/v1", "a" * 63),
    ],
    ids=["port", "host", "openai", "openrouter", "ipv6", "underscores", "simulator", "local-model", "long"],
)
def test_a_provider_is_named_after_its_address(base_url: str, name: str) -> None:
    assert provider_name(base_url) == name
    check_spec(TenantSpec(name="demo", providers=(ProviderSpec(name=name, base_url=base_url),)))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GATEWAY_PROVIDER_BASE_URL", "foo", "begins with http"),
        ("GATEWAY_PROVIDER_BASE_URL", "http://user:hunter2@host/v1", "no credential"),
        ("GATEWAY_DEMO_KEY", "hunter2", "8 to"),
        ("GATEWAY_DEMO_KEY", "hunter2 with some spaces", "visible ASCII"),
    ],
    ids=["no-address", "credential", "short-key", "spaces"],
)
def test_a_setting_that_cannot_work_is_named_and_not_shown(variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValidationError) as raised:
        DemoSettings()
    text, code = described(raised.value)
    assert (code, text.partition(":")[0]) == (2, variable)
    assert said in text
    assert "hunter2" not in text


def test_a_blank_setting_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PROVIDER_BASE_URL", " ")
    monkeypatch.setenv("GATEWAY_DEMO_KEY", "\t")
    settings = DemoSettings()
    assert settings.provider_base_url is None
    assert settings.demo_key is None


async def test_the_first_model_that_a_server_lists_is_taken() -> None:
    simulator = Simulator()
    await simulator.start()
    try:
        chosen = await choose_provider(DemoSettings(provider_base_url=simulator.base_url + "/"))
        async with httpx.AsyncClient() as client:
            listed = (await client.get(f"{simulator.base_url}/models")).json()
    finally:
        await simulator.stop()
    assert chosen.route.model == listed["data"][0]["id"]
    assert chosen.reachable


async def test_the_simulator_of_another_gateway_is_used_and_replaced_when_it_is_gone() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1/models"
    async with httpx.AsyncClient() as client:
        async with demo_simulator(port):
            second = demo_simulator(port)
            await second.__aenter__()
            assert (await client.get(url)).is_success
        async with asyncio.timeout(10):
            while not await answers(client, url):
                await asyncio.sleep(0.05)
        await second.__aexit__(None, None, None)
        assert not await answers(client, url)


async def test_a_port_that_something_else_has_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        closing = asyncio.get_running_loop().run_in_executor(None, close_next, other)
        with pytest.raises(CommandError, match="GATEWAY_DEMO_SIMULATOR_PORT"):
            async with demo_simulator(other.getsockname()[1]):
                pass
        await closing


def close_next(listener: socket.socket) -> None:
    listener.accept()[0].close()


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).is_success
    except httpx.TransportError:
        return False
