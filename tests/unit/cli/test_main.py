import pytest

from app.cli import main

PLAIN = ("", "serve", "dev", "demo", "simulate", "migrate", "settings", "apply")
ACTIONS = {
    "tenants": ("create", "list", "show", "disable", "enable"),
    "keys": ("create", "list", "rotate", "disable"),
    "providers": ("list", "set"),
    "chains": ("list", "set"),
}
COMMANDS = [*PLAIN, *(f"{group} {action}" for group, actions in ACTIONS.items() for action in actions)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m app")
    assert "--fd" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["serve", "--port", "x"],
        ["serve", "--port", "65536"],
        ["serve", "--workers", "0"],
        ["tenants"],
        ["chains", "set", "acme"],
    ],
    ids=["command", "port", "port-too-high", "workers", "no-action", "no-source"],
)
def test_wrong_arguments_exit_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err
