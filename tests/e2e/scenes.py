"""Short ways to a gateway with other settings, and to what tests wait for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from app.domain.tenants import TenantSpec
from app.simulator.log import RecordedRequest, RequestEnd
from app.simulator.server import Simulator
from tests.e2e import odd_tools, operator_tools
from tests.e2e.harness import KEY, OTHER_KEY, Client, Frame, Replica, replica, tenant

TOOL_MODULES = f"{operator_tools.MODULE},{odd_tools.MODULE}"
INTERRUPT_S = 1.0
"""Within this an interrupt has reached everything."""


@asynccontextmanager
async def opened(database_url: str, provider: Simulator, **settings: Any) -> AsyncIterator[tuple[Replica, Client]]:
    """A gateway with the tests' tools, tenants acme and other, and acme's client."""
    operator_tools.reset()
    async with replica(database_url, **{"tool_modules": TOOL_MODULES, **settings}) as running:
        await running.gateway.tenants.apply(tenant("acme", KEY, [provider.base_url]), generate_key=False)
        await running.gateway.tenants.apply(tenant("other", OTHER_KEY, [provider.base_url]), generate_key=False)
        async with running.client() as client:
            yield running, client


def with_settings(spec: TenantSpec, **settings: Any) -> TenantSpec:
    """A tenant with other settings."""
    return msgspec.structs.replace(spec, settings=msgspec.structs.replace(spec.settings, **settings))


def now() -> float:
    """Monotonic seconds, as the simulator's log has them."""
    return asyncio.get_running_loop().time()


async def request_number(provider: Simulator, number: int) -> RecordedRequest:
    """The ``number``-th request to the provider, as soon as it is there."""
    return (await provider.wait_for_requests(number, 5))[number - 1]


async def assert_closed(provider: Simulator, record: RecordedRequest, since: float) -> None:
    """The gateway has closed the connection of a request within a second."""
    await provider.wait_for_end(record, 5)
    assert record.ending is RequestEnd.CLIENT_CLOSED
    assert record.ended_at is not None
    assert record.ended_at - since < INTERRUPT_S


async def assert_goes_on(client: Client, provider: Simulator, session_id: str) -> list[dict[str, Any]]:
    """The session takes a plain turn, whose history a strict and picky provider accepts; returns the messages it was sent."""
    before = len(provider.requests)
    frames = await client.run(session_id, '[[sim text="Still here."]] and now?')
    assert frames[-1].type == "turn.completed", frames[-1].data
    assert frames[-1].data["output"] == "Still here."
    sent = list(provider.requests)[before:]
    assert [(request.status, request.problems) for request in sent] == [(200, ())]
    messages: list[dict[str, Any]] = sent[0].body["messages"]
    return messages


async def ended(client: Client, turn_id: str, within_s: float) -> dict[str, Any]:
    """The turn once it has ended, without following it: a reader would keep some turns going."""
    async with asyncio.timeout(within_s):
        while (turn := await client.get(turn_id))["ended_at"] is None:
            await asyncio.sleep(0.02)
    return turn


def of_type(frames: Sequence[Frame], event_type: str) -> list[Frame]:
    """The frames of one type."""
    return [frame for frame in frames if frame.type == event_type]


def first_turn_id(frames: Sequence[Frame]) -> str:
    """The turn that frames are of."""
    return str(frames[0].data["turn_id"])
