"""Child processes of a run, and what /proc says of them.

Children end when their standard input does, so none outlives this process, however it ends.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from typing_extensions import override

_LINE_LIMIT = 1 << 25
_LOG_TAIL_LINES = 15
_PATIENCE_S = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


class ChildFailedError(Exception):
    """A child process ended, or said nothing in time."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the gateway has for itself, and which are for all others; both empty: nothing is pinned."""

    gateway: frozenset[int]
    others: frozenset[int]

    @override
    def __str__(self) -> str:
        if not self.gateway:
            return "not pinned (one core only): figures of latency say little"
        return f"gateway on core {_list(self.gateway)}, provider, client and Postgres on {_list(self.others)}"


def share_cores() -> Cores:
    """Give the gateway the first core and keep this process, with the children it starts, on the others."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) == 1:
        return Cores(frozenset(), frozenset())
    cores = Cores(frozenset(available[:1]), frozenset(available[1:]))
    os.sched_setaffinity(0, cores.others)
    return cores


def _list(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))


class Child:
    """A `python -m benchmarks....` process that is spoken to in lines."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self._name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls, module: str, *arguments: str, log_dir: Path, environment: Mapping[str, str] | None = None, cores: frozenset[int] = frozenset()
    ) -> Self:
        """Start `module`; its standard error goes to a file in `log_dir`."""
        log = (log_dir / f"{module}.log").open("ab+")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches us, and we decide when they go
            limit=_LINE_LIMIT,
        )
        if cores:
            os.sched_setaffinity(process.pid, cores)  # long before Python has started its threads
        return cls(module, process, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def say(self, line: bytes) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def hear(self, timeout_s: float) -> bytes:
        """The next line. Raises ChildFailedError."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ChildFailedError(self._with_log("says nothing")) from None
        if not line:
            raise ChildFailedError(self._with_log("ended"))
        return line

    async def stop(self) -> None:
        """End the process: by the end of its input, else by force."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
            self._log.close()

    async def kill(self) -> None:
        """End the process at once, as a crash does; harmless when it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._log.close()

    def _with_log(self, what: str) -> str:
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n  ".join([f"{self._name} {what}:", *tail])


def cpu_s(pid: int) -> float:
    """CPU time of a process with all its threads, in seconds (10 ms steps)."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def family_cpu_s(pid: int) -> float:
    """CPU time of a process, its children of now, and those it has waited for, in seconds."""
    ticks = sum(map(int, _stat(pid)[11:15]))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def machine_cpu_s() -> float:
    """CPU time that all processes and the kernel have used on this machine, in seconds."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _stat(pid: int) -> list[str]:
    """The fields behind the name: number 1 is the parent, 11 and 12 user and system time, 13 and 14 those of waited-for children."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
