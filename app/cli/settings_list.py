"""``settings``: every setting with its variable, default, present value and meaning."""

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from app.cli.databases import read_settings
from app.cli.demo_tenant import DemoSettings
from app.cli.output import as_json
from app.settings import Settings

_MASKED = "***"
_UNSET = "unset"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. Secrets are masked in ``value``; both values are text."""

    name: str
    default: str
    value: str
    description: str


def add_settings(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "settings",
        help="list every setting",
        description="List every setting: its environment variable, present value, default and meaning. Secrets are masked.",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="names, defaults and meanings as the table of the README")
    parser.set_defaults(run=_settings)


def _settings(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(markdown_table())
        return 0
    settings = list_settings(read_settings(), DemoSettings())
    print(as_json(settings) if arguments.json else "\n".join(_shown(setting) for setting in settings))
    return 0


def list_settings(*groups: BaseSettings) -> list[Setting]:
    """Every setting of ``groups`` in order."""
    return [
        Setting(name=name, default=_default(field), value=_text(getattr(group, attribute)), description=field.description or "")
        for group in groups
        for attribute, name, field in _fields(type(group))
    ]


def markdown_table() -> str:
    """The table of the README."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for kind in (Settings, DemoSettings):
        for _, name, field in _fields(kind):
            default = _default(field)
            lines.append(f"| `{name}` | {default if default == _UNSET else f'`{default}`'} | {field.description} |")
    return "\n".join(lines)


def _fields(kind: type[BaseSettings]) -> Iterator[tuple[str, str, FieldInfo]]:
    prefix = str(kind.model_config.get("env_prefix", ""))
    for attribute, field in kind.model_fields.items():
        alias = field.validation_alias
        yield attribute, alias if isinstance(alias, str) else (prefix + attribute).upper(), field


def _default(field: FieldInfo) -> str:
    return _UNSET if field.default is PydanticUndefined else _text(field.default)


def _text(value: Any) -> str:
    match value:
        case None | "":
            return _UNSET
        case SecretStr():
            return _MASKED
        case float():
            return f"{value:.12g}"
        case _:
            return str(value)


def _shown(setting: Setting) -> str:
    default = "" if setting.value == setting.default else f"  (default: {setting.default})"
    return f"{setting.name} = {setting.value}{default}\n    {setting.description}"
