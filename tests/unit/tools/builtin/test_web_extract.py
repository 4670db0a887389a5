"""The tool web_extract, against a web server on loopback and a scripted model."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.domain.errors import ModelUnavailableError
from app.domain.model import FailureReason, RouteUse
from app.domain.outbound import OutboundPolicy
from app.domain.tenants import Purpose
from app.domain.tools import ToolOutcome
from app.tools.builtin.web_extract import MAX_TEXT, web_extract_tool
from app.tools.execution import ToolExecutor
from app.tools.outbound import NOT_PUBLIC, Outbound
from app.tools.pages import MAX_BYTES, Pages
from app.tools.registry import ToolRegistry
from tests.fakes.auxiliary import ScriptedClients, auxiliary_of
from tests.fakes.scripted_model import PRIMARY, USAGE, Script, ScriptedModel, reply
from tests.fakes.tooling.builders import call_of, context_of
from tests.fakes.web_server import Answer, WebServer, web_server

ARTICLE = """<!doctype html><html><head><title>Bridges &amp; boats</title><script>var tracked = 1;</script></head><body>
<nav><a href="/home">Home</a> <a href="/login">Login</a></nav>
<article><h1>Old bridges</h1><p>The stone bridge of the town was built in 1342 and carries
<a href="/boats">small boats</a> past quiet houses to this day, as everybody there knows.</p>
<p>It has seven arches, each of them older than the one before it, and nobody remembers why.</p></article>
<footer>Imprint, cookies</footer></body></html>"""
CALLED = RouteUse(route=PRIMARY, attempts=1, usage=USAGE)


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


def html(text: str) -> Answer:
    return Answer(body=text.encode(), content_type="text/html; charset=utf-8")


def long_text(characters: int) -> str:
    words = "BEGIN " + "word " * (characters // 5) + "END"
    return words[: characters - 4] + " END"


async def extract(
    arguments: dict[str, Any], *scripts: Script, clients: ScriptedClients | None = None, allow: str = "127.0.0.0/8", parse_s: float = 20.0
) -> ToolOutcome:
    chains = clients or ScriptedClients(ScriptedModel(*scripts))
    tool = web_extract_tool(Pages(Outbound(OutboundPolicy(allow)), parse_s=parse_s), auxiliary_of(chains))
    return await ToolRegistry([tool], ToolExecutor(30)).call(call_of("web_extract", json.dumps(arguments)), context_of("web_extract"))


async def test_a_page_becomes_its_main_text(server: WebServer) -> None:
    server.pages["/"] = html(ARTICLE)
    outcome = await extract({"urls": [server.url()]})
    assert not outcome.is_error
    assert outcome.uses == ()
    assert outcome.output.startswith(f"# Bridges & boats\n{server.url()}\n")
    assert "was built in 1342" in outcome.output
    assert "[small boats]" in outcome.output
    assert "tracked" not in outcome.output
    assert "Login" not in outcome.output


async def test_plain_text_stays_as_it_is_and_a_page_that_moved_says_where(server: WebServer) -> None:
    server.pages["/old"] = Answer(301, headers=(("Location", "/new"),))
    server.pages["/new"] = Answer(body=b"* a list\n* of things")
    outcome = await extract({"urls": [server.url("/old")]})
    assert outcome.output == f"{server.url('/old')} (found at {server.url('/new')})\n\n* a list\n* of things"


async def test_several_pages_come_in_the_order_asked_for_and_failures_stay_with_their_page(server: WebServer) -> None:
    server.pages["/a"] = Answer(body=b"first")
    server.pages["/c"] = Answer(body=b"third")
    urls = [server.url("/a"), server.url("/b"), server.url("/c"), "http://10.0.0.1/", server.url("/a")]
    outcome = await extract({"urls": urls})
    assert not outcome.is_error
    assert outcome.output.split("\n\n---\n\n") == [
        f"{urls[0]}\n\nfirst",
        f"{urls[1]}\nNot read: The host answered 404.",
        f"{urls[2]}\n\nthird",
        f"{urls[3]}\nNot read: {NOT_PUBLIC}",
    ]


async def test_when_no_page_can_be_read_the_call_failed(server: WebServer) -> None:
    outcome = await extract({"urls": [server.url()]}, allow="")
    assert outcome == ToolOutcome(output=f"{server.url()}\nNot read: {NOT_PUBLIC}", is_error=True, toolset="web")
    assert server.connections == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(body=b"%PDF-1.7 ...", content_type="application/pdf"), "This is a PDF"),
        (Answer(body=b"%PDF-1.7 ...", content_type="text/html"), "This is a PDF"),
        (Answer(body=b"\x89PNG", content_type="image/png"), "This is no text: [binary data of 4 bytes (image/png), not shown]"),
        (html("<html><body><script>render()</script></body></html>"), "the page has no text"),
        (html(""), "the page has no text"),
        (html("<html"), "the page has no text"),
    ],
)
async def test_what_has_no_text_gets_a_clear_message(server: WebServer, answer: Answer, said: str) -> None:
    server.pages["/"] = answer
    outcome = await extract({"urls": [server.url()]})
    assert outcome.is_error
    assert said in outcome.output


@pytest.mark.parametrize("arguments", [{}, {"urls": []}, {"urls": ["a"] * 6}, {"urls": "http://a.example/"}, {"urls": [1]}])
async def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    outcome = await extract(arguments)
    assert outcome.is_error
    assert "do not fit" in outcome.output


async def test_a_text_at_the_limit_is_shown_whole(server: WebServer) -> None:
    server.pages["/"] = Answer(body=long_text(MAX_TEXT).encode())
    outcome = await extract({"urls": [server.url()]})
    assert outcome.output == f"{server.url()}\n\n{long_text(MAX_TEXT)}"


async def test_a_longer_text_is_condensed_by_its_chain_and_charged(server: WebServer) -> None:
    server.pages["/"] = Answer(body=long_text(MAX_TEXT + 1).encode())
    model = ScriptedModel([[reply(text="The gist.")]])
    clients = ScriptedClients(model)
    outcome = await extract({"urls": [server.url()], "focus": "arches"}, clients=clients)
    assert outcome == ToolOutcome(
        output=f"{server.url()}\n[condensed from {MAX_TEXT + 1:,} characters]\n\nThe gist.", uses=(CALLED,), toolset="web"
    )
    assert clients.asked == [Purpose.WEB_EXTRACT]
    asked = str(model.requests[0].messages[0].content)
    assert "What is asked for: arches" in asked
    assert long_text(MAX_TEXT + 1) in asked
    assert model.requests[0].tools == ()


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ([ModelUnavailableError(FailureReason.OVERLOADED, "No route answered.")], "No route answered."),
        ([[reply(text="  ")]], "The model gave no answer."),
    ],
)
async def test_without_a_summary_beginning_and_end_are_shown_with_the_reason(server: WebServer, script: Script, fault: str) -> None:
    text = long_text(50_000)
    server.pages["/"] = Answer(body=text.encode())
    outcome = await extract({"urls": [server.url()]}, script)
    assert not outcome.is_error
    assert f"[not condensed ({fault}): beginning and end of 50,000 characters]" in outcome.output
    assert "\n\nBEGIN word" in outcome.output
    assert "32,000 characters are left out here" in outcome.output
    assert outcome.output.endswith(" END")


async def test_a_tenant_without_a_chain_gets_beginning_and_end(server: WebServer) -> None:
    server.pages["/"] = Answer(body=long_text(50_000).encode())
    outcome = await extract({"urls": [server.url()]}, clients=ScriptedClients(None))
    assert "not condensed (This tenant has no chat chain.)" in outcome.output


async def test_only_what_fits_the_window_is_shown_to_the_model(server: WebServer) -> None:
    server.pages["/"] = Answer(body=long_text(MAX_BYTES + 100_000).encode())
    model = ScriptedModel([[reply(text="The gist.")]])
    outcome = await extract({"urls": [server.url()]}, clients=ScriptedClients(model))
    assert f"condensed from {MAX_BYTES:,} characters; the page is even longer" in outcome.output
    assert model.requests[0].input_tokens <= model.room.most


async def test_a_page_that_is_poison_to_the_parser_costs_only_itself(server: WebServer) -> None:
    server.pages["/bad"] = html("<html><body>" + "<div>" * 200_000)
    server.pages["/good"] = html(ARTICLE)
    outcome = await extract({"urls": [server.url("/bad"), server.url("/good")]})
    bad, good = outcome.output.split("\n\n---\n\n")
    assert "Not read:" in bad
    assert "was built in 1342" in good


async def test_cancelling_stops_the_condensing(server: WebServer) -> None:
    server.pages["/"] = Answer(body=long_text(50_000).encode())
    model = ScriptedModel([asyncio.Event()])
    calling = asyncio.create_task(extract({"urls": [server.url()]}, clients=ScriptedClients(model)))
    await model.waiting.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert model.closed == 1


async def test_a_page_that_takes_too_long_to_parse_is_given_up(server: WebServer) -> None:
    server.pages["/"] = html("<html><body><p " + " ".join(f'a{number}="x"' for number in range(100_000)) + ">text</p></body></html>")
    outcome = await extract({"urls": [server.url()]}, parse_s=0.2)
    assert outcome == ToolOutcome(output=f"{server.url()}\nNot read: The page could not be parsed in time.", is_error=True, toolset="web")
