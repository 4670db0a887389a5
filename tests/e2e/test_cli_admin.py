"""Commands that end by themselves, in this process: tenants, keys, providers, chains, apply, migrate, and their errors."""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli import main
from app.clock import SystemClock
from app.domain.delivery import CooldownReport, CooldownScope
from app.domain.ids import TenantId
from app.domain.model import FailureReason
from app.domain.targets import target_keys
from app.domain.tenants import Purpose
from app.store.cooldowns import Cooldowns
from app.store.engine import Database
from app.store.secrets import Sealer
from app.store.tenants import TenantRepository

FOREIGN = ("GATEWAY_", "OPENAI_", "OPENROUTER_", "DATABASE_URL")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Commands:
    """Runs commands as ``python -m app`` would."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Ended:
        code = main(arguments)
        shown = self._capsys.readouterr()
        return Ended(code, shown.out, shown.err)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands configure the logging of their process, which is ours here."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], level, sys.excepthook, threading.excepthook = before
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """Commands in an environment without settings of ours and without a database."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GATEWAY_DATA_DIR", str(tmp_path / "data"))
    return Commands(capsys)


@pytest.fixture
def with_database(run: Commands, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)


@pytest.mark.usefixtures("with_database")
def test_a_tenant_gets_providers_and_chains(run: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACME_PROVIDER_KEY", "sk-never-shown")
    created = json.loads(run("tenants", "create", "acme", "--json").out)
    assert created["api_key"].startswith("agw_")
    again = run("tenants", "create", "acme")
    assert (again.code, again.err) == (1, "error: There is a tenant named acme.\n")
    options = ("--name", "p", "--base-url", "http://127.0.0.1:9/v1", "--api-key", "env:ACME_PROVIDER_KEY")
    assert run("providers", "set", "acme", *options).code == 0
    assert run("providers", "set", "acme", "--name", "q", "--base-url", "http://127.0.0.1:8/v1").code == 0
    assert run("chains", "set", "acme", "--route", "q=m2", "--route", "p=m=1").code == 0
    shown = json.loads(run("tenants", "show", "acme", "--json").out)
    assert [(route["provider"], route["model"]) for route in shown["chains"]["chat"]] == [("q", "m2"), ("p", "m=1")]
    assert shown["credentials"] == {"p": "environment", "q": "none"}
    assert run("providers", "set", "acme", "--name", "p", "--base-url", "http://127.0.0.1:7/v1").code == 0
    listed = run("providers", "list").out
    assert listed.splitlines()[1].split() == ["acme", "p", "chat_completions", "http://127.0.0.1:7/v1", "environment", "m=1"]
    monkeypatch.delenv("ACME_PROVIDER_KEY")
    assert "not set here" in run("providers", "list", "acme").out
    assert "not set here" in run("tenants", "show", "acme").out
    assert "sk-never-shown" not in listed + run("tenants", "show", "acme").out

    chains = tmp_path / "chains.toml"
    chains.write_text('[[chains.chat]]\nprovider = "p"\nmodel = "m9"\ncontext_window = 9000\n')
    table = run("chains", "set", "acme", "--file", str(chains)).out
    assert table.splitlines()[1].split() == ["acme", "chat", "0", "p", "m9", "9000", "4096"]
    assert run("chains", "set", "acme", "--route", "p=m9", "--route", "q=m2").code == 0
    kept = json.loads(run("chains", "list", "acme", "--json").out)["data"][0]["chains"]["chat"]
    assert [route["context_window"] for route in kept] == [9000, 131_072]
    chains.write_text('[[chains.chat]]\nprovider = "nobody"\nmodel = "m9"\n')
    wrong = run("chains", "set", "acme", "--file", str(chains))
    assert (wrong.code, wrong.err) == (2, "error: The tenant has no provider named 'nobody'. (at /chains/chat/0/provider)\n")


@pytest.mark.usefixtures("with_database")
def test_a_tenant_gets_tools(run: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACME_HOOK_SECRET", "a-secret-that-is-never-shown")
    assert run("tenants", "create", "acme").code == 0
    file = tmp_path / "tools.toml"
    tool = '[[tools]]\nname = "{}"\ndescription = "Looks up."\nurl = "https://hooks.example/{}"\nsecret = "env:ACME_HOOK_SECRET"\n'
    file.write_text(tool.format("find", "find") + tool.format("look", "look"))
    listed = run("tools", "set", "acme", "--file", str(file)).out
    assert listed.splitlines()[1].split() == ["acme", "find", "POST", "https://hooks.example/find", "environment", "no"]
    assert "https://hooks.example/look" in run("tenants", "show", "acme").out
    assert "never-shown" not in listed + run("tools", "list", "--json").out
    assert json.loads(run("tools", "remove", "acme", "find", "--json").out)["data"][0]["tools"][0]["name"] == "look"
    assert run("tools", "remove", "acme", "find").err == "error: The tenant has no tool 'find'.\n"
    assert run("tools", "remove", "nobody", "find").err == "error: There is no tenant named 'nobody'.\n"
    file.write_text(tool.format("web_extract", "find"))
    wrong = run("tools", "set", "acme", "--file", str(file))
    assert (wrong.code, wrong.err) == (2, "error: The gateway has a tool named web_extract itself. (at /tools/0/name)\n")
    assert len(run("tools", "list", "acme").out.splitlines()) == 2


@pytest.mark.usefixtures("with_database")
def test_keys_are_made_rotated_and_disabled(run: Commands) -> None:
    assert run("tenants", "create", "acme").code == 0
    made = json.loads(run("keys", "create", "acme", "--name", "billing", "--json").out)
    rotated = json.loads(run("keys", "rotate", made["id"], "--json").out)
    assert rotated["api_key"] != made["api_key"]
    assert run("keys", "disable", rotated["id"]).code == 0
    listed = run("keys", "list", "acme").out
    assert [line.split()[-2] for line in listed.splitlines()[1:]] == ["no", "yes", "yes"]
    assert made["api_key"] not in listed
    assert run("keys", "rotate", made["id"]).code == 1
    for unknown in (("keys", "create", "nobody"), ("keys", "list", "nobody"), ("keys", "disable", "key_x"), ("keys", "rotate", "key_x")):
        ended = run(*unknown)
        assert (ended.code, ended.err[:14]) == (1, "error: There i")


@pytest.mark.usefixtures("with_database")
def test_a_tenant_is_disabled_and_enabled(run: Commands) -> None:
    assert "shown this once: agw_" in run("tenants", "create", "acme").out
    assert "disabled" in run("tenants", "disable", "acme").out
    assert run("tenants", "list").out.splitlines()[1].split()[2] == "yes"
    assert "enabled" in run("tenants", "enable", "acme").out
    assert json.loads(run("tenants", "list", "--json").out)["data"][0]["disabled"] is False
    assert run("tenants", "disable", "nobody").err == "error: There is no tenant named 'nobody'.\n"


@pytest.mark.usefixtures("with_database")
def test_a_tenant_is_created_from_a_file(run: Commands, tmp_path: Path) -> None:
    file = tmp_path / "acme.json"
    file.write_text('{"api_keys": ["agw_a-key-of-the-tests"], "settings": {"max_iterations": 7}}')
    assert run("tenants", "create", "acme", "--file", str(file)).out == "Tenant acme is created.\n"
    assert json.loads(run("tenants", "show", "acme", "--json").out)["settings"]["max_iterations"] == 7
    assert run("tenants", "create", "other", "--file", str(file)).code == 1  # the key is another tenant's
    file.write_text('{"name": "else"}')
    assert run("tenants", "create", "other", "--file", str(file)).code == 2
    file.write_text("{")
    assert run("tenants", "create", "other", "--file", str(file)).code == 2


@pytest.mark.usefixtures("with_database")
def test_a_bootstrap_file_is_applied_again_and_again(run: Commands, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenants]]\nname = "acme"\n')
    assert "API key of the tenant acme, shown this once: agw_" in run("apply", str(file)).out
    assert run("apply", str(file)).out == "Tenant acme is as configured.\n"
    file.write_text('[[tenants]]\nname = "acme"\ncolour = 3\n')
    wrong = run("apply", str(file))
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "/tenants/0/colour" in wrong.err
    file.write_text('[[tenants]]\nname = "rival"\napi_keys = ["env:RIVAL_KEY"]\n')
    unset = run("apply", str(file))
    assert (unset.code, unset.err.count("\n")) == (2, 1)
    assert unset.err.startswith("error: Tenant rival: ")


def test_migrations_run_and_are_checked_on_an_embedded_server(run: Commands) -> None:
    assert "no embedded Postgres" in run("tenants", "list").err
    assert run("migrate", "--check").code == 1
    unready = run("tenants", "list")
    assert (unready.code, unready.err.count("\n")) == (1, 1)
    assert "migrate" in unready.err
    assert run("migrate").out == "The database is at the newest schema now.\n"
    assert run("migrate").out == "The database was at the newest schema already.\n"
    assert run("migrate", "--check").code == 0
    assert run("tenants", "list").out.split()[0] == "NAME"


@pytest.mark.parametrize(
    ("command", "variables", "code", "said"),
    [
        ("serve", {"GATEWAY_DB_POOL_SIZE": "many"}, 2, "GATEWAY_DB_POOL_SIZE"),
        ("serve", {"GATEWAY_LOG_LEVEL": "LOUD"}, 2, "GATEWAY_LOG_LEVEL"),
        ("migrate", {"DATABASE_URL": "mysql://127.0.0.1/x"}, 2, "postgresql://"),
        ("tenants list", {"DATABASE_URL": "postgresql://u:pw-secret@127.0.0.1:1/x"}, 1, "database"),
        ("apply /no/such/file.toml", {}, 2, "FILE cannot be read"),
        ("providers set acme --file /no/such/file.toml", {}, 2, "--file cannot be read"),
        ("serve --port 0", {"GATEWAY_BOOTSTRAP_FILE": "/no/such/file.toml"}, 2, "GATEWAY_BOOTSTRAP_FILE cannot be read"),
        ("serve --port 0", {"GATEWAY_ADMIN_KEY": "short"}, 2, "GATEWAY_ADMIN_KEY: must have at least 8 characters"),
        ("demo --url http://127.0.0.1:1 --key agw_x", {}, 1, "make run"),
        ("demo", {}, 1, "make run"),
        ("providers set acme --file x.json --api-key -", {}, 2, "--name"),
        ("chains set acme --route m", {}, 2, "PROVIDER=MODEL"),
        ("migrate --revision", {}, 2, "message"),
    ],
    ids=[
        "setting",
        "level",
        "scheme",
        "no-database",
        "no-file",
        "no-file-option",
        "no-bootstrap-file",
        "short-admin-key",
        "no-gateway",
        "no-key",
        "mixed-options",
        "no-route",
        "no-message",
    ],
)
def test_an_error_is_one_line(
    command: str, variables: dict[str, str], code: int, *, said: str, run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = command.split()
    ended = run(*words, " ") if words[-1] == "--revision" else run(*words)
    assert ended.code == code
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert said in ended.err
    assert "pw-secret" not in ended.err


@pytest.mark.usefixtures("with_database")
def test_the_health_of_routes_is_shown_as_a_table_and_like_the_admin_api(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PROVIDER_KEY", "sk-never-shown")
    for name in ("acme", "other"):
        assert run("tenants", "create", name).code == 0
        options = ("--name", "p", "--base-url", "http://127.0.0.1:9/v1", "--api-key", "env:ACME_PROVIDER_KEY")
        assert run("providers", "set", name, *options).code == 0
        assert run("chains", "set", name, "--route", "p=m").code == 0
    assert run("tenants", "disable", "other").code == 0
    shown = run("providers", "health")
    assert shown.code == 0
    header, acme, other = shown.out.splitlines()
    assert header.split()[:6] == ["TENANT", "PROVIDER", "CREDENTIAL", "CHAIN", "MODEL", "STATE"]
    assert acme.split()[:7] == ["acme", "p", "environment", "chat", "0", "m", "healthy"]
    assert "tenant disabled" in other
    assert "sk-never-shown" not in shown.out
    (view,) = json.loads(run("providers", "health", "--tenant", "acme", "--json").out)["data"]
    assert view["routes"][0]["health"]["state"] == "healthy"
    assert run("providers", "health", "--tenant", "nobody").code == 1
    monkeypatch.delenv("ACME_PROVIDER_KEY")
    _, acme, _ = run("providers", "health").out.splitlines()
    assert "not set here" in acme
    assert "no_credential" in acme
    assert "healthy" not in acme


@pytest.mark.usefixtures("with_database")
def test_the_cool_downs_of_a_provider_are_reset(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PROVIDER_KEY", "sk-never-shown")
    created = json.loads(run("tenants", "create", "acme", "--json").out)
    options = ("--name", "p", "--base-url", "http://127.0.0.1:9/v1", "--api-key", "env:ACME_PROVIDER_KEY")
    assert run("providers", "set", "acme", *options).code == 0
    assert run("chains", "set", "acme", "--route", "p=m", "--route", "p=other").code == 0
    asyncio.run(cool_down(os.environ["DATABASE_URL"], created["id"]))
    assert states(run("providers", "health").out) == ["cooling", "cooling"]
    assert states(run("providers", "reset", "acme", "p", "m").out) == ["healthy", "cooling"]
    assert states(run("providers", "reset", "acme", "p").out) == ["healthy", "healthy"]
    (view,) = json.loads(run("providers", "reset", "acme", "p", "--json").out)["data"]
    assert [place["health"]["state"] for place in view["routes"]] == ["healthy", "healthy"]
    for words in (("nobody", "p"), ("acme", "q"), ("acme", "p", "unknown")):
        assert run("providers", "reset", *words).code == 1
    monkeypatch.delenv("ACME_PROVIDER_KEY")
    refused = run("providers", "reset", "acme", "p")
    assert refused.code == 1
    assert "not set here" in refused.err


def states(shown: str) -> list[str]:
    return [line.split()[6] for line in shown.splitlines()[1:]]


async def cool_down(url: str, tenant_id: str) -> None:
    """Both models are at their limit, as their provider said."""
    database = Database(url, 1)
    try:
        tenant = await TenantRepository(database, SystemClock(), Sealer(None), os.environ).tenant(TenantId(tenant_id))
        assert tenant is not None
        for route in tenant.chains[Purpose.CHAT]:
            report = CooldownReport(
                key=target_keys(tenant.id, route).key_model,
                scope=CooldownScope.KEY_MODEL,
                reason=FailureReason.RATE_LIMIT,
                status=429,
                duration_s=600.0,
                promised=True,
            )
            await Cooldowns(database).report(report)
    finally:
        await database.close()


@pytest.mark.usefixtures("with_database")
def test_the_use_of_tenants_can_be_asked_for(run: Commands) -> None:
    assert run("tenants", "create", "acme").code == 0
    assert run("tenants", "usage").out.split()[:4] == ["TENANT", "DAY", "PROVIDER", "MODEL"]
    report = {"data": [], "has_more": False, "next_cursor": None}
    assert json.loads(run("tenants", "usage", "acme", "--from", "2026-01-01", "--to", "2026-01-31", "--json").out) == report
    assert run("tenants", "usage", "nobody").code == 1
    bad = run("tenants", "usage", "--from", "yesterday")
    assert bad.code != 0
    assert "YYYY-MM-DD" in bad.err


@pytest.mark.usefixtures("with_database")
def test_mcp_servers_are_set_listed_and_removed(run: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOX_TOKEN", "mcp-token-never-shown")
    assert run("tenants", "create", "acme").code == 0
    missing = run("mcp", "set", "acme", "--name", "box", "--timeout-s", "5")
    assert (missing.code, missing.err) == (2, "error: The tenant has no MCP server 'box' yet: a new one needs --url.\n")
    options = ("--url", "https://box.example/mcp", "--credential", "env:BOX_TOKEN", "--needs-approval")
    assert run("mcp", "set", "acme", "--name", "box", *options).code == 0
    assert run("mcp", "set", "acme", "--name", "box", "--timeout-s", "5", "--no-enabled").code == 0
    listed = run("mcp", "list").out
    assert listed.splitlines()[1].split() == ["acme", "box", "https://box.example/mcp", "environment", "5", "yes", "no"]
    assert "mcp-token-never-shown" not in listed

    servers = tmp_path / "servers.toml"
    servers.write_text('[[mcp_servers]]\nname = "yard"\nurl = "https://yard.example/mcp"\n')
    assert run("mcp", "set", "acme", "--file", str(servers), "--enabled").code == 2
    replaced = json.loads(run("mcp", "set", "acme", "--file", str(servers), "--json").out)
    assert [server["name"] for server in replaced["data"][0]["mcp_servers"]] == ["yard"]
    assert run("mcp", "remove", "acme", "yard").code == 0
    assert run("mcp", "remove", "acme", "yard").err == "error: The tenant has no MCP server 'yard'.\n"
    wrong = run("mcp", "set", "acme", "--name", "a__b", "--url", "https://a.example/")
    assert wrong.code == 2
    assert wrong.err.endswith("(at /mcp_servers/0/name)\n")
