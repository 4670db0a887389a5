"""Answers of facades let go of their turn whichever way they end."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast

import pytest
from fastapi import Request
from starlette.types import Message
from typing_extensions import override

from app.api.facades.answering import Order, answer
from app.api.facades.narration import Piece
from app.api.facades.protocol import Form
from app.api.openai_errors import CallError
from app.api.services import Services
from app.domain.ids import TenantId, TurnId
from app.domain.tenants import Tenant, TenantSettings
from app.domain.turns import OnDisconnect
from app.turns.service import Started
from tests.unit.api.conftest import IdleTurns, build

TURN = TurnId("turn_1")


class WatchedTurns(IdleTurns):
    """One turn, whose frames never come; ``followed`` counts its readers, ``left`` clients that are gone."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self._fault = fault
        self.followed = 0
        self.left = 0
        self.waiting = asyncio.Event()

    @override
    async def follow_started(self, turn_id: TurnId) -> AsyncGenerator[bytes, None]:
        self.followed += 1
        try:
            self.waiting.set()
            if self._fault is not None:
                raise self._fault
            await asyncio.Event().wait()
            yield b""
        finally:
            self.followed -= 1

    @override
    def client_left(self, tenant_id: TenantId, turn_id: TurnId) -> None:
        self.left += 1


class PlainForm(Form):
    """An answer of which nothing is shown."""

    def __init__(self) -> None:
        self.failure: CallError | None = None
        self.over = False

    @override
    def begin(self, model: str) -> bytes:
        return b""

    @override
    def feed(self, piece: Piece) -> bytes:
        return b""

    @override
    def fail(self, error: CallError) -> bytes:
        self.failure, self.over = error, True
        return b""

    @override
    def whole(self) -> dict[str, Any]:
        return {}


async def staying() -> Message:
    """A client that does not leave."""
    await asyncio.Event().wait()
    raise AssertionError


async def ask(turns: WatchedTurns, *, stream: bool) -> Any:
    services = replace(cast("Services", build().app.state.services), turns=turns)
    order = Order(
        tenant=Tenant(id=TenantId("ten_1"), name="acme", revision=1, settings=TenantSettings(), chains={}),
        started=Started(turn_id=TURN, replayed=False),
        form=PlainForm(),
        stream=stream,
        on_disconnect=OnDisconnect.CANCEL,
    )
    return await answer(Request({"type": "http", "headers": []}, staying), services, order)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_is_cancelled_follows_its_turn_no_more(stream: bool) -> None:
    turns = WatchedTurns()
    asking = asyncio.create_task(ask(turns, stream=stream))
    async with asyncio.timeout(5):
        await turns.waiting.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (turns.followed, turns.left) == (0, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_while_reading_passes_on_and_follows_no_more(stream: bool) -> None:
    turns = WatchedTurns(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        await ask(turns, stream=stream)
    assert (turns.followed, turns.left) == (0, 1)
