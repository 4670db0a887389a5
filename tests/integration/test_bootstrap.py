import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.errors import install
from app.api.routes.admin import router
from app.domain.errors import ConflictError, InvalidRequestError
from app.main import apply_bootstrap
from app.ports import Clock
from app.settings import Settings
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

ADMIN = "a-long-admin-key"
ENVIRON = {"ACME_KEY": "agw_acme-key-AAAA1111", "PRIMARY_KEY": "sk-test-BBBB2222CCCC3333"}

EXAMPLE = """
[[tenants]]
name = "acme"
api_keys = ["env:ACME_KEY"]

  [[tenants.providers]]
  name = "primary"
  api_mode = "chat_completions"
  base_url = "http://127.0.0.1:9001/v1"
  api_key = "env:PRIMARY_KEY"
  rpm = 60

  [[tenants.chains.chat]]
  provider = "primary"
  model = "m-test"
  context_window = 131072
  output_tokens = 4096
  max_output_tokens = 32768

  [tenants.settings]
  max_iterations = 90
  preflight_threshold = 0.50
  gateway_threshold = 0.85
"""

AUXILIARY = ("compression", "vision", "web_extract", "session_search")
ROUTE_OPTIONS = """
  connect_timeout_s = 11.0
  first_token_timeout_s = 61.0
  stale_timeout_s = 91.0
  max_attempts = 4
  patience_s = 6.5
  rpm = 30
  tpm = 45000
  prices = { input = 1.0, cached_input = 0.5, output = 2.0 }
"""
EVERY_OPTION = EXAMPLE.replace("rpm = 60\n", "rpm = 60\n  tpm = 90000\n").replace(
    "max_output_tokens = 32768\n", f"max_output_tokens = 32768{ROUTE_OPTIONS}"
) + "".join(f'\n  [[tenants.chains.{purpose}]]\n  provider = "primary"\n  model = "m-{purpose}"\n' for purpose in AUXILIARY)


@pytest.fixture
def tenants(database: Database, clock: Clock) -> TenantRepository:
    return TenantRepository(database, clock, Sealer(None), ENVIRON)


@pytest.fixture
async def client(tenants: TenantRepository) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(router)
    app.state.services = SimpleNamespace(admin_key=ADMIN, tenants=tenants)
    install(app, app.routes)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers={"Authorization": f"Bearer {ADMIN}"}
    ) as client:
        yield client


def settings_for(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "bootstrap.toml"
    file.write_text(text, "utf-8")
    return Settings(bootstrap_file=file)


def as_given(given: Any, shown: Any) -> Any:
    """``shown`` without what ``given`` left to the defaults."""
    match given:
        case dict():
            return {name: as_given(given[name], value) for name, value in shown.items() if name in given}
        case list():
            assert len(given) == len(shown)
            return [as_given(one, other) for one, other in zip(given, shown, strict=True)]
        case _:
            return shown


@pytest.mark.parametrize("text", [EXAMPLE, EVERY_OPTION], ids=["as documented", "with every option"])
async def test_the_documented_file_comes_back_through_the_admin_api_as_it_was_given(
    tenants: TenantRepository, client: httpx.AsyncClient, tmp_path: Path, *, text: str
) -> None:
    made = await apply_bootstrap(tenants, settings_for(tmp_path, text))

    response = await client.get("/admin/tenants/acme")
    shown = response.json()
    (given,) = tomllib.loads(text)["tenants"]
    api_keys = given.pop("api_keys")
    assert as_given(given, shown) == given
    assert [key["name"] for key in shown["keys"]] == api_keys
    assert shown["credentials"] == {"primary": "environment"}
    assert made == []
    for secret in ENVIRON.values():
        assert secret not in response.text


async def test_what_the_admin_api_shows_of_the_file_can_be_written_back_and_applied_again(
    tenants: TenantRepository, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, EVERY_OPTION)
    await apply_bootstrap(tenants, settings)
    shown = (await client.get("/admin/tenants/acme")).json()

    written = await client.put("/admin/tenants/acme", json={name: shown[name] for name in ("name", "providers", "chains", "settings")})
    await apply_bootstrap(tenants, settings)

    assert written.status_code == 200, written.text
    assert written.json() == shown == (await client.get("/admin/tenants/acme")).json()


async def test_a_value_that_cannot_be_stored_is_named_with_its_tenant_and_its_place_in_the_file(
    tenants: TenantRepository, tmp_path: Path
) -> None:
    second = EXAMPLE.replace("acme", "rival").replace("env:ACME_KEY", "env:RIVAL_KEY")

    with pytest.raises(InvalidRequestError, match=r"^Tenant rival: .*RIVAL_KEY") as raised:
        await apply_bootstrap(tenants, settings_for(tmp_path, EXAMPLE + second))

    assert raised.value.pointer == "/tenants/1/api_keys/0"


async def test_a_key_of_another_tenant_is_named_with_the_tenant_that_wants_it(tenants: TenantRepository, tmp_path: Path) -> None:
    second = EXAMPLE.replace("acme", "rival")

    with pytest.raises(ConflictError, match=r"^Tenant rival: ") as raised:
        await apply_bootstrap(tenants, settings_for(tmp_path, EXAMPLE + second))

    assert raised.value.code == "key_taken"
    assert ENVIRON["ACME_KEY"] not in raised.value.detail


async def test_mcp_servers_of_the_file_are_applied_and_stay(tenants: TenantRepository, tmp_path: Path) -> None:
    server = '\n  [[tenants.mcp_servers]]\n  name = "box"\n  url = "https://box.example/mcp"\n  credential = "env:PRIMARY_KEY"\n'
    settings = settings_for(tmp_path, EXAMPLE + server)
    await apply_bootstrap(tenants, settings)
    before = await tenants.info("acme")
    await apply_bootstrap(tenants, settings)
    assert before is not None
    assert [(each.name, each.credential, each.enabled) for each in before.mcp_servers] == [("box", "env:PRIMARY_KEY", True)]
    assert await tenants.info("acme") == before
