"""Chains of routes for tests of delivery: any API mode, and what a test may ask of the provider's end."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.domain.tenants import ProviderSpec, Purpose, RouteSpec, TenantSettings, TenantSpec
from app.simulator.log import RecordedRequest
from app.simulator.server import Simulator
from tests.e2e.harness import Client, Frame, text_of
from tests.e2e.stage import Stage

DEADLINE_S = 0.4
"""For the first token and for the next one."""
MODES = tuple(ApiMode)
CHAT, RESPONSES, MESSAGES = MODES
every_mode = pytest.mark.parametrize("mode", MODES, ids=[mode.value for mode in MODES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One route of a chain with its provider; ``route`` are fields of a :class:`RouteSpec`, ``provider`` of a :class:`ProviderSpec`."""

    url: str
    mode: ApiMode = ApiMode.CHAT_COMPLETIONS
    model: str = "sim-text"
    route: dict[str, Any] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)


def chain_spec(name: str, key: str, links: Sequence[Link], **route: Any) -> TenantSpec:
    """A tenant whose chat chain is ``links``: providers p1, p2, … with short deadlines and ``route`` for all."""
    providers = tuple(
        ProviderSpec(
            **{
                "name": f"p{number}",
                "base_url": link.url,
                "api_mode": link.mode,
                "api_key": f"sk-test-{name}-{number}-0123456789",
                **link.provider,
            }
        )
        for number, link in enumerate(links, 1)
    )
    common = {"first_token_timeout_s": DEADLINE_S, "stale_timeout_s": DEADLINE_S, **route}
    routes = tuple(
        RouteSpec(provider=provider.name, model=link.model, **{**common, **link.route})
        for provider, link in zip(providers, links, strict=True)
    )
    return TenantSpec(name=name, api_keys=(key,), providers=providers, chains={Purpose.CHAT: routes}, settings=TenantSettings())


@asynccontextmanager
async def chain(stage: Stage, *links: Link, **route: Any) -> AsyncIterator[Client]:
    """A client of a new tenant with that chain."""
    name = f"chained-{next(stage.numbers)}"
    key = f"agw_test-key-of-{name}-0123456789"
    await stage.replica.gateway.tenants.apply(chain_spec(name, key, links, **route), generate_key=False)
    async with stage.replica.client(key) as client:
        yield client


@asynccontextmanager
async def pair(stage: Stage, mode: ApiMode, **route: Any) -> AsyncIterator[Client]:
    """A client of a tenant with two routes in one mode: the stage's provider, then its backup."""
    async with chain(stage, Link(url=stage.provider.base_url, mode=mode), Link(url=stage.backup.base_url, mode=mode), **route) as client:
        yield client


async def run_as_json(client: Client, session: str, text: str) -> tuple[int, dict[str, Any]]:
    """One turn answered as one JSON document: its status and content."""
    response = await client.http.post(f"/sessions/{session}/turns", json={"input": text}, headers={"Accept": "application/json"})
    document: dict[str, Any] = json.loads(response.content)
    return response.status_code, document


def failures(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    """Failed attempts in order: provider and reason."""
    return [(frame.data["route"]["provider"], frame.data["reason"]) for frame in frames if frame.type == "attempt.failed"]


def problems(*simulators: Simulator) -> list[tuple[str, ...]]:
    """What strict providers had against what they were sent."""
    return [request.problems for simulator in simulators for request in simulator.requests if request.problems]


async def goes_on(client: Client, session: str, *simulators: Simulator) -> Frame:
    """The session takes a plain turn, and no strict provider has anything against any history; returns the turn's end."""
    frames = await client.run(session, '[[sim text="Still here."]] and now?')
    assert frames[-1].type == "turn.completed", frames[-1].data
    assert frames[-1].data["output"] == "Still here."
    assert problems(*simulators) == []
    return frames[-1]


async def answered_by(client: Client, session: str | None = None, text: str = '[[sim text="Said."]]') -> str:
    """The provider that answers a plain turn."""
    frames = await client.run(session or await client.session(), text)
    assert frames[-1].data["output"] == text_of(frames) == "Said.", frames[-1].data
    return str(frames[-1].data["route"]["provider"])


def credential_of(request: RecordedRequest) -> str:
    """The key that a request came with, whatever its protocol."""
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
