"""The operator's own MCP servers: programs named in a TOML file, there for every tenant.

::

    [[servers]]
    name = "files"
    command = "/usr/local/bin/files-mcp"
    args = ["--root", "/srv/shared"]
    env = { TOKEN = "env:FILES_TOKEN" }     # a value, or the gateway's own variable
    timeout_s = 60                          # of one call
    read_only_tools = ["read_file"]
    needs_approval = false
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from app.domain.errors import InvalidRequestError
from app.domain.mcp_rules import MAX_TIMEOUT_S, NAME_RULE, is_server_name
from app.domain.spec_rules import check_env_name, env_name
from app.tools.mcp_session import McpProgram
from app.tools.schema import ToolConfigurationError


class _Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    timeout_s: float = 60.0
    read_only_tools: tuple[str, ...] = ()
    needs_approval: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    servers: tuple[_Server, ...] = ()


def load_programs(path: Path | None, environ: Mapping[str, str]) -> tuple[McpProgram, ...]:
    """The servers of the file, none without one. Raises ToolConfigurationError, naming the setting and never a value."""
    if path is None:
        return ()
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).servers
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise _refused(f"cannot be read: {error}") from error
    programs: dict[str, McpProgram] = {}
    for server in found:
        if not is_server_name(server.name):
            raise _refused(f"names a server {server.name[:64]!r}. {NAME_RULE}")
        if server.name in programs:
            raise _refused(f"names two servers {server.name}")
        programs[server.name] = _program(server, environ)
    return tuple(programs.values())


def _program(server: _Server, environ: Mapping[str, str]) -> McpProgram:
    if not server.command.strip():
        raise _refused(f"gives no command for the server {server.name}")
    if not 0.0 < server.timeout_s <= MAX_TIMEOUT_S:
        raise _refused(f"gives the server {server.name} a timeout_s that is not more than 0 and at most {MAX_TIMEOUT_S:g}")
    return McpProgram(
        name=server.name,
        command=server.command,
        args=server.args,
        env={name: _value(value, server.name, environ) for name, value in server.env.items()},
        timeout_s=server.timeout_s,
        read_only_tools=server.read_only_tools,
        needs_approval=server.needs_approval,
    )


def _value(value: str, server: str, environ: Mapping[str, str]) -> str:
    name = env_name(value)
    if name is None:
        return value
    try:
        check_env_name(name, "")
    except InvalidRequestError as error:
        raise _refused(f"has an environment for the server {server} that cannot be had: {error.detail}") from None
    found = environ.get(name)
    if not found:
        raise _refused(f"refers to the variable {name} for the server {server}, which is not set")
    return found


def _refused(detail: str) -> ToolConfigurationError:
    return ToolConfigurationError(f"GATEWAY_MCP_SERVERS_FILE {detail}")
