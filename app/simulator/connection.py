"""One client connection: bytes in, requests out to the router, replies played one at a time."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools
from typing_extensions import override

from app.simulator.log import RecordedRequest, RequestEnd, RequestLog
from app.simulator.player import Player
from app.simulator.reply import Reply

MAX_BODY_BYTES = 64 * 1024 * 1024
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request as it came; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    received_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply, the name that makes its ids unique, and the log's record of the request."""

    reply: Reply
    unique: bytes
    record: RecordedRequest | None = None


class Connection(asyncio.Protocol):
    """Parses requests with httptools and plays their replies in order.

    Reading never stops, so a client that closes its socket is noticed at once, also in the
    middle of a stream that is silent by script.
    """

    def __init__(self, answer: Callable[[HttpRequest], Answer], log: RequestLog, open_connections: set["Connection"]) -> None:
        self._answer = answer
        self._log = log
        self._open_connections = open_connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._player: Player | None = None
        self._current: Answer | None = None
        self._keep_alive = True
        self._write_paused = False
        self._begin_request()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # A cast and no check: uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._open_connections.add(self)

    @override
    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, for the event loop to report
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(_BAD_REQUEST)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._open_connections.discard(self)
        self._end(RequestEnd.CLIENT_CLOSED)
        self._waiting.clear()
        self._transport = None

    @override
    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._write_paused = True
        if self._player is not None:
            self._player.pause()

    @override
    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._write_paused = False
        if self._player is not None:
            self._player.resume()

    def stop(self) -> None:
        """Close at once because the simulator stops."""
        self._end(RequestEnd.STOPPED)
        if self._transport is not None:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        """Called by the parser, as all methods named on_...: a piece of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Invite a client that asks before it sends its body."""
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            self._refuse(_TOO_LARGE)

    def on_message_complete(self) -> None:
        """Take the whole request; it waits when the reply before it still plays (pipelining)."""
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            target=self._target.decode("latin-1"),
            headers=self._headers,
            body=bytes(self._body),
            keep_alive=self._parser.should_keep_alive(),
            received_at=self._loop.time(),
        )
        self._begin_request()
        self._waiting.append(request)
        if self._player is None:
            self._play_next()

    def _begin_request(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def _play_next(self) -> None:
        if not self._waiting or self._transport is None or self._transport.is_closing():
            return
        request = self._waiting.popleft()
        self._keep_alive = request.keep_alive
        self._current = self._answer(request)
        self._player = Player(self._transport, self._current.reply, self._current.unique, self._on_reply_end)
        if self._write_paused:
            self._player.pause()
        self._player.start()

    def _on_reply_end(self, keeps_connection: bool) -> None:
        is_fault = self._current is not None and self._current.reply.is_fault
        self._end(RequestEnd.FAULT if is_fault else RequestEnd.COMPLETED)
        if not keeps_connection or self._transport is None:
            return
        if self._keep_alive:
            # From the loop, not from here: many pipelined requests must not nest calls.
            self._loop.call_soon(self._play_waiting)
        else:
            self._transport.close()

    def _play_waiting(self) -> None:
        if self._player is None:
            self._play_next()

    def _end(self, ending: RequestEnd) -> None:
        if self._player is not None:
            self._player.stop()
            self._player = None
        if self._current is not None and self._current.record is not None:
            self._log.end(self._current.record, ending, self._loop.time())
        self._current = None

    def _refuse(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)
            self._transport.close()
