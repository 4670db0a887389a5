"""The load client: a process of its own, cheap enough not to be what is measured (protocols on uvloop, no task per stream).

Reads a Job from standard input, connects all streams, says `ready`, waits for `go`, answers with an Outcome.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from typing import cast

import httptools
import msgspec
import uvloop
from typing_extensions import override

from benchmarks.jobs import GO, READY, Job, Outcome, Sample
from benchmarks.lines import say, standard_input

_MESSAGES = 5
_SHOWN = 300
_OK = 200


class Run:
    """Counts what the streams of one job report."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.event_mark = job.event_mark.encode()
        self.token_mark = job.token_mark.encode()
        self.end_mark = job.end_mark.encode()
        self.samples: list[Sample] = []
        self.messages: list[str] = []
        self.began_at = 0.0
        self.ended = asyncio.Event()
        self._errors = 0
        self._open = len(job.streams)

    @property
    def errors(self) -> int:
        """Turns that did not end well, those that were never begun included."""
        return sum(map(len, self.job.streams)) - len(self.samples)

    def fail(self, message: str) -> None:
        """Keep what went wrong; the turn's missing sample counts it."""
        if len(self.messages) < _MESSAGES:
            self.messages.append(message)

    def stream_ended(self) -> None:
        """One stream has no more turns."""
        self._open -= 1
        if self._open == 0:
            self.ended.set()


class Stream(asyncio.Protocol):
    """One connection and its turns."""

    def __init__(self, run: Run, paths: list[str], request: Callable[[str], bytes]) -> None:
        self._run = run
        self._requests = [request(path) for path in reversed(paths)]
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._over = False
        self._forget()

    def _forget(self) -> None:
        self._sent_at = self._event_at = self._token_at = 0.0
        self._tokens = 0
        self._ended_well = False
        self._tail = b""
        self._shown = b""

    def begin(self) -> None:
        """Send the next request, if there is one."""
        if not self._requests or self._transport is None:
            self._finish()
            return
        self._forget()
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests.pop())

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._sent_at and not self._over:
            self._run.fail(f"the connection was lost: {exc!r}")
        self._finish()

    def on_body(self, body: bytes) -> None:
        """Called by the parser: a piece of the answer."""
        run = self._run
        if not self._event_at and run.event_mark in body:
            self._event_at = time.perf_counter()
        text = self._tail + body
        count = text.count(run.token_mark)
        if count:
            if not self._tokens:
                self._token_at = time.perf_counter()
            self._tokens += count
        if run.end_mark in text:
            self._ended_well = True
        self._tail = text[1 - len(run.token_mark) :]  # too short for a whole mark: nothing is counted twice
        self._shown = body

    def on_message_complete(self) -> None:
        """Called by the parser: the answer is over."""
        run, now = self._run, time.perf_counter()
        status = self._parser.get_status_code()
        if status == _OK and self._ended_well and self._tokens == run.job.tokens:
            sent_at = self._sent_at
            run.samples.append(Sample(sent_at - run.began_at, self._event_at - sent_at, self._token_at - sent_at, now - sent_at))
        else:
            shown = self._shown.decode(errors="replace")[-_SHOWN:]
            run.fail(f"status {status}, {self._tokens} of {run.job.tokens} tokens, end with {shown}")
        self._parser = httptools.HttpResponseParser(self)
        asyncio.get_running_loop().call_soon(self.begin)

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._run.stream_ended()


def _request_maker(job: Job) -> Callable[[str], bytes]:
    body = job.body.encode()
    headers = {"Host": f"127.0.0.1:{job.port}", "Content-Length": str(len(body)), **job.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return lambda path: f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def _connect(run: Run, paths: list[str], request: Callable[[str], bytes]) -> Stream:
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(run, paths, request), "127.0.0.1", run.job.port)
    return stream


async def _work(job: Job, orders: asyncio.StreamReader) -> Outcome:
    run = Run(job)
    request = _request_maker(job)
    streams = [await _connect(run, paths, request) for paths in job.streams]
    gc.collect()
    gc.disable()
    say(READY)
    if (await orders.readline()).strip() != GO:
        sys.exit(1)
    loop = asyncio.get_running_loop()
    cpu_before = time.process_time()
    run.began_at = time.perf_counter()
    for index, stream in enumerate(streams):
        loop.call_later(job.ramp_s * index / len(streams), stream.begin)
    orphaned = asyncio.ensure_future(orders.read())
    ended = asyncio.ensure_future(run.ended.wait())
    await asyncio.wait((ended, orphaned), timeout=job.timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not run.ended.is_set():
        run.fail(f"not over after {job.timeout_s:.0f} s")
    return Outcome(
        samples=run.samples,
        errors=run.errors,
        messages=run.messages,
        wall_s=time.perf_counter() - run.began_at,
        cpu_s=time.process_time() - cpu_before,
    )


async def _main() -> None:
    orders = await standard_input()
    job = msgspec.json.decode(await orders.readline(), type=Job)
    say(msgspec.json.encode(await _work(job, orders)))


if __name__ == "__main__":
    uvloop.run(_main())
