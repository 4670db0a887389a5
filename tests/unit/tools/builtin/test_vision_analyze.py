"""The tool vision_analyze, against a web server on loopback and a scripted model."""

import base64
import json
from collections.abc import AsyncIterator

import pytest

from app.domain.errors import ModelUnavailableError
from app.domain.model import FailureReason, RouteUse
from app.domain.outbound import OutboundPolicy
from app.domain.tenants import Purpose
from app.domain.tools import ToolOutcome
from app.tools.builtin.vision_analyze import MAX_IMAGE, vision_analyze_tool
from app.tools.execution import ToolExecutor
from app.tools.outbound import NOT_PUBLIC, Outbound
from app.tools.registry import ToolRegistry
from tests.fakes.auxiliary import ScriptedClients, auxiliary_of
from tests.fakes.scripted_model import PRIMARY, USAGE, ScriptedModel, reply
from tests.fakes.tooling.builders import call_of, context_of
from tests.fakes.web_server import Answer, WebServer, web_server

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
IMAGES = [
    (PNG, "image/png"),
    (b"\xff\xd8\xff\xe0jfif", "image/jpeg"),
    (b"GIF89a....", "image/gif"),
    (b"GIF87a....", "image/gif"),
    (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
]


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel([[reply(text="A boat.")]])


async def look(image: str, clients: ScriptedClients, allow: str = "127.0.0.0/8") -> ToolOutcome:
    tool = vision_analyze_tool(Outbound(OutboundPolicy(allow)), auxiliary_of(clients))
    arguments = json.dumps({"image": image, "question": "What is it?"})
    return await ToolRegistry([tool], ToolExecutor(30)).call(call_of("vision_analyze", arguments), context_of("vision_analyze"))


def data_url(image: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


@pytest.mark.parametrize(("image", "kind"), IMAGES)
async def test_an_image_is_fetched_and_shown_as_what_it_is(server: WebServer, model: ScriptedModel, image: bytes, kind: str) -> None:
    server.pages["/"] = Answer(body=image, content_type="text/plain")
    clients = ScriptedClients(model)
    outcome = await look(server.url(), clients)
    assert outcome == ToolOutcome(output="A boat.", uses=(RouteUse(route=PRIMARY, attempts=1, usage=USAGE),), toolset="web")
    assert clients.asked == [Purpose.VISION]
    assert model.requests[0].messages[0].content == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": data_url(image, kind)}},
    ]


async def test_a_data_url_is_looked_at_without_any_request(server: WebServer, model: ScriptedModel) -> None:
    outcome = await look(data_url(PNG, "image/jpeg"), ScriptedClients(model), allow="")
    assert outcome.output == "A boat."
    assert str(model.requests[0].messages[0].content).count(data_url(PNG)) == 1


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("data:image/png,plain", "written in base64"),
        ("data:image/png;base64,!!!", "no proper base64"),
        ("data:image/png;base64,grün", "no proper base64"),
        (data_url(b"<svg/>", "image/svg+xml"), "not a PNG, JPEG, GIF or WebP"),
        (data_url(b""), "not a PNG, JPEG, GIF or WebP"),
        (data_url(PNG + b"x" * MAX_IMAGE), "larger than 5 MB"),
        ("http://10.0.0.1/a.png", NOT_PUBLIC),
        ("file:///etc/passwd", "Only addresses with http"),
        ("DATA:text/html;base64,PGI+", "not a PNG, JPEG, GIF or WebP"),
    ],
)
async def test_what_is_no_image_is_not_shown_to_a_model(model: ScriptedModel, image: str, said: str) -> None:
    outcome = await look(image, ScriptedClients(model))
    assert outcome.is_error
    assert said in outcome.output
    assert model.requests == []


async def test_a_file_that_is_too_large_is_not_read_to_its_end(server: WebServer, model: ScriptedModel) -> None:
    server.pages["/"] = Answer(body=PNG + b"x" * MAX_IMAGE)
    outcome = await look(server.url(), ScriptedClients(model))
    assert (outcome.is_error, "larger than 5 MB" in outcome.output) == (True, True)


async def test_a_model_that_does_not_answer_is_a_failed_call() -> None:
    model = ScriptedModel([ModelUnavailableError(FailureReason.UNSUPPORTED, "No route takes images.")])
    assert await look(data_url(PNG), ScriptedClients(model)) == ToolOutcome(
        output="Not looked at: No route takes images.", is_error=True, toolset="web"
    )


async def test_a_tenant_without_a_chain_gets_a_clear_result() -> None:
    outcome = await look(data_url(PNG), ScriptedClients(None))
    assert outcome == ToolOutcome(output="Not looked at: This tenant has no chat chain.", is_error=True, toolset="web")
