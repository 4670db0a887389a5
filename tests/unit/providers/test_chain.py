import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pytest

from app.domain.errors import ModelUnavailableError
from app.domain.ids import ProviderId, TenantId
from app.domain.messages import Message, Role
from app.domain.model import (
    ApiMode,
    AttemptAccepted,
    AttemptFailed,
    FailureReason,
    FinishReason,
    MessageDelta,
    ModelChunk,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    Usage,
)
from app.domain.tenants import Prices, Provider, Route
from app.providers.chain import LONGEST_WAIT_S, FallbackChain, ProviderCounters, ProviderLayer
from app.providers.health import HealthBoard
from app.providers.limits import Limiter
from app.providers.transport import ProviderTransport
from tests.fakes.cooldowns import InMemoryCooldowns
from tests.fakes.rate_windows import InMemoryRateWindows
from tests.unit.providers.scripted_provider import (
    DONE,
    HEAD,
    Close,
    Cut,
    Forever,
    Pause,
    Script,
    ScriptedProvider,
    answer,
    chunked,
    error,
    event,
    ok,
    serving,
    text,
)

ACME = TenantId("ten_acme")
KEY = "sk-test-AAAA1111BBBB2222CCCC3333"
REQUEST = ModelRequest(system="s", messages=(Message(role=Role.USER, content="hi"),), tools=(), first_attempt=4)


@dataclass
class SteppingClock:
    """Sleeps take no time and are noted."""

    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)

    def unix_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@dataclass
class Bench:
    """A chain's surroundings."""

    transport: ProviderTransport
    clock: SteppingClock = field(default_factory=SteppingClock)
    counters: ProviderCounters = field(default_factory=ProviderCounters)
    longest_wait_s: float = LONGEST_WAIT_S

    def __post_init__(self) -> None:
        self.health = InMemoryCooldowns(self.clock)
        self.windows = InMemoryRateWindows(self.clock)
        self.board = HealthBoard(self.health, self.clock)
        self.limiter = Limiter(self.windows, self.board, self.clock)

    def chain(self, *routes: Route, tenant: TenantId = ACME) -> FallbackChain:
        layer = ProviderLayer(
            transport=self.transport,
            clock=self.clock,
            random=lambda: 0.5,
            counters=self.counters,
            board=self.board,
            longest_wait_s=self.longest_wait_s,
            limiter=self.limiter,
        )
        return FallbackChain(tenant, routes, layer)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    transport = ProviderTransport()
    yield Bench(transport)
    await transport.close()


def route(
    url: str, name: str = "p1", model: str = "m", *, first_s: float = 5.0, stale_s: float = 5.0, prices: Prices | None = None
) -> Route:
    provider = Provider(
        id=ProviderId(name), name=name, api_mode=ApiMode.CHAT_COMPLETIONS, base_url=url, api_key=KEY, headers={"x-extra": "1"}
    )
    return Route(
        provider=provider, model=model, connect_timeout_s=2.0, first_token_timeout_s=first_s, stale_timeout_s=stale_s, prices=prices
    )


async def collect(chain: FallbackChain) -> list[Sequence[ModelChunk]]:
    return [batch async for batch in chain.stream(REQUEST)]


def reply_of(batches: list[Sequence[ModelChunk]]) -> ModelReply:
    """The reply, which is the last chunk and the only one of its kind."""
    chunks = [chunk for batch in batches for chunk in batch]
    replies = [chunk for chunk in chunks if isinstance(chunk, ModelReply)]
    assert replies == [chunks[-1]]
    return replies[0]


def failures_of(batches: list[Sequence[ModelChunk]]) -> list[AttemptFailed]:
    return [chunk for batch in batches for chunk in batch if isinstance(chunk, AttemptFailed)]


async def note_failures(stream: AsyncIterator[Sequence[ModelChunk]], seen: list[AttemptFailed]) -> None:
    async for batch in stream:
        seen.extend(failures_of([batch]))


def shown_by(batches: list[Sequence[ModelChunk]], attempt: int) -> str:
    deltas = [chunk for batch in batches for chunk in batch if isinstance(chunk, MessageDelta)]
    return "".join(delta.text for delta in deltas if delta.attempt == attempt)


async def test_what_arrives_together_leaves_together(bench: Bench) -> None:
    provider = ScriptedProvider(answer("a", "b", "c"))
    async with serving(provider):
        chain = bench.chain(route(provider.url, prices=Prices(input=1.0, cached_input=0.5, output=2.0)))
        batches = await collect(chain)
    assert batches[0] == (AttemptAccepted(4, chain.primary),)
    assert batches[1] == [MessageDelta(4, "a"), MessageDelta(4, "b"), MessageDelta(4, "c")]
    assert reply_of(batches) == ModelReply(
        attempt=4,
        route=chain.primary,
        text="abc",
        reasoning="",
        tool_calls=(),
        bad_arguments={},
        finish=FinishReason.STOP,
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=20e-6,
        window=131_072,
        may_grow=True,
    )
    assert provider.requests[0]["messages"][0] == {"role": "system", "content": "s"}
    assert f"Authorization: Bearer {KEY}" in provider.heads[0]
    assert "x-extra: 1" in provider.heads[0]
    assert provider.heads[0].startswith("POST /v1/chat/completions HTTP/1.1")


async def test_tokens_are_given_as_they_come(bench: Bench) -> None:
    pieces = [chunked(text(piece, finish=None)) for piece in ("a", "b", "c")]
    paced = [step for piece in pieces for step in (piece, Pause(0.1))]
    provider = ScriptedProvider([HEAD, *paced, chunked(text()), chunked(DONE), Pause(0.005), b"0\r\n\r\n"], answer("d"))
    async with serving(provider):
        chain = bench.chain(route(provider.url))
        batches = await collect(chain)
        assert [list(batch) for batch in batches[1:4]] == [[MessageDelta(4, "a")], [MessageDelta(4, "b")], [MessageDelta(4, "c")]]
        assert reply_of(await collect(chain)).text == "d"
    assert provider.connections == 1  # the end of the first response came after its [DONE], and was still read


async def test_connections_are_used_again(bench: Bench) -> None:
    provider = ScriptedProvider(answer("a"), error(500), answer("b"))
    async with serving(provider):
        chain = bench.chain(route(provider.url))
        await collect(chain)
        await collect(chain)
    assert len(provider.requests) == 3
    assert provider.connections == 1


OVERFLOW = {"error": {"message": "This model's maximum context length is 10 tokens."}}
FALLBACKS: list[tuple[str, Script, FailureReason, int | None, int]] = [
    ("rate-limit", error(429, b"slow", Retry_After="7"), FailureReason.RATE_LIMIT, 429, 1),
    ("empty-wallet", error(429, {"error": {"code": "insufficient_quota"}}), FailureReason.BILLING, 429, 1),
    ("credential", error(401, {"error": {"message": f"bad key {KEY}"}}), FailureReason.AUTH, 401, 1),
    ("region", error(403), FailureReason.FORBIDDEN, 403, 1),
    ("model", error(404), FailureReason.MODEL_NOT_FOUND, 404, 1),
    ("html-524", error(524, b"<!DOCTYPE html><h1>524</h1>"), FailureReason.SERVER_ERROR, 524, 2),
    ("overloaded", error(529), FailureReason.OVERLOADED, 529, 2),
    ("redirect", error(302, Location="http://elsewhere.example/"), FailureReason.INVALID_RESPONSE, 302, 1),
    ("hang-up", [Close()], FailureReason.CONNECTION_BROKEN, None, 2),
    ("reset", [Cut()], FailureReason.CONNECTION_BROKEN, None, 2),
    ("reset-behind-head", [HEAD, Pause(0.02), Cut()], FailureReason.CONNECTION_BROKEN, None, 2),
    ("not-http", [b"what?\r\n\r\n", Close()], FailureReason.CONNECTION_BROKEN, None, 2),
    ("error-string", ok(event({"error": "quota used up"}), DONE), FailureReason.BILLING, None, 1),
    ("error-document", ok(b'\n{"error":{"code":429,"message":"too many requests"}}'), FailureReason.RATE_LIMIT, 429, 1),
    ("html-document", ok(b"<html>hello</html>"), FailureReason.INVALID_RESPONSE, None, 1),
    ("comments", ok(b": busy\n\n", b": busy\n\n"), FailureReason.INVALID_RESPONSE, None, 1),
    ("nothing", ok(), FailureReason.INVALID_RESPONSE, None, 1),
    ("garbage", ok(b"data: {oops\n\n"), FailureReason.INVALID_RESPONSE, None, 1),
    ("no-calls", ok(text(finish="tool_calls"), DONE), FailureReason.INVALID_RESPONSE, None, 1),
]


@pytest.mark.parametrize("case", FALLBACKS, ids=[case[0] for case in FALLBACKS])
async def test_a_failing_route_hands_over(bench: Bench, case: tuple[str, Script, FailureReason, int | None, int]) -> None:
    _, script, reason, status, tries = case
    first, second = ScriptedProvider(script), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        chain = bench.chain(route(first.url, "p1"), route(second.url, "p2"))
        batches = await collect(chain)
    failures = failures_of(batches)
    assert [(failed.attempt, failed.reason, failed.status, failed.text_shown) for failed in failures] == [
        (4 + number, reason, status, False) for number in range(tries)
    ]
    assert [failed.next_route.provider for failed in failures if failed.next_route] == ["p1"] * (tries - 1) + ["p2"]
    reply = reply_of(batches)
    assert (reply.attempt, reply.text, reply.route.provider) == (4 + tries, "fine", "p2")
    assert (len(first.requests), len(second.requests), bench.clock.slept) == (tries, 1, [])
    assert (bench.counters.attempts, bench.counters.replies, bench.counters.failures[reason]) == (tries + 1, 1, tries)
    assert KEY[:14] not in repr(batches)


BROKEN: list[tuple[str, Script, FailureReason]] = [
    ("clean-end", ok(text("Par", finish=None)), FailureReason.INCOMPLETE_STREAM),
    ("done-without-finish", ok(text("Par", finish=None), DONE), FailureReason.INCOMPLETE_STREAM),
    ("half-an-event", ok(text("Par", finish=None), b'data: {"choices":[{"del'), FailureReason.INCOMPLETE_STREAM),
    ("reset", [HEAD + chunked(text("Par", finish=None)), Pause(0.02), Cut()], FailureReason.CONNECTION_BROKEN),
    ("end-within-a-chunk", [HEAD + chunked(text("Par", finish=None)) + b"ff\r\nda", Close()], FailureReason.CONNECTION_BROKEN),
    (
        "error-chunk",
        ok(text("Par", finish=None), event({"choices": [], "error": {"message": "worker died"}}), DONE),
        FailureReason.SERVER_ERROR,
    ),
    ("garbage", ok(text("Par", finish=None), b"data: oops\n\n"), FailureReason.INVALID_RESPONSE),
]


@pytest.mark.parametrize(("script", "reason"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
async def test_shown_text_is_void_when_its_attempt_dies(bench: Bench, script: Script, reason: FailureReason) -> None:
    first, second = ScriptedProvider(script), ScriptedProvider(answer("Paris"))
    async with serving(first, second):
        batches = await collect(bench.chain(route(first.url, "p1"), route(second.url, "p2")))
    tries = 2 if reason is FailureReason.CONNECTION_BROKEN else 1
    assert [(failed.reason, failed.text_shown) for failed in failures_of(batches)] == [(reason, True)] * tries
    assert [shown_by(batches, 4 + number) for number in range(tries + 1)] == ["Par"] * tries + ["Paris"]
    assert reply_of(batches).text == "Paris"


async def test_usage_stays_with_the_attempt_and_its_route(bench: Bench) -> None:
    first = ScriptedProvider(ok(text("Par", finish=None, usage=(100, 20))))
    second = ScriptedProvider(answer("Paris"))
    prices = Prices(input=1.0, cached_input=0.5, output=2.0)
    async with serving(first, second):
        batches = await collect(bench.chain(route(first.url, "p1", prices=prices), route(second.url, "p2", prices=prices)))
        unpriced = await collect(bench.chain(route(second.url, "p2")))
    [failed] = failures_of(batches)
    assert failed.usage == Usage(input_tokens=100, output_tokens=20)
    assert failed.cost_usd == pytest.approx(140e-6)
    reply = reply_of(batches)
    assert reply.usage == Usage(input_tokens=10, output_tokens=5)
    assert reply.cost_usd == pytest.approx(20e-6)
    assert reply_of(unpriced).cost_usd is None


async def test_refused_connections_hand_over(bench: Bench) -> None:
    second = ScriptedProvider(answer("fine"))
    async with serving(second):
        batches = await collect(bench.chain(route("http://127.0.0.1:9/v1", "p1"), route(second.url, "p2")))
    assert [failed.reason for failed in failures_of(batches)] == [FailureReason.CONNECT_FAILED]


@pytest.mark.parametrize("url", ["http://[bad/v1", "ftp://127.0.0.1/v1", "nonsense", "http://127.0.0.1:99999/v1"])
async def test_an_address_that_cannot_work_is_a_failure_not_a_crash(bench: Bench, url: str) -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        await collect(bench.chain(route(url)))
    assert caught.value.reason is FailureReason.CONNECT_FAILED
    assert bench.counters.attempts == 1


SILENT: list[tuple[str, Script, FailureReason, bool]] = [
    ("no-head", [Pause(30)], FailureReason.FIRST_TOKEN_TIMEOUT, False),
    ("no-body", [HEAD, Pause(30)], FailureReason.FIRST_TOKEN_TIMEOUT, False),
    ("comments-only", [HEAD, Forever(chunked(b": busy\n\n"), 0.02)], FailureReason.FIRST_TOKEN_TIMEOUT, False),
    ("empty-deltas", [HEAD, Forever(chunked(text("", finish=None)), 0.02)], FailureReason.FIRST_TOKEN_TIMEOUT, False),
    ("stall", [HEAD + chunked(text("Par", finish=None)), Pause(30)], FailureReason.STALE, True),
    ("comments-behind-text", [HEAD + chunked(text("Par", finish=None)), Forever(chunked(b": busy\n\n"), 0.02)], FailureReason.STALE, True),
]


@pytest.mark.parametrize(("script", "reason", "shown"), [case[1:] for case in SILENT], ids=[case[0] for case in SILENT])
async def test_silence_is_cut_off(bench: Bench, script: Script, reason: FailureReason, shown: bool) -> None:
    first, second = ScriptedProvider(script), ScriptedProvider(answer("fine"))
    first_s, stale_s = (5.0, 0.15) if shown else (0.15, 5.0)
    async with serving(first, second), asyncio.timeout(2):
        chain = bench.chain(route(first.url, "p1", first_s=first_s, stale_s=stale_s), route(second.url, "p2"))
        batches = await collect(chain)
        await first.left.wait()
    [failed] = failures_of(batches)
    assert (failed.reason, failed.text_shown) == (reason, shown)
    assert reply_of(batches).text == "fine"


async def test_content_keeps_a_stream_alive(bench: Bench) -> None:
    call = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}}]}
    piece = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}}]}
    steps = [step for _ in range(8) for step in (chunked(event(piece)), Pause(0.08))]
    provider = ScriptedProvider([HEAD, chunked(event(call)), *steps, chunked(text(finish="tool_calls")), chunked(DONE) + b"0\r\n\r\n"])
    async with serving(provider):
        reply = reply_of(await collect(bench.chain(route(provider.url, stale_s=0.4))))
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [("c", "{}")]


async def test_a_slow_reader_does_not_make_the_provider_stale(bench: Bench) -> None:
    provider = ScriptedProvider(
        [
            HEAD,
            chunked(text("a", finish=None)),
            Pause(0.02),
            chunked(text("b", finish=None)),
            Pause(0.02),
            chunked(text(), DONE),
            b"0\r\n\r\n",
        ]
    )
    batches: list[Sequence[ModelChunk]] = []
    async with serving(provider):
        async for batch in bench.chain(route(provider.url, stale_s=0.1)).stream(REQUEST):
            batches.append(batch)
            await asyncio.sleep(0.25)
    assert (reply_of(batches).text, failures_of(batches)) == ("ab", [])


@pytest.mark.parametrize("behind", [b"", chunked(DONE)], ids=["no-done", "done"])
async def test_a_complete_reply_does_not_wait_for_a_server_that_forgets_to_end_it(bench: Bench, behind: bytes) -> None:
    provider = ScriptedProvider([HEAD, chunked(text("a")), behind, Pause(60)])
    async with serving(provider), asyncio.timeout(4):
        assert reply_of(await collect(bench.chain(route(provider.url)))).text == "a"
        await provider.left.wait()


@pytest.mark.parametrize("script", [[Pause(30)], [HEAD, Pause(30)], [HEAD + chunked(text("a", finish=None)), Pause(30)]])
async def test_cancelling_the_reader_closes_the_socket(bench: Bench, script: Script) -> None:
    provider = ScriptedProvider(script)
    async with serving(provider):
        task = asyncio.ensure_future(collect(bench.chain(route(provider.url))))
        async with asyncio.timeout(1):
            await provider.asked.wait()
        task.cancel()
        async with asyncio.timeout(1):
            await provider.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_iterator_closes_the_socket(bench: Bench) -> None:
    provider = ScriptedProvider([HEAD + chunked(text("a", finish=None)), Forever(chunked(text("b", finish=None)), 0.01)])
    async with serving(provider), asyncio.timeout(1):
        async with contextlib.aclosing(bench.chain(route(provider.url)).stream(REQUEST)) as stream:
            assert isinstance((await anext(stream))[0], AttemptAccepted)
            assert (await anext(stream))[0] == MessageDelta(4, "a")
        await provider.left.wait()


async def test_the_last_route_is_repeated_after_a_wait(bench: Bench) -> None:
    provider = ScriptedProvider(error(500), error(429, Retry_After="2"), answer("at last"))
    async with serving(provider):
        batches = await collect(bench.chain(route(provider.url)))
    assert reply_of(batches).text == "at last"
    assert bench.clock.slept == [5.0, 2.0]
    assert [failed.delay_s for failed in failures_of(batches)] == [5.0, 2.0]


async def test_a_chain_that_is_used_up_raises_behind_every_attempt(bench: Bench) -> None:
    first, second = ScriptedProvider(error(401)), ScriptedProvider(ok(text(" "), DONE))
    seen: list[AttemptFailed] = []
    async with serving(first, second):
        stream = bench.chain(route(first.url, "p1"), route(second.url, "p2")).stream(REQUEST)
        with pytest.raises(ModelUnavailableError) as caught:
            await note_failures(stream, seen)
    assert caught.value.reason is FailureReason.INVALID_RESPONSE
    assert [(failed.attempt, failed.reason) for failed in seen] == [
        (4, FailureReason.AUTH),
        (5, FailureReason.INVALID_RESPONSE),
        (6, FailureReason.INVALID_RESPONSE),
        (7, FailureReason.INVALID_RESPONSE),
    ]
    assert (seen[-1].next_route, caught.value.reason) == (None, FailureReason.INVALID_RESPONSE)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (error(400, {"error": {"message": "temperature must be <= 2"}}), FailureReason.INVALID_REQUEST),
        (error(400, {"error": {"code": "content_filter"}}), FailureReason.CONTENT_FILTERED),
    ],
    ids=["invalid", "filtered"],
)
async def test_the_requests_own_fault_is_not_carried_through_the_chain(bench: Bench, script: Script, reason: FailureReason) -> None:
    first, second = ScriptedProvider(script), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        with pytest.raises(ModelUnavailableError) as caught:
            await collect(bench.chain(route(first.url, "p1"), route(second.url, "p2")))
    assert (caught.value.reason, len(first.requests), len(second.requests)) == (reason, 1, 0)


async def test_an_attempt_that_breaks_off_without_its_usage_is_charged_by_estimate(bench: Bench) -> None:
    said = "x" * 41
    first = ScriptedProvider([HEAD + chunked(text(said, finish=None)), Pause(0.02), Cut()])
    second = ScriptedProvider(answer("fine"))
    request = msgspec.structs.replace(REQUEST, input_tokens=70)
    prices = Prices(input=1.0, cached_input=1.0, output=10.0)
    async with serving(first, second):
        chain = bench.chain(route(first.url, "p1", prices=prices), route(second.url, "p2"))
        failed = failures_of([batch async for batch in chain.stream(request)])
    assert [one.usage for one in failed] == [Usage(input_tokens=70, output_tokens=11)] * 2
    assert failed[0].cost_usd == pytest.approx((70 + 110) / 1_000_000)


CALL = event({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "save", "arguments": "{" * 36}}]}}]})
CHARGED: list[tuple[str, Script, Usage]] = [
    ("silence-behind-a-head", [HEAD, Pause(30)], Usage(input_tokens=70)),
    ("a-call-cut-off", [HEAD + chunked(CALL), Pause(0.02), Cut()], Usage(input_tokens=70, output_tokens=10)),
    ("silence-before-a-head", [Pause(30)], Usage()),
    ("refused", error(503), Usage()),
    ("refused-in-the-stream", ok(event({"error": {"code": 429, "message": "too many requests"}})), Usage()),
    ("failed-in-the-stream", ok(text("x" * 40, finish=None), event({"error": {"code": 503}})), Usage(input_tokens=70, output_tokens=10)),
    ("counted", ok(text(" " * 40, usage=(60, 4)), DONE), Usage(input_tokens=60, output_tokens=4)),
]


@pytest.mark.parametrize(("script", "usage"), [case[1:] for case in CHARGED], ids=[case[0] for case in CHARGED])
async def test_a_failed_attempt_is_charged_once_it_was_accepted(bench: Bench, script: Script, usage: Usage) -> None:
    first, second = ScriptedProvider(script), ScriptedProvider(answer("fine"))
    request = msgspec.structs.replace(REQUEST, input_tokens=70)
    async with serving(first, second):
        chain = bench.chain(route(first.url, "p1", first_s=0.15), route(second.url, "p2"))
        batches = [batch async for batch in chain.stream(request)]
    assert {failed.usage for failed in failures_of(batches)} == {usage}


async def test_what_a_provider_told_in_the_beginning_is_not_all_that_a_broken_answer_used(bench: Bench) -> None:
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 25, "output_tokens": 1}}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 400}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    first = ScriptedProvider([HEAD + chunked(event(start), event(block), event(piece)), Pause(0.02), Cut()])
    second = ScriptedProvider(answer("fine"))
    async with serving(first, second):
        plain = route(first.url, "p1")
        provider = msgspec.structs.replace(plain.provider, api_mode=ApiMode.ANTHROPIC_MESSAGES, tpm=100_000)
        batches = await collect(bench.chain(msgspec.structs.replace(plain, provider=provider), route(second.url, "p2")))
    assert {failed.usage for failed in failures_of(batches)} == {Usage(input_tokens=25, output_tokens=100)}
    assert bench.windows.settled == []  # nobody knows what else it wrote: the place stays as large as it was booked


async def test_other_names_of_a_target_are_not_tried(bench: Bench) -> None:
    first, second = ScriptedProvider(error(429)), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        chain = bench.chain(route(first.url, "p1"), route(first.url + "/", "alias"), route(second.url, "p2"))
        assert reply_of(await collect(chain)).text == "fine"
    assert len(first.requests) == 1


@pytest.mark.parametrize(
    "script", [error(401, {"error": f"no {KEY}"}), [Cut()], error(500, KEY.encode()), None], ids=["401", "cut", "500", "refused"]
)
async def test_no_credential_or_address_in_any_exception_text(bench: Bench, script: Script | None) -> None:
    provider = ScriptedProvider(script or b"")
    async with serving(provider):
        url = (provider.url if script else "http://127.0.0.1:9/v1") + "?key=SECRETQUERY1234"
        seen: list[AttemptFailed] = []
        with pytest.raises(ModelUnavailableError) as caught:
            await note_failures(bench.chain(route(url)).stream(REQUEST), seen)
    shown = "".join(traceback.format_exception(caught.value)) + repr(seen)
    assert seen
    for hidden in (KEY, KEY[:16], KEY[16:], "SECRETQUERY1234", "127.0.0.1", "Bearer"):
        assert hidden not in shown


async def test_reasoning_is_marked_as_such(bench: Bench) -> None:
    provider = ScriptedProvider(ok(event({"choices": [{"delta": {"reasoning": "why"}}]}), text("a"), DONE))
    async with serving(provider):
        batches = await collect(bench.chain(route(provider.url)))
    assert list(batches[1]) == [ReasoningDelta(4, "why"), MessageDelta(4, "a")]


async def test_a_query_in_the_base_url_is_kept(bench: Bench) -> None:
    provider = ScriptedProvider(answer("a"))
    async with serving(provider):
        await collect(bench.chain(route(provider.url + "/?api-version=2")))
    assert provider.heads[0].startswith("POST /v1/chat/completions?api-version=2 ")


async def test_large_requests_are_sent_whole(bench: Bench) -> None:
    provider = ScriptedProvider(answer("a"))
    request = ModelRequest(system="", messages=(Message(role=Role.USER, content="x" * 3_000_000),), tools=(), first_attempt=1)
    async with serving(provider):
        async for _ in bench.chain(route(provider.url)).stream(request):
            pass
    assert len(provider.requests[0]["messages"][0]["content"]) == 3_000_000
