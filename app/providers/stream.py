"""One attempt: one request to one route, watched by three deadlines.

Connecting has its own. The first content must come within ``first_token_timeout_s`` of the attempt's start, more of it within
``stale_timeout_s`` of the last. Content alone counts: comments, pings, role-only and empty deltas prove the socket only. Time in which
nobody reads (a slow consumer) does not count. There is one timer per attempt; a token only moves a number.

A response that begins like a document (``{``, ``[``, ``<``) is one, whatever its content type says.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from app.domain.model import Delta, FailureReason, Usage, estimated_usage
from app.domain.tenants import Route
from app.ports import Clock
from app.providers.classify import Failure, classify_error, classify_response, transport_failure
from app.providers.mode import ProviderError, ReplyParts, StreamDecoder
from app.providers.sse import EventTooLargeError, SseDecoder
from app.providers.transport import ConnectFailedError, ConnectionBrokenError, Endpoint, ProviderTransport, ResponseStream

TAIL_S: Final = 2.0
"""A reply whose own end marker was seen waits this long for usage and the end of the stream, and is complete without them then."""
DRAIN_S: Final = 0.05
"""How long the end of a response may take behind the announced end of its stream, so that its connection can be used again."""
ERROR_BODY_S: Final = 5.0
MAX_ERROR_BODY_BYTES: Final = 64 * 1024
MAX_REPLY_BYTES: Final = 32 * 1024 * 1024

_SUCCESS: Final = range(200, 300)
_NOTHING: Final = Usage()
_DOCUMENT_STARTS: Final = (b"{", b"[", b"<")


class Attempt:
    """Runs one attempt: ``open``, ``read`` until it returns nothing, then look at ``outcome``; ``close`` always."""

    __slots__ = (
        "_clock",
        "_deadline",
        "_declined",
        "_decoder",
        "_document",
        "_endpoint",
        "_expired",
        "_extension_s",
        "_filled",
        "_head",
        "_loop",
        "_received",
        "_rest_s",
        "_route",
        "_sse",
        "_started",
        "_stream",
        "_timer",
        "_waiting",
        "began_at",
        "outcome",
    )

    def __init__(
        self,
        route: Route,
        endpoint: Endpoint,
        decoder: StreamDecoder,
        rest_s: Callable[[], float],
        *,
        filled: float | None = None,
    ) -> None:
        """``filled``: the part of the route's window that the request takes, by estimate."""
        self._filled = filled
        self._rest_s = rest_s
        self._route = route
        self._endpoint = endpoint
        self._decoder = decoder
        self._loop = asyncio.get_running_loop()
        self._clock: Clock | None = None
        self._deadline = self._loop.time() + route.first_token_timeout_s
        self._extension_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False
        self._expired = False
        self._started = False
        self._stream: ResponseStream | None = None
        self._sse = SseDecoder()
        self._head: bytes | None = b""
        """What has come while nothing tells a stream from a document yet; ``None`` afterwards."""
        self._document: list[bytes] | None = None
        self._received = 0
        self._declined = False
        """The provider said no within a successful response, before it wrote anything."""
        self.began_at = 0.0
        """When it was opened, on the monotonic clock."""
        self.outcome: ReplyParts | Failure | None = None
        """The verdict, once ``open`` returned false or ``read`` returned nothing."""

    @property
    def arrived(self) -> bool:
        """Whether the provider had sent anything, be it only the head of a response."""
        return self._stream is not None

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Of the response, once it began."""
        return self._stream.headers if self._stream is not None else None

    @property
    def accepted(self) -> bool:
        """Whether the provider took the request: it works on it, and is paid for that."""
        return self._stream is not None and self._stream.status in _SUCCESS

    @property
    def refused(self) -> bool:
        """Whether the provider said no before it wrote anything, by its status or within a successful response."""
        return self._declined or (self._stream is not None and self._stream.status not in _SUCCESS)

    @property
    def counted(self) -> bool:
        """Whether ``usage`` is what the provider counted at the end; else nobody knows all that was used."""
        usage = self._decoder.usage
        return usage != _NOTHING and (self._decoder.finished or self._decoder.done)

    @property
    def usage(self) -> Usage:
        """As far as the provider reported it."""
        return self._decoder.usage

    def used(self, input_tokens: int) -> Usage:
        """What it used: as the provider counted it, else by estimate, with ``input_tokens`` for the request.

        What was refused, be it within a successful response, costs nothing but what the provider says itself.
        """
        reported = self._decoder.usage
        if self.counted or self.refused or not self.accepted:
            return reported
        guessed = estimated_usage(reported.input_tokens or input_tokens, self._decoder.written)
        return msgspec.structs.replace(
            reported, input_tokens=guessed.input_tokens, output_tokens=max(reported.output_tokens, guessed.output_tokens)
        )

    async def open(self, transport: ProviderTransport, body: bytes, clock: Clock) -> None:
        """Send the request; sets ``outcome`` when no stream begins."""
        self._clock = clock
        self.began_at = clock.monotonic()
        try:
            async with asyncio.timeout_at(self._deadline):
                stream = self._stream = await transport.open(self._endpoint, body)
        except ConnectFailedError as error:
            self.outcome = transport_failure(FailureReason.CONNECT_FAILED, retryable=not error.permanent)
        except ConnectionBrokenError:
            self.outcome = transport_failure(FailureReason.CONNECTION_BROKEN)
        except TimeoutError:
            self.outcome = transport_failure(FailureReason.FIRST_TOKEN_TIMEOUT)
        else:
            if stream.status not in _SUCCESS:
                body = await _read_error_body(stream)
                self.outcome = classify_response(
                    stream.status, stream.headers, body, secrets=self._endpoint.secrets, now=clock.now(), filled=self._filled
                )

    async def read(self) -> list[Delta]:
        """Return the next deltas, as many as arrived together; nothing when ``outcome`` is set."""
        decoder = self._decoder
        while self.outcome is None:
            if decoder.done or decoder.defect is not None:
                await self._drain()
                self._settle()
                break
            data = await self._next_bytes()
            if data is None:
                break
            deltas = self._take(data) if data else self._take_end()
            if decoder.moved:
                self._started = True
                self._extension_s = self._route.stale_timeout_s
            if decoder.finished:
                self._extension_s = TAIL_S
            if deltas:
                if not decoder.finished:
                    self._rest()  # behind its end a reply has nothing to wait for
                return deltas
        return []

    def close(self) -> None:
        """Stop the timer and close the socket, unless the response was read to its end. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None:
            self._stream.close()

    def _rest(self) -> None:
        rest_s = self._rest_s()
        if rest_s and self._stream is not None:
            self._stream.rest(rest_s)

    async def _next_bytes(self) -> bytes | None:
        """What arrives next, empty at the end of the response; ``None`` when ``outcome`` was set instead."""
        stream = self._stream
        if stream is None:
            raise RuntimeError("read before open")
        self._arm()
        self._waiting = True
        try:
            data = await stream.read()
        except ConnectionBrokenError:
            self._settle_break()
            return None
        finally:
            self._waiting = False
        self._received += len(data)
        if self._received > MAX_REPLY_BYTES:
            self.outcome = transport_failure(FailureReason.INVALID_RESPONSE)
            return None
        return data

    def _take(self, data: bytes) -> list[Delta]:
        if self._head is not None:
            self._head += data
            start = self._head.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not start:
                return []
            data, self._head = self._head, None
            if start.startswith(_DOCUMENT_STARTS):
                self._document = []
        if self._document is not None:
            self._document.append(data)
            return []
        try:
            return self._decoder.feed(self._sse.feed(data))
        except EventTooLargeError:
            self.outcome = transport_failure(FailureReason.INVALID_RESPONSE)
            return []

    def _take_end(self) -> list[Delta]:
        """The response has ended: take what was waiting for its end, and judge."""
        deltas: list[Delta] = []
        if self._document is not None:
            deltas = self._decoder.feed_body(b"".join(self._document).removeprefix(b"\xef\xbb\xbf"))
        else:
            # Some servers forget the last blank line. Half an event is what it is: no end marker, hence incomplete.
            rest = [event for event in self._sse.finish() if event.rstrip().endswith((b"}", b"[DONE]"))]
            deltas = self._decoder.feed(rest)
        self._settle()
        return deltas

    def _settle(self) -> None:
        verdict = self._decoder.finish()
        match verdict:
            case ReplyParts():
                self.outcome = verdict
            case ProviderError():
                self._declined = not self._decoder.written
                now = None if self._clock is None else self._clock.now()
                self.outcome = classify_error(verdict.value, secrets=self._endpoint.secrets, now=now)
            case FailureReason():
                self.outcome = transport_failure(verdict)

    def _settle_break(self) -> None:
        if not self._expired:
            self.outcome = transport_failure(FailureReason.CONNECTION_BROKEN)
        elif self._decoder.finished:
            self._settle()
        else:
            self.outcome = transport_failure(FailureReason.STALE if self._started else FailureReason.FIRST_TOKEN_TIMEOUT)

    async def _drain(self) -> None:
        """Read the end of a response whose stream has ended already; give up on what does not end soon."""
        stream = self._stream
        if stream is None or stream.ended or not self._decoder.done:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                while await stream.read():
                    pass
        except (TimeoutError, ConnectionBrokenError):
            pass  # the reply is complete; the connection is closed instead of used again

    def _arm(self) -> None:
        """Move the deadline if content came, and see that the timer fires no later than it."""
        if self._extension_s:
            self._deadline = self._loop.time() + self._extension_s
            self._extension_s = 0.0
        timer = self._timer
        if timer is None or timer.when() > self._deadline:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._waiting:
            return  # the next read arms it again
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check)
            return
        self._expired = True
        self.close()


async def _read_error_body(stream: ResponseStream) -> bytes:
    """As much of an error's body as comes in time and is worth reading."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            while len(body) < MAX_ERROR_BODY_BYTES and (data := await stream.read()):
                body += data
    except (TimeoutError, ConnectionBrokenError):
        pass  # the status alone decides then
    return bytes(body)
