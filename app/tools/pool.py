"""What running tool calls take: places for all of them, and threads for those that block.

Unlike those of ``concurrent.futures.ThreadPoolExecutor`` the threads are daemons: a tool that hangs in a system call cannot keep the
process from ending.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, TypeVar

from typing_extensions import override

from app.ports import ToolCapacity
from app.tools.failures import Caught
from app.tools.places import CallPlaces

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Ended(Generic[_Value]):
    """How a job ended. A value, not the future's exception: asyncio cannot put a StopIteration into a future and would wait for ever."""

    values: list[_Value]
    error: BaseException | None


class _Job(Generic[_Value]):
    def __init__(self, function: Callable[[], _Value], context: Context) -> None:
        self.future: Future[_Ended[_Value]] = Future()
        self._function = function
        self._context = context

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        values: list[_Value] = []
        with Caught() as caught:
            values.append(self._context.run(self._function))
        self.future.set_result(_Ended(values, caught.error))


class ToolPool(ToolCapacity):
    """Places for ``size`` calls at once, and at most as many threads, started when there is work for them.

    What finds no thread free waits in order: threads that hang are not given back, though the calls that they were for have ended.
    """

    def __init__(self, size: int) -> None:
        self.places = CallPlaces(size)
        self._size = size
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._queue: deque[_Job[object]] = deque()
        self._changed = Condition()

    async def run(self, function: Callable[[], object]) -> object:
        """Call ``function`` on a thread, with the caller's context variables; raises what it raises.

        Cancelled while the job waits: it never runs. Cancelled while it runs: the thread finishes it, the result is dropped. Raises
        RuntimeError when the pool is closed or the machine gives no more threads.
        """
        job: _Job[object] = _Job(function, copy_context())
        self._submit(job)
        ended = await asyncio.wrap_future(job.future)
        if ended.error is not None:
            raise ended.error
        return ended.values[0]

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def running(self) -> int:
        return self.places.running

    @property
    @override
    def waiting(self) -> int:
        return self.places.waiting

    @override
    def resize(self, size: int) -> None:
        with self._changed:
            self._size = size
            for _ in range(len(self._queue) - self._idle):
                if not self._start():
                    break
            self._changed.notify_all()  # threads too many end, as soon as they are free
        self.places.resize(size)

    def close(self) -> None:
        """Take no more work, drop what waits, let free threads end; running calls are left to themselves. Does not wait."""
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for job in waiting:
            job.future.cancel()

    def _submit(self, job: _Job[object]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool for blocking tools is closed")
            # Threads that were told of earlier jobs but have not woken yet still count as idle.
            if self._idle <= len(self._queue):
                self._start()
            self._queue.append(job)
            self._changed.notify()

    def _start(self) -> bool:
        """Start a thread, unless there are enough."""
        if self._threads >= self._size:
            return False
        Thread(target=self._work, name=f"tool-{self._threads}", daemon=True).start()
        self._threads += 1
        return True

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # an idle thread must not keep the last call's arguments and result

    def _next(self) -> _Job[object] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closed or self._threads > self._size)
            self._idle -= 1
            if self._queue and self._threads <= self._size:
                return self._queue.popleft()
            self._threads -= 1
            return None
