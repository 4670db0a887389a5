"""Several worker processes behind one listening socket, each a replica of its own.

The parent serves nothing: it starts workers, starts another for one that died, passes signals on, and outlives them all. Workers are in
process groups of their own, so Ctrl-C reaches the parent alone and a worker is told once.
"""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from app.cli.children import start_child
from app.cli.errors import FAILED
from app.ports import Clock

logger = logging.getLogger(__name__)

KILL_AFTER_S = 7.0
"""Beyond the grace time: a worker ends itself 5 s beyond it."""
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 10.0
SETTLED_S = 30.0
"""A worker that lived so long is started again without a longer pause than the first."""
READY = b"1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What the workers share. ``environment`` is theirs, ``listener_fd`` an inheritable bound socket."""

    count: int
    listener_fd: int
    environment: Mapping[str, str]
    grace_s: float


class WorkerGroup:
    """Starts the workers, keeps their number, and ends them."""

    def __init__(self, plan: WorkerPlan, clock: Clock, serving: Callable[[], None]) -> None:
        """``serving`` is called once, when every worker takes connections."""
        self._plan = plan
        self._clock = clock
        self._serving = serving
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ready: set[int] = set()
        self._leaving = asyncio.Event()
        self._exit_code = 0
        # Each worker is waited for by a thread: reading its pipe, then its end.
        self._threads = ThreadPoolExecutor(plan.count, thread_name_prefix="worker")

    async def run(self) -> int:
        """Serve until a signal, or until a worker cannot even start; returns the exit code."""
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sent, self._leave)
        try:
            await asyncio.gather(*(self._keep(number) for number in range(self._plan.count)))
        finally:
            self._kill_all()
            self._threads.shutdown(wait=False)
        return self._exit_code

    async def _keep(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._leaving.is_set():
            started_at = self._clock.monotonic()
            code = await self._run_one(number)
            if self._leaving.is_set():
                return
            if len(self._ready) < self._plan.count:
                self._exit_code = code if code > 0 else FAILED  # the worker has said why
                self._leave()
                return
            if self._clock.monotonic() - started_at > SETTLED_S:
                pause_s = FIRST_PAUSE_S
            logger.error("a worker ended unexpectedly; another is started", extra={"worker": number, "exit_code": code, "pause_s": pause_s})
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _run_one(self, number: int) -> int:
        """Start a worker and wait for its end; its exit code, negative for a signal."""
        process, reading = self._start()
        self._processes[number] = process
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._threads, _is_ready, reading):
            self._mark_ready(number)
        try:
            return await loop.run_in_executor(self._threads, process.wait)
        finally:
            del self._processes[number]

    def _start(self) -> "tuple[subprocess.Popen[bytes], int]":
        """A worker and the pipe on which it says that it serves."""
        reading, writing = os.pipe()
        listener = self._plan.listener_fd
        arguments = ("-m", "app", "serve", "--fd", str(listener), "--ready-fd", str(writing), "--parent", str(os.getpid()))
        try:
            return start_child(arguments, environment=self._plan.environment, pass_fds=(listener, writing)), reading
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)

    def _mark_ready(self, number: int) -> None:
        if number in self._ready:
            return
        self._ready.add(number)
        if len(self._ready) == self._plan.count:
            self._serving()

    def _leave(self) -> None:
        """At each signal: the workers' first drains them, their second interrupts their turns."""
        if not self._leaving.is_set():
            self._leaving.set()
            asyncio.get_running_loop().call_later(self._plan.grace_s + KILL_AFTER_S, self._kill_all)
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            pass


def _is_ready(pipe: int) -> bool:
    """Wait until the worker says that it serves; false when it ends without."""
    try:
        return os.read(pipe, 1) == READY
    finally:
        os.close(pipe)
