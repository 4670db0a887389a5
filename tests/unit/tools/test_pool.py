"""The pool of threads for blocking tools."""

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from app.tools.pool import ToolPool

SCRIPT = """
import asyncio, threading
from app.tools.pool import ToolPool

async def main():
    pool = ToolPool(2)
    started = threading.Event()
    def block():
        started.set()
        threading.Event().wait()
    task = asyncio.create_task(pool.run(block))
    await asyncio.to_thread(started.wait)
    task.cancel()
    pool.close()

asyncio.run(main())
print("ended")
"""
name: ContextVar[str] = ContextVar("name", default="none")


def raise_stop() -> object:
    raise StopIteration("x")


async def test_it_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    pool = ToolPool(1)
    assert await pool.run(lambda: threading.current_thread().daemon) is True
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 / 0)
    with pytest.raises(SystemExit):
        await pool.run(lambda: sys.exit(3))
    assert await pool.run(lambda: "still there") == "still there"
    pool.close()


async def test_a_stop_iteration_does_not_hang_the_caller() -> None:
    pool = ToolPool(1)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(pool.run(raise_stop), 5)
    pool.close()


async def test_context_variables_are_those_of_the_caller() -> None:
    pool = ToolPool(1)
    name.set("caller")
    assert await pool.run(name.get) == "caller"
    await pool.run(lambda: name.set("thread"))
    assert name.get() == "caller"
    pool.close()


async def test_all_threads_work_at_once_and_are_started_when_needed() -> None:
    pool = ToolPool(8)
    assert pool._threads == 0
    assert await pool.run(lambda: 1) == 1
    assert pool._threads == 1
    barrier = threading.Barrier(8, timeout=10)
    assert set(await asyncio.gather(*(pool.run(barrier.wait) for _ in range(8)))) == set(range(8))
    pool.close()


async def test_more_work_than_threads_waits_in_order_and_none_is_lost() -> None:
    pool = ToolPool(1)
    order: list[int] = []
    await asyncio.gather(*(pool.run(partial(order.append, number)) for number in range(100)))
    assert order == list(range(100))
    pool.close()


async def test_a_job_cancelled_while_it_waits_never_runs() -> None:
    pool = ToolPool(1)
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []

    def block() -> None:
        started.set()
        release.wait(30)

    first = asyncio.create_task(pool.run(block))
    second = asyncio.create_task(pool.run(lambda: ran.append("second")))
    await asyncio.to_thread(started.wait, 5)
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run(lambda: ran.append("third"))
    assert ran == ["third"]
    pool.close()


async def test_closing_drops_what_waits_and_takes_no_more() -> None:
    pool = ToolPool(1)
    started, release = threading.Event(), threading.Event()

    def block() -> str:
        started.set()
        release.wait(30)
        return "done"

    running = asyncio.create_task(pool.run(block))
    await asyncio.to_thread(started.wait, 5)
    waiting = asyncio.create_task(pool.run(lambda: None))
    await asyncio.sleep(0)
    pool.close()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(lambda: None)
    release.set()
    assert await running == "done"


def test_a_hanging_call_does_not_keep_the_process_from_ending() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("ended\n", "", 0)


class Blockers:
    """Jobs that hold their thread until they are let go. ``began`` counts them."""

    def __init__(self, pool: ToolPool) -> None:
        self._pool = pool
        self.began = threading.Semaphore(0)
        self.release = threading.Semaphore(0)
        self.threads: set[int] = set()

    def start(self, count: int) -> list[asyncio.Task[object]]:
        """Give the pool so many jobs."""
        return [asyncio.create_task(self._pool.run(self._block)) for _ in range(count)]

    async def wait_began(self, count: int) -> None:
        """Return when ``count`` more of them have begun."""
        for _ in range(count):
            assert await asyncio.to_thread(self.began.acquire, True, 5)

    def _block(self) -> None:
        self.threads.add(threading.get_ident())
        self.began.release()
        assert self.release.acquire(timeout=30)


async def test_a_larger_pool_starts_what_waits_at_once() -> None:
    pool = ToolPool(1)
    blockers = Blockers(pool)
    jobs = blockers.start(4)
    await blockers.wait_began(1)
    pool.resize(3)
    await blockers.wait_began(2)
    assert not blockers.began.acquire(blocking=False)
    blockers.release.release(4)
    await asyncio.gather(*jobs)
    assert (pool.size, pool.places.size) == (3, 3)
    pool.close()


async def test_a_smaller_pool_lets_running_jobs_end_and_loses_none() -> None:
    pool = ToolPool(3)
    blockers = Blockers(pool)
    jobs = blockers.start(6)
    await blockers.wait_began(3)
    pool.resize(1)
    blockers.release.release(2)
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    while sum(job.done() for job in jobs) < 2:
        await asyncio.wait([job for job in jobs if not job.done()], return_when=asyncio.FIRST_COMPLETED)
    assert not blockers.began.acquire(blocking=False), "two of three threads are gone, the third is busy"
    blockers.release.release(4)
    await asyncio.gather(*jobs)
    last = Blockers(pool)
    jobs = last.start(4)
    last.release.release(4)
    await asyncio.gather(*jobs)
    assert len(last.threads) == 1
    pool.close()
