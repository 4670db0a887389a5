"""Tools of an operator for end-to-end tests: each counts its runs, and a test can wait for them.

Use with ``replica(url, tool_modules=MODULE)`` and call ``reset()`` before a test.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from app.tools.operator import Tool

MODULE = "tests.e2e.operator_tools"
LONG_S = 30.0
"""How long a tool sleeps that is only ended by an interrupt."""
STUBBORN_S = 10.0
"""How long ``ignore_cancel`` goes on at most."""


class Runs:
    """How often each tool began (``begun``) and came to its own end (``ended``), from whatever thread."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.saved: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.begun.clear()
            self.ended.clear()
            self.saved.clear()
            self._waiters.clear()

    def begin(self, name: str) -> None:
        """A call of ``name`` begins."""
        self._count(self.begun, name)

    def end(self, name: str) -> None:
        """A call of ``name`` comes to its own end."""
        self._count(self.ended, name)

    async def wait_begun(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Return once ``count`` calls of ``name`` have begun."""
        await self._wait(lambda: self.begun[name] >= count, timeout_s)

    async def wait_ended(self, name: str, count: int = 1, timeout_s: float = 5.0) -> None:
        """Return once ``count`` calls of ``name`` have come to their own end."""
        await self._wait(lambda: self.ended[name] >= count, timeout_s)

    def _count(self, counter: Counter[str], name: str) -> None:
        with self._lock:
            counter[name] += 1
            waiters = list(self._waiters)
        for loop, event in waiters:
            loop.call_soon_threadsafe(event.set)

    async def _wait(self, reached: Callable[[], bool], timeout_s: float) -> None:
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    await entry[1].wait()
                    entry[1].clear()
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)


runs = Runs()
"""Of this process; the gateways of a test run in it."""


def reset() -> None:
    """Forget the runs of earlier tests."""
    runs.clear()


async def lookup(q: str) -> str:
    """Look something up."""
    runs.begin("lookup")
    runs.end("lookup")
    return f"found {q}"


async def save(path: str, text: str) -> str:
    """Save a text under a path."""
    runs.begin("save")
    runs.saved.append((path, text))
    runs.end("save")
    return f"saved {path}"


def now() -> str:
    """Say what time it is: always noon."""
    runs.begin("now")
    runs.end("now")
    return "12:00"


def boom(kind: str = "runtime") -> object:
    """Fail in the way that ``kind`` names."""
    runs.begin("boom")
    match kind:
        case "timeout":
            raise TimeoutError
        case "group":
            raise ExceptionGroup("several", [ValueError("first"), OSError("second")])
        case "exit":
            raise SystemExit(3)
        case "keyboard":
            raise KeyboardInterrupt
        case "not_json":
            return object()
        case _:
            raise RuntimeError


async def slow(seconds: float = LONG_S) -> str:
    """Take ``seconds`` seconds."""
    runs.begin("slow")
    await asyncio.sleep(seconds)
    runs.end("slow")
    return f"slept {seconds:g} s"


def wipe_all() -> str:
    """Wipe everything."""
    runs.begin("wipe_all")
    runs.end("wipe_all")
    return "wiped"


async def catch_exception() -> str:
    """Sleep long and catch every Exception."""
    runs.begin("catch_exception")
    with suppress(Exception):
        await asyncio.sleep(LONG_S)
        runs.end("catch_exception")
    return "slept or not"


async def swallow_cancel() -> str:
    """Sleep long; when cancelled, return a result as if nothing had happened."""
    runs.begin("swallow_cancel")
    try:
        await asyncio.sleep(LONG_S)
    except asyncio.CancelledError:
        runs.end("swallow_cancel")
        return "done all the same"
    return "slept"


async def ignore_cancel() -> str:
    """Ignore every cancellation until the test says ``runs.begin("let go")``, or STUBBORN_S at most."""
    runs.begin("ignore_cancel")
    until = asyncio.get_running_loop().time() + STUBBORN_S
    while not runs.begun["let go"] and (left := until - asyncio.get_running_loop().time()) > 0:
        with suppress(asyncio.CancelledError, TimeoutError):
            await runs.wait_begun("let go", timeout_s=left)
    runs.end("ignore_cancel")
    return "went on regardless"


async def cancel_itself() -> str:
    """Raise CancelledError although nobody cancelled the call."""
    runs.begin("cancel_itself")
    raise asyncio.CancelledError


async def meet(party: str, size: int) -> str:
    """Wait until ``size`` calls of one party are there: they must run at the same time."""
    runs.begin(f"meet {party}")
    await runs.wait_begun(f"meet {party}", size)
    return f"met {party}"


def giant(size: int) -> str:
    """Return ``size`` bytes, with a beginning and an end."""
    return f"HEAD {'x' * (size - 10)} TAIL"


_NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    Tool(lookup, {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}),
    Tool(save, {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}, "required": ["path", "text"]}),
    Tool(now, _NOTHING),
    Tool(boom, {"type": "object", "properties": {"kind": {"type": "string"}}}),
    Tool(slow, {"type": "object", "properties": {"seconds": {"type": "number"}}}),
    Tool(wipe_all, _NOTHING),
    Tool(catch_exception, _NOTHING),
    Tool(swallow_cancel, _NOTHING),
    Tool(ignore_cancel, _NOTHING),
    Tool(cancel_itself, _NOTHING),
    Tool(giant, {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}),
    Tool(
        meet,
        {"type": "object", "properties": {"party": {"type": "string"}, "size": {"type": "integer"}}, "required": ["party", "size"]},
    ),
]
