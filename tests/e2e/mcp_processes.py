"""MCP servers of tests as processes, and their logs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import ROOT, free_port

MODULE = "tests.e2e.mcp_server"


async def logged(log: Path, line: str, within_s: float = 5.0) -> None:
    """Return once ``line`` is in a log."""
    async with asyncio.timeout(within_s):
        while line not in lines_of(log):
            await asyncio.sleep(0.01)


def lines_of(log: Path) -> list[str]:
    """The lines of a log so far."""
    return log.read_text().splitlines() if log.exists() else []


@dataclass(slots=True)
class McpProcess:
    """One server; it can be killed and started again on its port."""

    port: int
    log: Path
    era: str
    _process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def lines(self) -> list[str]:
        return lines_of(self.log)

    async def start(self) -> None:
        arguments = ("-m", MODULE, "--log", str(self.log), "--port", str(self.port), "--era", self.era)
        self._process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT)
        async with asyncio.timeout(30):
            while not await self._answers():
                assert self._process.returncode is None
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def logged(self, line: str, within_s: float = 5.0) -> None:
        """Return once ``line`` is in the log."""
        await logged(self.log, line, within_s)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


@asynccontextmanager
async def mcp_process(folder: Path, era: str = "modern") -> AsyncIterator[McpProcess]:
    """A running server."""
    server = McpProcess(free_port(), folder / "mcp.log", era)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
