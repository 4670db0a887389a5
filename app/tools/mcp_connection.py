"""One tenant's connection to one MCP server: opened when it is needed, its tools as they were listed last, a dead server left alone."""

import asyncio
import logging
import math
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from app.domain.tools import ToolOutcome
from app.ports import Clock
from app.tools.mcp_session import Dial, McpAnswerError, McpLostError, McpSession, McpUnavailableError, Target
from app.tools.mcp_tools import Call, outcome_of, prepared_tools, unavailable
from app.tools.tool import PreparedTool

OPEN_S: Final = 20.0
"""What a server gets to open a session. A server of before 2026 may leave the SDK waiting for 10 of them."""
LIST_S: Final = 10.0
"""What it gets to list its tools."""
REFRESH_S: Final = 300.0
"""How old a list of tools gets."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""A server that cannot be reached is tried again after a pause that doubles from the first to the longest."""

Tools = Mapping[str, PreparedTool]
_Value = TypeVar("_Value")

logger = logging.getLogger(__name__)


class McpConnection:
    """``call`` is what its tools do when they are called. ``used_at`` is when it was used last, on the clock's monotonic time."""

    def __init__(self, target: Target, dial: Dial, clock: Clock, call: Call) -> None:
        self._target = target
        self._dial = dial
        self._call_tool = call
        self._clock = clock
        self._session: McpSession | None = None
        self._opening: asyncio.Task[McpSession] | None = None
        self._listing: asyncio.Task[Tools] | None = None
        self._tools: Tools | None = None
        self._listed_at = -math.inf
        self._failures = 0
        self._reason = ""
        self._retry_at = -math.inf
        self._waiting = 0
        self._closed = False
        self._leaving: dict[asyncio.Task[None], McpSession] = {}
        self.used_at = clock.monotonic()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return self._waiting > 0

    @property
    def known(self) -> Tools | None:
        """The tools as they were listed last, by the names that models see; ``None`` when they never were."""
        return self._tools

    async def tools(self) -> Tools:
        """The tools, listed anew when the list is old or the server said that it changed. Raises McpUnavailableError."""
        self._touch()
        lasts = self._session is not None and not self._session.lost
        if self._tools is not None and lasts and self._clock.monotonic() - self._listed_at < REFRESH_S:
            return self._tools
        self._waiting += 1
        try:
            if self._listing is None:
                self._listing = _spawn(self._list(), f"list the tools of MCP server {self._target.name}")
            # Others may wait for the same list: who gives up takes it from nobody.
            return await asyncio.shield(self._listing)
        finally:
            self._waiting -= 1
            self._touch()

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool by the server's name for it. Failures are results."""
        self._waiting += 1
        try:
            return await self._call(name, arguments)
        except McpUnavailableError as error:
            return unavailable(self._target, error.reason)
        except McpLostError as error:
            if not error.delivered:
                return unavailable(self._target, error.reason)
            text = f"The MCP server {self._target.name} went away before it answered; the effect is unknown. {error.reason}"
            return ToolOutcome(output=text, is_error=True)
        except McpAnswerError as error:
            return ToolOutcome(output=str(error), is_error=True)
        finally:
            self._waiting -= 1
            self._touch()

    async def close(self) -> None:
        """End the session; nothing is opened any more."""
        self._closed = True
        for task in (self._opening, self._listing):
            if task is not None:
                task.cancel()
        sessions = [*self._leaving.values(), *(() if self._session is None else (self._session,))]
        self._session = None
        await asyncio.gather(*(session.close() for session in sessions))

    def _touch(self) -> None:
        self.used_at = self._clock.monotonic()

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        session = await self._open_session()
        try:
            result = await session.call(name, arguments)
        except McpLostError as error:
            if error.delivered:
                raise
            # The server forgot the session, as after a restart, and ran nothing.
            self._drop(session)
            result = await (await self._open_session()).call(name, arguments)
        return outcome_of(result)

    async def _list(self) -> Tools:
        try:
            try:
                tools = await self._listed()
            except McpLostError:  # a session can be over without anybody having noticed
                tools = await self._listed()
        except TimeoutError:
            raise self._failed("It did not list its tools in time.") from None
        except McpLostError as error:
            raise self._failed(error.reason) from error
        except McpAnswerError as error:
            raise self._failed(f"It did not list its tools: {str(error)[:200]}") from error
        finally:
            self._listing = None
        self._tools = tools
        return tools

    async def _listed(self) -> Tools:
        session = await self._open_session()
        self._listed_at = self._clock.monotonic()  # a change that is announced meanwhile makes the list old again
        try:
            async with asyncio.timeout(LIST_S):
                listed = await session.list_tools()
        except (TimeoutError, McpLostError):
            self._drop(session)
            raise
        # On a thread: checking the schemas of a large server takes longer than the event loop may stand still.
        return await asyncio.to_thread(prepared_tools, self._target, listed, self._call_tool)

    async def _open_session(self) -> McpSession:
        if self._session is not None and not self._session.lost:
            return self._session
        pause_s = self._retry_at - self._clock.monotonic()
        if pause_s > 0:
            raise McpUnavailableError(self._reason, pause_s)
        if self._opening is None:
            self._opening = _spawn(self._open(), f"open a session with MCP server {self._target.name}")
        return await asyncio.shield(self._opening)

    async def _open(self) -> McpSession:
        try:
            if self._closed:
                raise McpUnavailableError("The connection was closed.")
            async with asyncio.timeout(OPEN_S):
                session = await self._dial(self._target, self._changed)
        except TimeoutError:
            raise self._failed("It did not answer in time.") from None
        except McpLostError as error:
            raise self._failed(error.reason) from error
        finally:
            self._opening = None
        self._failures = 0
        self._retry_at = -math.inf
        self._session = session
        return session

    def _changed(self) -> None:
        self._listed_at = -math.inf

    def _failed(self, reason: str) -> McpUnavailableError:
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._failures, 16), LONGEST_PAUSE_S)
        self._failures += 1
        self._reason = reason
        self._retry_at = self._clock.monotonic() + pause_s
        logger.warning("the MCP server %s is not available: %s", self._target.name, reason)
        return McpUnavailableError(reason, pause_s)

    def _drop(self, session: McpSession) -> None:
        """Leave a session to the calls that still run in it."""
        if self._session is session:
            self._session = None
        leaving = _spawn(session.finish(), f"leave a session with MCP server {self._target.name}")
        self._leaving[leaving] = session
        leaving.add_done_callback(self._leaving.pop)


def _spawn(work: Coroutine[Any, Any, _Value], name: str) -> asyncio.Task[_Value]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_read)
    return task


def _read(task: "asyncio.Task[Any]") -> None:
    """Everybody who waited may have been cancelled: the error is nobody's then, and no fault."""
    if not task.cancelled():
        task.exception()
