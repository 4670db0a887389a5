"""From a started turn to the response of a facade: streamed, or as a whole.

A stream begins with the first thing worth showing, so that a call whose model cannot be reached ends with an error status. After
one heartbeat interval it begins anyway: clients and proxies want to hear something.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from fastapi import Request, Response

from app.api.facades.endings import cut_off
from app.api.facades.narration import Diverged, Narrator, Piece
from app.api.facades.protocol import Form
from app.api.live_response import LiveResponse
from app.api.openai_errors import error_response
from app.api.rate_limit import rate_limit_headers
from app.api.services import Services
from app.domain.tenants import Tenant
from app.domain.turns import OnDisconnect
from app.turns.service import Started

_CLIENT_GONE = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A started turn with what its answer is to be."""

    tenant: Tenant
    started: Started
    form: Form
    stream: bool
    on_disconnect: OnDisconnect


async def answer(request: Request, services: Services, order: Order) -> Response:
    """The response of a facade call."""
    turn_id = order.started.turn_id
    headers = {"Location": f"/turns/{turn_id}", "X-Turn-Id": turn_id, **rate_limit_headers(order.started.quotas)}
    if order.started.replayed:
        headers["Idempotency-Replayed"] = "true"
        frames = await services.turns.follow(order.tenant.id, turn_id, 0)
    else:
        frames = services.turns.follow_started(turn_id)
    left = partial(services.turns.client_left, order.tenant.id, turn_id) if order.on_disconnect is OnDisconnect.CANCEL else None
    telling = _Telling(frames, order.form, patient=not order.stream)
    read = asyncio.ensure_future(telling.next() if order.stream else telling.to_end())
    leave = partial(_leave, read, telling)
    gone, handed_on = left, False
    try:
        if not await _arrived(request, read, services.heartbeat_s if order.stream else None):
            return Response(status_code=_CLIENT_GONE)
        if read.done():
            read.result()
            gone = left if telling.diverged else None
            if order.form.failure is not None:
                return error_response(order.form.failure, headers)
        if not order.stream:
            return Response(msgspec.json.encode(order.form.whole()), media_type="application/json", headers=headers)
        handed_on = True

        async def closing(ended: bool) -> None:
            await leave(None if ended and not telling.diverged else left)

        return LiveResponse(_stream(read, telling), heartbeat_s=services.heartbeat_s, headers=headers, closing=closing)
    finally:
        if not handed_on:
            await leave(gone)


class _Telling:
    """A turn's frames read through a form."""

    def __init__(self, frames: AsyncGenerator[bytes, None], form: Form, *, patient: bool) -> None:
        self._frames = frames
        self._narrator = Narrator(patient=patient)
        self._form = form
        self._begun = False
        self.diverged = False
        """The answer was given up although the turn may go on."""

    @property
    def over(self) -> bool:
        """Whether nothing follows."""
        return self._form.over

    async def next(self) -> bytes:
        """What comes next, as soon as there is something; the last of it makes ``over`` true."""
        while not self._form.over:
            frames = await anext(self._frames, None)
            if frames is None:
                return self.begin() + self._form.fail(cut_off())
            pieces = self._narrator.feed(frames)
            if pieces:
                return self.begin() + self._tell(pieces)
        return b""

    async def to_end(self) -> bytes:
        """Read everything; the form then has the whole."""
        while not self._form.over:
            await self.next()
        return b""

    def begin(self) -> bytes:
        """The beginning of the stream, once."""
        if self._begun:
            return b""
        self._begun = True
        return self._form.begin(self._narrator.model or "")

    def _tell(self, pieces: list[Piece]) -> bytes:
        told = []
        for piece in pieces:
            told.append(self._form.feed(piece))
            self.diverged = self.diverged or isinstance(piece, Diverged)
            if self._form.over:
                break
        return b"".join(told)

    async def aclose(self) -> None:
        """Stop following the turn."""
        await self._frames.aclose()


async def _stream(first: "asyncio.Future[bytes]", telling: _Telling) -> AsyncGenerator[bytes, None]:
    if not first.done():
        yield telling.begin()
    if told := await first:
        yield told
    while not telling.over:
        if told := await telling.next():
            yield told


async def _arrived(request: Request, read: "asyncio.Future[bytes]", within_s: float | None) -> bool:
    """Wait until ``read`` is done or the time is over; false when the client has left before."""
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((gone, read), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return read.done() or not gone.done()
    finally:
        gone.cancel()


async def _leave(read: "asyncio.Future[bytes]", telling: _Telling, left: Callable[[], None] | None) -> None:
    """Stop reading; ``left`` says that the client has gone, once this reader does not count any more."""
    read.cancel()
    await asyncio.gather(read, return_exceptions=True)
    await telling.aclose()
    if left is not None:
        left()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
