from pathlib import Path

import pytest

from app.cli.demo_tenant import DemoKey
from app.cli.dev import demo_command, first_turn
from app.domain.events import EVENT_TYPES, TERMINAL_TYPES, Event

README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")


@pytest.mark.parametrize("event", EVENT_TYPES, ids=lambda event: event.event_type)
def test_readme_lists_every_event_with_its_fields(event: type[Event]) -> None:
    row = next(line for line in README.splitlines() if line.startswith(f"| `{event.event_type}` |"))
    if event.event_type in TERMINAL_TYPES:
        terminal = README[README.index("The three terminal events have") :]
        assert all(f"`{name}`" in terminal or f"`{name}`" in row for name in event.__struct_fields__)
        return
    fields = row.split("|")[2]
    assert [name.strip(" `") for name in fields.split(",")] == list(event.__struct_fields__)


@pytest.mark.parametrize(
    ("url", "file", "command"),
    [
        ("http://127.0.0.1:8000", ".data/demo-key", "make demo"),
        ("http://127.0.0.1:8081", ".data/demo-key", 'make demo ARGS="--url http://127.0.0.1:8081"'),
        ("http://127.0.0.1:8000", "/a folder/demo-key", "GATEWAY_DATA_DIR='/a folder' make demo"),
    ],
    ids=["as-documented", "another-port", "another-folder"],
)
def test_the_demo_that_is_printed_finds_this_gateway(url: str, file: str, command: str) -> None:
    assert demo_command(url, DemoKey(value="agw_x", file=Path(file))) == command


def test_readme_has_the_lines_that_are_printed() -> None:
    printed = first_turn("http://127.0.0.1:8000", DemoKey(value="agw_x", file=Path(".data/demo-key")))
    shown = "\n".join(printed).replace(str(Path(".data").resolve()), ".data")
    assert shown in README
