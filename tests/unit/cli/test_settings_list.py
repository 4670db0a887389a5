from pathlib import Path

import pytest
from pydantic import SecretStr

from app.cli.demo_tenant import DemoSettings
from app.cli.settings_list import list_settings, markdown_table
from app.settings import Settings

README = Path(__file__).parents[3] / "README.md"


def test_readme_lists_exactly_the_settings_there_are() -> None:
    table = markdown_table()
    assert table in README.read_text("utf-8"), "write it anew: python -m app settings --markdown"


def test_every_setting_is_listed_with_its_variable_and_meaning() -> None:
    listed = list_settings(Settings(), DemoSettings())
    names = [setting.name for setting in listed]
    assert len(names) == len(set(names)) == len(Settings.model_fields) + len(DemoSettings.model_fields)
    assert all(name.startswith("GATEWAY_") or name in {"DATABASE_URL", "OPENAI_API_KEY", "OPENROUTER_API_KEY"} for name in names)
    assert all(setting.description for setting in listed)


def test_secrets_are_masked_and_numbers_are_short() -> None:
    settings = Settings(admin_key=SecretStr("a-very-secret-key"), heartbeat_s=2.5)
    listed = {setting.name: setting for setting in list_settings(settings)}
    assert listed["GATEWAY_ADMIN_KEY"].value == "***"
    assert listed["GATEWAY_HEARTBEAT_S"].value == "2.5"
    assert listed["GATEWAY_HEARTBEAT_S"].default == "10"
    assert "a-very-secret-key" not in str(listed)


def test_variables_set_for_this_run_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_DEMO_SIMULATOR_PORT", "9555")
    listed = {setting.name: setting for setting in list_settings(DemoSettings())}
    assert (listed["GATEWAY_DEMO_SIMULATOR_PORT"].value, listed["GATEWAY_DEMO_SIMULATOR_PORT"].default) == ("9555", "9101")
