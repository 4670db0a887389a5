from pathlib import Path

import pytest

from app.tools.mcp_programs import load_programs
from app.tools.schema import ToolConfigurationError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mcp.toml"


def test_without_a_file_there_are_none() -> None:
    assert load_programs(None, {}) == ()


def test_programs_are_read_and_their_environment_is_filled_in(file: Path) -> None:
    file.write_text("""
[[servers]]
name = "files"
command = "files-mcp"
args = ["--root", "/srv"]
env = { TOKEN = "env:FILES_TOKEN", MODE = "plain" }
timeout_s = 5
read_only_tools = ["read"]
needs_approval = true
""")
    (program,) = load_programs(file, {"FILES_TOKEN": "t0ken"})
    assert (program.name, program.command, program.args) == ("files", "files-mcp", ("--root", "/srv"))
    assert (program.timeout_s, program.read_only_tools, program.needs_approval) == (5.0, ("read",), True)
    assert program.env == {"TOKEN": "t0ken", "MODE": "plain"}
    assert "t0ken" not in repr(program)


BAD = {
    "no TOML": ("servers = [", "cannot be read"),
    "unknown field": ('[[servers]]\nname = "a"\ncommand = "a"\nurl = "b"', "cannot be read"),
    "no command": ('[[servers]]\nname = "a"\ncommand = " "', "no command"),
    "bad name": ('[[servers]]\nname = "a__b"\ncommand = "a"', "A server's name"),
    "same name": ('[[servers]]\nname = "a"\ncommand = "a"\n[[servers]]\nname = "a"\ncommand = "b"', "two servers a"),
    "no time": ('[[servers]]\nname = "a"\ncommand = "a"\ntimeout_s = 0', "timeout_s"),
    "unset variable": ('[[servers]]\nname = "a"\ncommand = "a"\nenv = { T = "env:UNSET" }', "UNSET"),
    "a secret of the gateway": ('[[servers]]\nname = "a"\ncommand = "a"\nenv = { T = "env:GATEWAY_SECRET_KEY" }', "gateway's own"),
}


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_at_the_start(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(ToolConfigurationError, match=told) as refused:
        load_programs(file, {"GATEWAY_SECRET_KEY": "s3cret"})
    assert "GATEWAY_MCP_SERVERS_FILE" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolConfigurationError, match="cannot be read"):
        load_programs(tmp_path / "gone.toml", {})
