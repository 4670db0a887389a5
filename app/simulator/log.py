"""What the simulator was asked, and how each request ended."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RequestEnd(StrEnum):
    """How an exchange ended.

    `fault` is a scripted misbehaviour (error statuses included) that the client stayed to see;
    a client that leaves first, also during a fault, is `client_closed`.
    """

    COMPLETED = "completed"
    CLIENT_CLOSED = "client_closed"
    FAULT = "fault"
    STOPPED = "stopped"


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """One request to the provider. Times are monotonic seconds of the event loop's clock.

    `raw` is the body as it came, `body` the parsed JSON (None when it could not be parsed);
    `status` is None when no answer was begun; `ending` and `ended_at` are None while the exchange
    is open.
    """

    number: int
    received_at: float
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any
    problems: tuple[str, ...] = field(default=())
    status: int | None = None
    ending: RequestEnd | None = None
    ended_at: float | None = None


class RequestLog:
    """The last requests, with a way to wait for the next ones."""

    def __init__(self, size: int) -> None:
        self.records: deque[RecordedRequest] = deque(maxlen=size)
        self.count = 0
        """Requests since the last clear(), those no longer kept included."""
        self._serial = 0
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def next_number(self) -> int:
        """Number the next request; never starts over, so that ids made from it stay unique."""
        self._serial += 1
        return self._serial

    def add(self, record: RecordedRequest) -> None:
        """Keep a request and wake whoever waits for it."""
        self.records.append(record)
        self.count += 1
        self._wake()

    def end(self, record: RecordedRequest, ending: RequestEnd, at: float) -> None:
        """Note how and when (monotonic seconds) a request ended; the first note stays."""
        if record.ending is None:
            record.ending, record.ended_at = ending, at
            self._wake()

    def after(self, number: int) -> list[RecordedRequest]:
        """Return the kept requests with a higher number."""
        return [record for record in self.records if record.number > number]

    def clear(self) -> int:
        """Forget all requests; returns how many were kept."""
        kept = len(self.records)
        self.records.clear()
        self.count = 0
        return kept

    async def wait_until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `reached()` holds, asked again at every change of the log.

        Raises:
            TimeoutError: when it does not hold within `timeout_s`.
        """
        if reached():
            return
        entry = (reached, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await entry[1]
        finally:
            self._waiting.remove(entry)

    def _wake(self) -> None:
        for reached, future in self._waiting:
            if not future.done() and reached():
                future.set_result(None)
