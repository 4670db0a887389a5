"""Tenants whose sessions are compacted soon, and what tests ask of them."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from app.domain.model import ApiMode
from app.domain.tenants import Prices, ProviderSpec, Purpose, RouteSpec, TenantSettings, TenantSpec
from app.simulator.log import RecordedRequest
from app.simulator.server import Simulator
from tests.e2e.harness import ADMIN_KEY, Client, Frame, Replica
from tests.e2e.stage import Stage

SUMMARY = "## Goal\nThe user counts upwards.\n## State of the work\nEverything up to here was said."
LONG = "word " * 200
"""1,000 bytes, so about 250 tokens."""
MARK = "[Historical Summary]"
BYTES_PER_TOKEN = 4
PRICES = Prices(input=1.0, cached_input=1.0, output=4.0)


def says(text: str) -> str:
    """A script that answers with ``text``."""
    return f"text={json.dumps(text)}"


def compacting_spec(name: str, mode: ApiMode, chat_url: str, summary_url: str | None, **options: Any) -> TenantSpec:
    """A tenant whose turns go to one provider, and whose summaries come from another, or from the same without ``summary_url``.

    Options: ``window``, ``output``, ``summary_window``, fields of :class:`TenantSettings`.
    """
    window, output, summary_window = options.pop("window", 4_000), options.pop("output", 400), options.pop("summary_window", 32_000)
    key = key_of(name)
    main = ProviderSpec(name="main", base_url=chat_url, api_mode=mode, api_key=f"sk-main-{name}-0123456789")
    chat = RouteSpec(
        provider="main",
        model="sim-text",
        context_window=window,
        output_tokens=output,
        max_output_tokens=output,
        max_attempts=2,
        prices=PRICES,
    )
    settings = TenantSettings(**options)
    if summary_url is None:
        return TenantSpec(name=name, api_keys=(key,), providers=(main,), chains={Purpose.CHAT: (chat,)}, settings=settings)
    other = ProviderSpec(name="summaries", base_url=summary_url, api_mode=mode, api_key=f"sk-sum-{name}-0123456789")
    summaries = RouteSpec(
        provider="summaries", model="sim-text", context_window=summary_window, output_tokens=1_000, max_attempts=1, prices=PRICES
    )
    chains: dict[Purpose, tuple[RouteSpec, ...]] = {Purpose.CHAT: (chat,), Purpose.COMPRESSION: (summaries,)}
    return TenantSpec(name=name, api_keys=(key,), providers=(main, other), chains=chains, settings=settings)


def key_of(name: str) -> str:
    """The key of a tenant made here."""
    return f"agw_test-key-of-{name}-0123456789"


@asynccontextmanager
async def compacting(stage: Stage, mode: ApiMode = ApiMode.CHAT_COMPLETIONS, *, own: bool = False, **options: Any) -> AsyncIterator[Client]:
    """A client of such a tenant on the stage: turns go to its provider, summaries to its backup (with ``own`` to the provider as well)."""
    name = f"compacting-{next(stage.numbers)}"
    spec = compacting_spec(name, mode, stage.provider.base_url, None if own else stage.backup.base_url, **options)
    await stage.replica.gateway.tenants.apply(spec, generate_key=False)
    async with stage.replica.client(key_of(name)) as client:
        yield client


@asynccontextmanager
async def compacting_on(running: Replica, provider: Simulator, backup: Simulator, **options: Any) -> AsyncIterator[Client]:
    """The same on one replica, under the name ``compacting``."""
    spec = compacting_spec("compacting", ApiMode.CHAT_COMPLETIONS, provider.base_url, backup.base_url, **options)
    await running.gateway.tenants.apply(spec, generate_key=False)
    async with running.client(key_of("compacting")) as client:
        yield client


async def grown(client: Client, session: str, turns: int = 8, text: str = LONG) -> list[Frame]:
    """Run plain turns that fill the window; returns all their frames."""
    frames: list[Frame] = []
    for number in range(turns):
        ran = await client.run(session, f'{number} {text}[[sim text="Answer {number}."]]')
        assert ran[-1].type == "turn.completed", (number, ran[-1].data)
        frames += ran
    return frames


async def summaries_of(client: Client, session: str) -> list[dict[str, Any]]:
    """The session's summaries, newest first."""
    response = await client.http.get(f"/sessions/{session}/summaries", params={"limit": 200})
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


async def compact(client: Client, session: str, **body: Any) -> list[Frame]:
    """Compact on demand, as a stream read to its end."""
    from_start = {"Accept": "text/event-stream"}
    async with client.http.stream("POST", f"/sessions/{session}/compact", json=body, headers=from_start) as response:
        assert response.status_code == 200, await response.aread()
        turn_id = response.headers["location"].removeprefix("/turns/")
        await response.aread()
    return await client.replay(turn_id)


async def metrics_of(client: Client) -> str:
    """What the operator is told."""
    return (await client.http.get("/metrics", headers={"Authorization": f"Bearer {ADMIN_KEY}"})).text


def compactions(frames: Iterable[Frame]) -> list[str]:
    """What happened to the context, in order, such as ``started gateway``."""
    return [f"{frame.type.removeprefix('compaction.')} {frame.data['reason']}" for frame in frames if frame.type.startswith("compaction.")]


def size_of(request: RecordedRequest) -> int:
    """Tokens of a request as the simulator counts them."""
    return len(request.raw) // BYTES_PER_TOKEN


def spoken(request: RecordedRequest) -> str:
    """Everything that a request says, as its JSON."""
    return json.dumps(request.body, ensure_ascii=False)
