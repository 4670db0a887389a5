"""What MCP servers must be like to be stored. Errors and pointers as in :mod:`app.domain.tenant_rules`."""

import re
from collections.abc import Sequence
from typing import Final

from app.domain.mcp_servers import McpServerSpec
from app.domain.spec_rules import MAX_ITEMS, check_address, check_env_name, check_headers, env_name, is_credential, require

MAX_SERVERS: Final = 32
MAX_TIMEOUT_S: Final = 3_600.0
MAX_NAME: Final = 32
NAME_RULE: Final = f"A server's name is 1 to {MAX_NAME} letters and digits, with single '_' or '-' between them."

# No two underscores in a row and none at the end: in the names of tools two of them part the server from the tool.
_NAME: Final = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_MAX_TOOL_NAME: Final = 256
_OWN_HEADERS: Final = frozenset(
    {"accept", "cache-control", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"}
)


def check_mcp_servers(servers: Sequence[McpServerSpec], pointer: str) -> None:
    """Raise InvalidRequestError for the first thing in ``servers`` that cannot work; ``pointer`` is that to the list."""
    require(len(servers) <= MAX_SERVERS, f"There are more than {MAX_SERVERS} MCP servers.", pointer)
    names: set[str] = set()
    for index, server in enumerate(servers):
        place = f"{pointer}/{index}"
        require(is_server_name(server.name), NAME_RULE, f"{place}/name")
        require(server.name not in names, f"There are two MCP servers named {server.name!r}.", f"{place}/name")
        names.add(server.name)
        _check_server(server, place)


def is_server_name(name: str) -> bool:
    """Whether a server could have this name."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _check_server(server: McpServerSpec, place: str) -> None:
    check_address(server.url, f"{place}/url")
    if server.credential:
        name = env_name(server.credential)
        if name is None:
            require(is_credential(server.credential), "A credential is visible ASCII without spaces.", f"{place}/credential")
        else:
            check_env_name(name, f"{place}/credential")
    check_headers(server.headers, f"{place}/headers")
    for header in server.headers:
        where = f"{place}/headers/{header.replace('~', '~0')}"
        require(
            header.lower() not in _OWN_HEADERS and not header.lower().startswith("mcp-param-"), "This header is the protocol's own.", where
        )
        require(not (server.credential and header.lower() == "authorization"), "The credential is sent in this header.", where)
    require(
        0.0 < server.timeout_s <= MAX_TIMEOUT_S, f"timeout_s is more than 0 and at most {MAX_TIMEOUT_S:g} seconds.", f"{place}/timeout_s"
    )
    at = f"{place}/read_only_tools"
    require(len(server.read_only_tools) <= MAX_ITEMS, f"There are more than {MAX_ITEMS} of these.", at)
    legal = all(0 < len(name) <= _MAX_TOOL_NAME for name in server.read_only_tools)
    require(legal, f"The name of a tool has 1 to {_MAX_TOOL_NAME} characters.", at)
