"""Web tools in a turn: pages are condensed and images looked at by the tenant's own chains, and the turn is charged for it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from app.domain.tenants import Purpose, RouteSpec
from app.simulator.script import HttpFault, Script
from app.simulator.server import Simulator
from tests.e2e.harness import KEY, Client, Frame, Replica, replica, tenant, text_of
from tests.fakes.web_server import Answer, WebServer, web_server

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
WORDS = "BEGIN " + "word " * 8_000 + "END"


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@pytest.fixture
async def helper() -> AsyncIterator[Simulator]:
    """The provider of the auxiliary chains."""
    simulator = Simulator(strict=True, picky=True)
    await simulator.start()
    try:
        yield simulator
    finally:
        await simulator.stop()


@pytest.fixture
async def gateway(database_url: str, provider: Simulator, helper: Simulator) -> AsyncIterator[Replica]:
    spec = tenant("acme", KEY, [provider.base_url, helper.base_url])
    routes = spec.chains[Purpose.CHAT]
    chains = {
        Purpose.CHAT: routes[:1],
        Purpose.WEB_EXTRACT: (RouteSpec(provider="p2", model="m-extract"),),
        Purpose.VISION: (RouteSpec(provider="p2", model="m-vision"),),
    }
    async with replica(database_url, outbound_allow="127.0.0.0/8") as running:
        await running.gateway.tenants.apply(msgspec.structs.replace(spec, chains=chains), generate_key=False)
        yield running


def asks_for(name: str, arguments: dict[str, Any]) -> str:
    return f'[[sim tool={name} args={json.dumps(arguments)} text="Done."]]'


def output_of(frames: list[Frame]) -> str:
    (completed,) = [frame for frame in frames if frame.type == "tool.completed"]
    return str(completed.data["output"])


async def test_a_long_page_is_condensed_by_its_chain_and_the_turn_is_charged(client: Client, web: WebServer, helper: Simulator) -> None:
    web.pages["/"] = Answer(body=WORDS.encode())
    helper.play(Script(text="The gist of it.", usage=(7_000, 40)))
    session = await client.session(toolsets=["web"])

    frames = await client.run(session, asks_for("web_extract", {"urls": [web.url()]}))

    assert output_of(frames).endswith("\n\nThe gist of it.")
    (asked,) = helper.requests
    assert asked.body["model"] == "m-extract"
    assert WORDS in asked.body["messages"][-1]["content"]
    ended = frames[-1].data
    assert (frames[-1].type, text_of(frames)) == ("turn.completed", "Done.")
    by_model = {route["route"]["model"]: route["usage"] for route in ended["routes"]}
    assert (by_model["m-extract"]["input_tokens"], by_model["m-extract"]["output_tokens"]) == (7_000, 40)
    assert ended["usage"]["input_tokens"] == by_model["m-extract"]["input_tokens"] + by_model["sim-text"]["input_tokens"]
    assert (await client.get(ended["turn_id"]))["usage"] == ended["usage"]


async def test_a_failed_summary_leaves_beginning_and_end(client: Client, web: WebServer, helper: Simulator) -> None:
    web.pages["/"] = Answer(body=WORDS.encode())
    helper.play(Script(fault=HttpFault(status=401)))
    session = await client.session(toolsets=["web"])
    frames = await client.run(session, asks_for("web_extract", {"urls": [web.url()]}))
    assert "not condensed" in output_of(frames)
    assert "BEGIN word" in output_of(frames)
    assert frames[-1].type == "turn.completed"
    assert {route["route"]["model"]: route["failed"] for route in frames[-1].data["routes"]}["m-extract"] == 1


async def test_an_image_is_looked_at_by_the_vision_chain(client: Client, web: WebServer, helper: Simulator) -> None:
    web.pages["/boat.png"] = Answer(body=PNG, content_type="image/png")
    helper.play(Script(text="A paper boat."))
    session = await client.session(toolsets=["web"])
    frames = await client.run(session, asks_for("vision_analyze", {"image": web.url("/boat.png"), "question": "What is it?"}))
    assert output_of(frames) == "A paper boat."
    (asked,) = helper.requests
    assert asked.body["model"] == "m-vision"
    parts = asked.body["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
