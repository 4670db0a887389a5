"""Webhook tools: what is sent, what is made of the answer, and when a call is repeated."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from app.domain.errors import InvalidRequestError
from app.domain.guardrails import ToolTraits
from app.domain.ids import TenantId
from app.domain.outbound import OutboundPolicy
from app.domain.tenant_tools import WebhookMethod, WebhookTool, WebhookToolSpec
from app.domain.tenants import Tenant, TenantSettings
from app.domain.tool_rules import signing_key
from app.domain.tools import CallStatus, ToolContext, ToolOutcome
from app.tools.execution import ToolExecutor
from app.tools.outbound import NOT_PUBLIC, Outbound
from app.tools.registry import ToolRegistry
from app.tools.webhook import WebhookRules, WebhookSource
from app.tools.webhook_call import MAX_BODY, WebhookCaller, call_id_of, signed
from tests.fakes.clock import HandClock
from tests.fakes.standard_webhooks import verify
from tests.fakes.tooling.builders import call_of, context_of, tool_of
from tests.fakes.web_server import Answer, WebServer, web_server

SECRET = "whsec_c2lnbmluZyBrZXkgb2YgdGhlIHRlc3Rz"
CONTEXT = msgspec.structs.replace(context_of("lookup"), call_id="call_1")
OK = Answer(body=b"done")


class JumpingClock(HandClock):
    """A clock on which a sleep is over at once and has taken its time."""

    @override
    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now_s += seconds


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def caller(clock: JumpingClock) -> WebhookCaller:
    return WebhookCaller(Outbound(OutboundPolicy("127.0.0.0/8")), clock)


def tool(url: str, **changes: Any) -> WebhookTool:
    plain = WebhookTool(
        name="lookup",
        description="Looks up.",
        url=url,
        parameters={"type": "object", "properties": {"q": {"type": "string"}}},
        method=WebhookMethod.POST,
        key=signing_key(SECRET),
        usable=True,
        headers={},
        timeout_s=20.0,
        idempotent=False,
        read_only=False,
        polling=False,
        needs_approval=False,
        secret_arguments=(),
    )
    return msgspec.structs.replace(plain, **changes)


async def call(caller: WebhookCaller, called: WebhookTool, context: ToolContext = CONTEXT) -> ToolOutcome:
    return await caller.call(called, {"q": "grün"}, context, tenant="acme")


def test_the_signature_is_that_of_the_published_example() -> None:
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", [SECRET, "a plain secret of the tenant".replace(" ", "-")])
async def test_a_call_is_signed_and_says_whose_it_is(server: WebServer, caller: WebhookCaller, clock: JumpingClock, secret: str) -> None:
    server.pages["/hook"] = Answer(body=b'{"found": 1}', content_type="application/json")

    outcome = await call(caller, tool(server.url("/hook"), key=signing_key(secret), headers={"X-Team": "blue"}))

    assert outcome == ToolOutcome(output='{"found": 1}')
    (request,) = server.received
    verify(secret, request.headers, request.body, clock.now().timestamp())
    assert request.method == "POST"
    assert request.headers["idempotency-key"] == request.headers["webhook-id"] == "turn_1_call_1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-team"] == "blue"
    assert json.loads(request.body) == {
        "type": "tool.call",
        "tool": "lookup",
        "tool_call_id": "call_1",
        "turn_id": "turn_1",
        "session_id": "sess_1",
        "tenant": "acme",
        "arguments": {"q": "grün"},
    }


async def test_without_a_secret_nothing_is_signed_and_put_is_put(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(OK)
    await call(caller, tool(server.url(), key=None, method=WebhookMethod.PUT))
    assert "webhook-signature" not in server.received[0].headers
    assert server.received[0].method == "PUT"


async def test_a_tool_whose_secret_is_not_to_be_had_is_not_called(server: WebServer, caller: WebhookCaller) -> None:
    outcome = await call(caller, tool(server.url(), usable=False))
    assert outcome.is_error
    assert "secret" in outcome.output
    assert server.connections == 0


@pytest.mark.parametrize("call_id", ["a.b", "", "x" * 200, "with blank", "grün", "\ud800"])
def test_the_id_of_a_call_never_holds_what_separates_the_signed_parts(call_id: str) -> None:
    made = call_id_of(msgspec.structs.replace(CONTEXT, call_id=call_id))
    assert made.isascii()
    assert "." not in made
    assert " " not in made
    assert len(made) <= 200
    assert made == call_id_of(msgspec.structs.replace(CONTEXT, call_id=call_id))
    assert made != call_id_of(msgspec.structs.replace(CONTEXT, call_id=f"{call_id}!"))


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (Answer(204), ""),
        (Answer(body=b"\x89PNG\x00", content_type="image/png"), "[binary data of 5 bytes (image/png), not shown]"),
        (Answer(body=b"text", content_type="application/octet-stream"), "[binary data of 4 bytes (application/octet-stream), not shown]"),
        (Answer(201, b"{}", "application/vnd.acme+json"), "{}"),
    ],
)
async def test_an_answer_becomes_the_result(server: WebServer, caller: WebhookCaller, answer: Answer, output: str) -> None:
    server.queue.append(answer)
    assert await call(caller, tool(server.url())) == ToolOutcome(output=output)


async def test_a_long_answer_is_read_up_to_a_limit(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(Answer(body=b"x" * (MAX_BODY + 5)))
    outcome = await call(caller, tool(server.url()))
    assert outcome.output == "x" * MAX_BODY + "\n\n[The answer is longer; it was read up to here.]"


async def test_an_error_status_is_an_error_with_a_short_clean_excerpt(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(Answer(400, b"no such article; Authorization: Bearer sk-test-AAAA1111BBBB2222 " + b"y" * 10_000))
    outcome = await call(caller, tool(server.url()))
    assert outcome.is_error
    assert outcome.output.startswith("The webhook answered 400. Its answer:\nno such article")
    assert "sk-test" not in outcome.output
    assert len(outcome.output) < 2_200


async def test_a_redirect_is_an_error_and_not_followed(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(Answer(307, headers=(("Location", server.url("/elsewhere")),)))
    outcome = await call(caller, tool(server.url(), idempotent=True))
    assert outcome.is_error
    assert "redirect" in outcome.output
    assert len(server.received) == 1


async def test_an_inner_address_is_refused_with_a_clear_result(server: WebServer, clock: JumpingClock) -> None:
    guarded = WebhookCaller(Outbound(OutboundPolicy()), clock)
    outcome = await call(guarded, tool(server.url(), idempotent=True))
    assert outcome == ToolOutcome(output=NOT_PUBLIC, is_error=True)
    assert (server.connections, clock.slept) == (0, [])


FAILURES = [Answer(503), Answer(500), Answer(429), Answer(body=b"half", cut=True)]


@pytest.mark.parametrize("failure", FAILURES)
async def test_an_idempotent_call_is_repeated_under_the_same_id(
    server: WebServer, caller: WebhookCaller, clock: JumpingClock, failure: Answer
) -> None:
    server.queue.extend([failure, failure, OK])
    assert await call(caller, tool(server.url(), idempotent=True)) == ToolOutcome(output="done")
    assert {request.headers["webhook-id"] for request in server.received} == {"turn_1_call_1"}
    assert clock.slept == [0.5, 1.0]
    for request in server.received:
        verify(SECRET, request.headers, request.body, clock.now().timestamp())


async def test_it_is_repeated_twice_and_no_more(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.extend([Answer(503, b"busy")] * 3)
    outcome = await call(caller, tool(server.url(), idempotent=True))
    assert outcome == ToolOutcome(output="The webhook answered 503. Its answer:\nbusy", is_error=True)
    assert len(server.received) == 3


@pytest.mark.parametrize("failure", FAILURES)
async def test_any_other_call_is_made_once(server: WebServer, caller: WebhookCaller, failure: Answer) -> None:
    server.queue.extend([failure, OK])
    assert (await call(caller, tool(server.url()))).is_error
    assert len(server.received) == 1


@pytest.mark.parametrize("failure", [Answer(400), Answer(404), Answer(301)])
async def test_what_would_fail_again_is_not_repeated(server: WebServer, caller: WebhookCaller, failure: Answer) -> None:
    server.queue.extend([failure, OK])
    assert (await call(caller, tool(server.url(), idempotent=True))).is_error
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("value", "slept"), [("3", [3.0]), ("Thu, 01 Jan 2026 00:00:07 GMT", [7.0]), ("soon", [0.5]), ("", [0.5]), ("-1", [0.5])]
)
async def test_a_wait_that_the_webhook_asks_for_is_kept(server: WebServer, clock: JumpingClock, value: str, slept: list[float]) -> None:
    caller = WebhookCaller(Outbound(OutboundPolicy("127.0.0.0/8")), clock)
    server.queue.extend([Answer(429, headers=(("Retry-After", value),)), OK])
    assert await call(caller, tool(server.url(), idempotent=True)) == ToolOutcome(output="done")
    assert clock.slept == slept


async def test_a_wait_beyond_the_time_of_the_call_is_not_begun(server: WebServer, caller: WebhookCaller, clock: JumpingClock) -> None:
    server.queue.extend([Answer(503, headers=(("Retry-After", "21"),)), OK])
    assert (await call(caller, tool(server.url(), idempotent=True))).is_error
    assert clock.slept == []


async def test_a_refused_connection_is_repeated_only_where_allowed(caller: WebhookCaller, clock: JumpingClock) -> None:
    async with web_server() as gone:
        pass
    outcome = await call(caller, tool(gone.url(), idempotent=True))
    assert outcome.output == "No connection to the webhook came about; it was not called."
    assert clock.slept == [0.5, 1.0]
    assert (await call(caller, tool(gone.url()))).is_error
    assert clock.slept == [0.5, 1.0]


async def test_a_webhook_that_does_not_answer_ends_with_its_time(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(Answer(hold=True))
    outcome = await call(caller, tool(server.url(), timeout_s=0.05))
    assert outcome.is_error
    assert "did not answer" in outcome.output
    assert "effect of the call is unknown" in outcome.output
    await server.left.wait()


async def test_cancelling_closes_the_socket(server: WebServer, caller: WebhookCaller) -> None:
    server.queue.append(Answer(hold=True))
    calling = asyncio.create_task(call(caller, tool(server.url())))
    await server.arrived.wait()
    calling.cancel()
    await server.left.wait()
    with pytest.raises(asyncio.CancelledError):
        await calling


def tenant(*tools: WebhookTool, revision: int = 1) -> Tenant:
    return Tenant(id=TenantId("ten_1"), name="acme", revision=revision, settings=TenantSettings(), chains={}, webhook_tools=tools)


async def test_tools_of_a_tenant_are_its_own_and_follow_its_revision(server: WebServer, caller: WebhookCaller) -> None:
    async def own(arguments: dict[str, Any], context: ToolContext) -> object:
        return "the gateway's"

    registry = ToolRegistry([tool_of(own, "own")], ToolExecutor(5.0), [WebhookSource(caller)])
    hook = tool(server.url(), read_only=True, needs_approval=True, secret_arguments=("q",))
    box = registry.for_tenant(tenant(hook, tool(server.url(), name="own")))
    assert box.toolset_names() == ("core", "webhooks")
    assert [spec.name for spec in await box.specs(["core", "webhooks"])] == ["lookup", "own"]
    assert box.traits()["lookup"] == ToolTraits(read_only=True, approval=True, secrets=frozenset({"q"}))
    server.pages["/"] = OK
    asked = await box.call(call_of("lookup", '{"q": "a"}'), context_of("lookup"))
    assert (asked.is_error, asked.needs_approval) == (True, True)
    allowed = msgspec.structs.replace(context_of("lookup"), approved=True)
    assert (await box.call(call_of("lookup", '{"q": "a"}'), allowed)).output == "done"
    misfit = await box.call(call_of("lookup", '{"q": 4711}'), context_of("lookup"))
    assert (misfit.ended_as, misfit.toolset, "4711" in misfit.output) == (CallStatus.REFUSED, "webhooks", False)
    assert (await box.call(call_of("own"), context_of("own"))).output == "the gateway's"
    assert len(server.received) == 1

    changed = registry.for_tenant(tenant(tool(server.url(), name="other"), revision=2))
    assert (await changed.call(call_of("lookup"), context_of("lookup"))).is_error
    assert registry.for_tenant(tenant(revision=3)).toolset_names() == ("core",)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": "taken"}, "/tools/1/name"),
        ({"parameters": {"type": "array"}}, "/tools/1/parameters"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}, "/tools/1/parameters"),
        ({"parameters": {"type": "object", "$ref": "http://host.example/schema"}}, "/tools/1/parameters"),
        ({"secret_arguments": ("other",)}, "/tools/1/secret_arguments"),
    ],
)
def test_what_cannot_be_offered_is_refused_when_it_is_written(changes: dict[str, Any], pointer: str) -> None:
    good = WebhookToolSpec(name="good", description="Good.", url="https://host.example/")
    rules = WebhookRules(lambda: frozenset({"taken"}))
    rules.check([good])
    with pytest.raises(InvalidRequestError) as refused:
        rules.check([good, msgspec.structs.replace(good, **{"name": "bad", **changes})])
    assert refused.value.pointer == pointer
