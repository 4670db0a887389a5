"""What the gateway needs of an MCP client, in values of its own: the SDK behind it is loaded only where a server is used."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
from typing_extensions import override

from app.domain.mcp_servers import MCP_TOOLSET_PREFIX, McpServer
from app.domain.messages import clean_text
from app.tools.redaction import fit_to_show

_MAX_SAID = 2_000
"""Characters of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpProgram:
    """A server of the operator's: a program that speaks over its standard input and output. ``env`` is added to a bare environment."""

    name: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    timeout_s: float
    read_only_tools: tuple[str, ...]
    needs_approval: bool

    @override
    def __repr__(self) -> str:
        return f"McpProgram(name={self.name!r})"  # neither arguments nor environment: they may hold credentials


Target: TypeAlias = McpServer | McpProgram


def said(text: str) -> str:
    """What a server said of a failure, fit to be shown: some repeat the credential that they were sent."""
    shown = fit_to_show(clean_text(text[:_MAX_SAID])).strip()
    return shown or "It gave no reason."


def toolset_of(target: Target) -> str:
    """The toolset that holds a server's tools."""
    return f"{MCP_TOOLSET_PREFIX}{target.name}"


def digest_of(target: Target) -> str:
    """What is the same only for the same server with the same credential and settings. Holds none of them."""
    kind = b"program" if isinstance(target, McpProgram) else b"server"
    return hashlib.blake2b(kind + msgspec.json.encode(target, order="deterministic"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server lists it. ``read_only``: the server says that it changes nothing."""

    name: str
    title: str
    description: str
    parameters: dict[str, Any]
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult:
    """What a call came to: blocks of content as JSON objects, and ``structured`` content, ``None`` where there is none."""

    blocks: Sequence[Mapping[str, Any]]
    structured: Any
    is_error: bool


class McpUnavailableError(Exception):
    """The server cannot be used now. The text is safe to show; ``retry_after_s`` is when it is tried again, in seconds."""

    def __init__(self, reason: str, retry_after_s: float = 1.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class McpLostError(Exception):
    """The session is over. The text is safe to show; ``delivered``: what was asked for may have reached the server."""

    def __init__(self, reason: str, *, delivered: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delivered = delivered


class McpAnswerError(Exception):
    """The server refused a request, or its answer cannot be used. The text is mostly the server's, without credentials."""

    def __init__(self, reason: str) -> None:
        super().__init__(said(reason))


class McpSession(Protocol):
    """A session with one server. Calls may overlap; each may be cancelled, which the server is told."""

    @property
    def lost(self) -> bool:
        """Whether it is over."""

    async def list_tools(self) -> Sequence[ListedTool]:
        """All tools, in the server's order. Raises McpLostError and McpAnswerError."""

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """Call a tool by the server's name for it. Raises McpLostError and McpAnswerError."""

    async def finish(self) -> None:
        """End it as soon as no call runs any more."""

    async def close(self) -> None:
        """End it; within some seconds, whatever the server does. Calls that still run are lost."""


Dial: TypeAlias = Callable[[Target, Callable[[], None]], Awaitable[McpSession]]
"""Opens a session; calls the function whenever the server's tools may have changed. Raises McpLostError. Cancellable."""
