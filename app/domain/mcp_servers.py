"""Servers of the Model Context Protocol that a tenant's sessions may use, as configured and as called."""

from typing import Final

import msgspec
from typing_extensions import override

MCP_TOOLSET_PREFIX: Final = "mcp_"
"""Of the toolset that holds a server's tools; what follows is the server's name."""


class McpServerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is reached over streamable HTTP, as configured.

    ``credential`` is sent as a bearer token: ``env:NAME`` or a literal (encrypted at rest); absent when read back, but for ``env:``.
    Written without one, a server keeps the credential it has; an empty one removes it. Values of ``headers`` are masked when read back.
    ``timeout_s`` is for one call. ``read_only_tools`` are names, as the server calls its tools, that change nothing, beside those of which
    the server says so itself. ``needs_approval``: somebody has to approve each call. A server that is not ``enabled`` is kept and not used.
    """

    name: str
    url: str
    credential: str | None = None
    headers: dict[str, str] = {}
    timeout_s: float = 60.0
    read_only_tools: tuple[str, ...] = ()
    needs_approval: bool = False
    enabled: bool = True

    @override
    def __repr__(self) -> str:
        return f"McpServerSpec(name={self.name!r})"  # never the credential: reprs reach logs


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An enabled server as it is called: ``credential`` and ``headers`` are decrypted, the former empty when there is none.

    ``usable`` is false when a credential or a header is configured and cannot be had: such a server is not called at all.
    """

    name: str
    url: str
    credential: str
    headers: dict[str, str]
    usable: bool
    timeout_s: float
    read_only_tools: tuple[str, ...]
    needs_approval: bool

    @override
    def __repr__(self) -> str:
        return f"McpServer(name={self.name!r})"
