"""MCP sessions over the official SDK. Loading it takes half a second and 30 MB: only who opens a session imports this module.

The SDK's scopes of cancellation belong to the task that entered them, so a session lives in one task of its own, which opens it, keeps it
and closes it. A call runs in a task that it has to itself; cancelling that task has the SDK tell the server.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from app.domain.mcp_servers import McpServer
from app.tools.failures import describe
from app.tools.mcp_http import BROKEN, DENIED, MAX_ANSWER_BYTES, UNREACHED, BridgedTransport, HttpClients
from app.tools.mcp_session import ListedTool, McpAnswerError, McpLostError, McpProgram, McpResult, McpSession, Target, said

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams  # names of types alone, which the SDK keeps to itself

CLOSE_S: Final = 4.0
"""What a server gets to take its leave. The SDK kills a program that is still there after about two seconds."""
_KILL_S: Final = 1.0
_MAX_PAGES: Final = 32
_WRITE_S: Final = 30.0
_CONNECT_S: Final = 10.0
_FORGOTTEN: Final = "Session terminated"
_ENDED: Final = "The session is over."

Connect: TypeAlias = Callable[[AsyncExitStack], Awaitable[Transport]]
"""Makes a transport; what has to be closed behind it goes onto the stack."""
_Answer = TypeVar("_Answer")
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


async def open_session(target: Target, changed: Callable[[], None], clients: HttpClients) -> McpSession:
    """A :data:`app.tools.mcp_session.Dial`, but for ``clients``, through which servers of tenants are called."""
    connect = _to_program(target) if isinstance(target, McpProgram) else _to_server(target, clients)
    session = SdkSession(connect, changed, target.name)
    await session.open()
    return session


class SdkSession(McpSession):
    """``changed`` is called when the server says that its tools changed, or when nobody would learn of it any more."""

    def __init__(self, connect: Connect, changed: Callable[[], None], name: str) -> None:
        self._connect = connect
        self._changed = changed
        self._name = name
        self._client: Client | None = None
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Return when calls can be made. Raises McpLostError."""
        self._owner = asyncio.create_task(self._own(), name=f"MCP server {self._name}")
        self._owner.add_done_callback(_read)
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait((self._owner, opened), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._owner.cancel()
            raise
        finally:
            opened.cancel()
        if self.lost:
            raise McpLostError(self._why(), delivered=False)

    @property
    @override
    def lost(self) -> bool:
        return self._owner is None or self._owner.done() or self._closing.is_set()

    @override
    async def list_tools(self) -> Sequence[ListedTool]:
        client = self._running()
        if client.server_capabilities.tools is None:
            return ()
        listed: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._answer(client.list_tools(cursor=cursor))
            listed.extend(_listed(tool) for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        return listed

    @override
    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
        result = await self._answer(self._called(self._running(), request))
        if isinstance(result, types.InputRequiredResult):
            raise McpAnswerError(f"Not run: the MCP server {self._name} asks for input, which nobody gives here.")
        return McpResult(
            blocks=[block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content],
            structured=result.structured_content,
            is_error=bool(result.is_error),
        )

    @override
    async def finish(self) -> None:
        while self._calls:
            await asyncio.wait(self._calls)
        await self.close()

    @override
    async def close(self) -> None:
        self._closing.set()
        if self._owner is None:
            return
        await asyncio.wait((self._owner,), timeout=CLOSE_S)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait((self._owner,), timeout=_KILL_S)

    async def _own(self) -> None:
        async with AsyncExitStack() as stack:
            transport = await self._connect(stack)
            # The default callbacks refuse what servers ask of clients: sampling, elicitation, roots.
            client = Client(
                _Watched(transport, self._closing.set),
                client_info=types.Implementation(name="agent-gateway", version="1"),
                message_handler=self._notified,
                cache=None,
            )
            self._client = await stack.enter_async_context(client)
            self._opened.set()
            watching = asyncio.create_task(self._watch(self._client), name=f"watch MCP server {self._name}")
            watching.add_done_callback(_read)
            try:
                await self._closing.wait()
            finally:
                watching.cancel()

    async def _called(self, client: Client, request: types.CallToolRequest) -> types.CallToolResult | types.InputRequiredResult:
        """Not by the client's own call, which judges the answer by a schema of the server's: its patterns could keep us busy for ever."""
        try:
            return await client.session.send_request(request, _RESULT)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
        # Refused unrun: some arguments go into headers too, which the session learns from the list.
        await client.list_tools()
        return await client.session.send_request(request, _RESULT)

    async def _watch(self, client: Client) -> None:
        """Since its version of 2026 the protocol has to be asked for news."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        try:
            async with client.listen(tools_list_changed=True) as news:
                async for _ in news:
                    pass  # each is told to the message handler as well, which hears of it also where nobody has to ask
        except (SubscriptionLost, MCPError, TimeoutError):
            self._changed()

    async def _notified(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()

    def _running(self) -> Client:
        if self._client is None or self.lost:
            raise McpLostError(_ENDED, delivered=False)
        return self._client

    async def _answer(self, request: Coroutine[Any, Any, _Answer]) -> _Answer:
        owner = self._owner
        task = asyncio.create_task(request, name=f"request to MCP server {self._name}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(_read)
        try:
            await asyncio.wait((task,) if owner is None else (task, owner), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()  # it tells the server, and nobody waits for that
            raise
        if not task.done():
            task.cancel()
        if not task.done() or task.cancelled():
            raise McpLostError(self._why())
        try:
            return task.result()
        except MCPError as error:
            raise _failure_of(error) from error
        except (RuntimeError, ValidationError) as error:
            raise McpAnswerError(f"The answer of the MCP server {self._name} cannot be used: {describe(error)}") from error

    def _why(self) -> str:
        """Why the session ended, as far as it can be told."""
        owner = self._owner
        error = owner.exception() if owner is not None and owner.done() and not owner.cancelled() else None
        for leaf in () if error is None else _leaves(error):
            if isinstance(leaf, MCPError) and leaf.code in {UNREACHED, BROKEN, DENIED}:
                return leaf.message
            if isinstance(leaf, MCPError) and leaf.code == types.CONNECTION_CLOSED:
                return _ENDED
            if isinstance(leaf, MCPError):
                return f"It refused the session: {said(leaf.message)[:200]}"
            if isinstance(leaf, OSError):
                return "Its program cannot be started."
        return _ENDED


class _Watched(Transport):
    """A transport that says when nothing comes any more: the SDK itself would wait for ever for a program that has ended."""

    def __init__(self, inner: Transport, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    @override
    async def __aenter__(self) -> "TransportStreams":
        incoming, outgoing = await self._inner.__aenter__()
        return _Incoming(incoming, self._ended), outgoing

    @override
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _Incoming:
    """``ended`` is called when its reader leaves."""

    def __init__(self, inner: "ReadStream[SessionMessage | Exception]", ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    @property
    def last_context(self) -> object:
        """Of the sender of what came last; the SDK asks for it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return await self._inner.__anext__()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        self._ended()
        return await self._inner.__aexit__(kind, error, trace)


def _to_server(target: McpServer, clients: HttpClients) -> Connect:
    async def connect(stack: AsyncExitStack) -> Transport:
        headers = {"Accept-Encoding": "identity", **target.headers}
        if target.credential:
            headers["Authorization"] = f"Bearer {target.credential}"
        # No limit on reading: a call has its own time, and a stream of news may be silent for hours.
        timeout = httpx2.Timeout(_WRITE_S, connect=_CONNECT_S, read=None, pool=None)
        client = httpx2.AsyncClient(transport=BridgedTransport(clients()), headers=headers, timeout=timeout, trust_env=False)
        http = await stack.enter_async_context(client)
        return streamable_http_client(target.url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES)

    return connect


def _to_program(target: McpProgram) -> Connect:
    async def connect(_stack: AsyncExitStack) -> Transport:
        parameters = StdioServerParameters(command=target.command, args=list(target.args), env=dict(target.env))
        return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)

    return connect


def _listed(tool: types.Tool) -> ListedTool:
    annotations = tool.annotations
    return ListedTool(
        name=tool.name,
        title=tool.title or (annotations.title if annotations else None) or "",
        description=tool.description or "",
        parameters=tool.input_schema,
        read_only=bool(annotations and annotations.read_only_hint),
    )


def _failure_of(error: MCPError) -> McpLostError | McpAnswerError:
    match error.code:
        case code if code == UNREACHED:
            return McpLostError(error.message, delivered=False)
        case code if code in {BROKEN, types.CONNECTION_CLOSED}:
            return McpLostError(error.message if code == BROKEN else _ENDED)
        case types.INVALID_REQUEST if error.message == _FORGOTTEN:
            return McpLostError("It forgot the session.", delivered=False)
        case _:
            return McpAnswerError(error.message or f"error {error.code}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _read(task: "asyncio.Task[Any]") -> None:
    """The error of a task whose result nobody wants any more is no fault."""
    if not task.cancelled():
        task.exception()
