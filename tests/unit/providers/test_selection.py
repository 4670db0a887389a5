"""How a chain chooses routes: by health, limits and windows, over real sockets and with stores in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import msgspec
import pytest

from app.domain.delivery import CooldownReport, CooldownScope
from app.domain.errors import ContextOverflowError, ModelUnavailableError
from app.domain.model import AttemptAccepted, AttemptFailed, FailureReason, ModelChunk, ModelReply, ModelRequest, Throttled
from app.domain.targets import target_keys
from app.domain.tenants import Route
from app.providers.transport import ProviderTransport
from tests.unit.providers.scripted_provider import Close, ScriptedProvider, answer, error, ok, serving
from tests.unit.providers.test_chain import ACME, REQUEST, Bench, route

MINUTE = 60.0


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    transport = ProviderTransport()
    yield Bench(transport)
    await transport.close()


async def run(bench: Bench, *routes: Route, request: ModelRequest = REQUEST) -> list[ModelChunk]:
    batches: list[Sequence[ModelChunk]] = [batch async for batch in bench.chain(*routes).stream(request)]
    return [chunk for batch in batches for chunk in batch]


def answered_by(chunks: list[ModelChunk]) -> str:
    assert isinstance(chunks[-1], ModelReply)
    return chunks[-1].route.provider


def throttled(chunks: list[ModelChunk]) -> list[Throttled]:
    return [chunk for chunk in chunks if isinstance(chunk, Throttled)]


def failed(chunks: list[ModelChunk]) -> list[AttemptFailed]:
    return [chunk for chunk in chunks if isinstance(chunk, AttemptFailed)]


async def cool(bench: Bench, route: Route, reason: FailureReason, seconds: float, *, promised: bool) -> None:
    """Another replica saw this route fail."""
    scope = CooldownScope.KEY_MODEL if promised else CooldownScope.ROUTE
    keys = target_keys(ACME, route)
    key = keys.key_model if promised else keys.route
    await bench.health.report(CooldownReport(key=key, scope=scope, reason=reason, status=None, duration_s=seconds, promised=promised))
    await bench.board.refresh()


async def test_a_route_that_failed_is_left_alone_and_returned_to(bench: Bench) -> None:
    first, second = ScriptedProvider(error(500), error(500), answer("back")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (route(first.url, "p1"), route(second.url, "p2"))
        assert answered_by(await run(bench, *routes)) == "p2"
        chunks = await run(bench, *routes)
        assert (answered_by(chunks), len(first.requests)) == ("p2", 2)
        assert [(one.route.provider, one.limit, one.skipped) for one in throttled(chunks)] == [("p1", "cooldown", True)]
        await bench.clock.sleep(MINUTE)
        assert answered_by(await run(bench, *routes)) == "p1"
        assert answered_by(await run(bench, *routes)) == "p1"
    assert bench.counters.skipped == 1


async def test_a_promised_time_holds_for_everybody_and_for_this_model_only(bench: Bench) -> None:
    first, second = ScriptedProvider(error(429, Retry_After="30"), answer("m2"), answer("m1")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (route(first.url, "p1", "m1"), route(second.url, "p2"))
        assert answered_by(await run(bench, *routes)) == "p2"
        assert answered_by(await run(bench, *routes)) == "p2"
        assert answered_by(await run(bench, route(first.url, "p1", "m2"))) == "p1"
        await bench.clock.sleep(31)
        assert answered_by(await run(bench, *routes)) == "p1"
    assert len(first.requests) == 3


async def test_an_empty_account_keeps_every_model_of_its_key_away(bench: Bench) -> None:
    first, second = ScriptedProvider(error(402), answer("other key")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        assert answered_by(await run(bench, route(first.url, "p1", "m1"), route(second.url, "p2"))) == "p2"
        assert answered_by(await run(bench, route(first.url, "p1", "m2"), route(second.url, "p2"))) == "p2"
        other = route(first.url, "p3", "m2")
        other = msgspec.structs.replace(other, provider=msgspec.structs.replace(other.provider, api_key="sk-another-key"))
        assert answered_by(await run(bench, other)) == "p3"
    assert len(first.requests) == 2


async def test_where_nobody_else_can_answer_an_ailing_route_is_asked_all_the_same(bench: Bench) -> None:
    only = ScriptedProvider(answer("fine"))
    async with serving(only):
        await cool(bench, route(only.url), FailureReason.SERVER_ERROR, 30.0, promised=False)
        chunks = await run(bench, route(only.url))
    assert (answered_by(chunks), throttled(chunks), bench.clock.slept) == ("p1", [], [])


async def test_when_all_ail_each_is_tried_once_and_the_call_ends_with_one_error(bench: Bench) -> None:
    first, second = ScriptedProvider(error(500)), ScriptedProvider(error(500))
    async with serving(first, second):
        routes = (route(first.url, "p1"), route(second.url, "p2"))
        for one in routes:
            await cool(bench, one, FailureReason.SERVER_ERROR, 1_000.0, promised=False)
        with pytest.raises(ModelUnavailableError) as caught:
            await run(bench, *routes)
    assert caught.value.reason is FailureReason.SERVER_ERROR
    assert (len(first.requests), len(second.requests)) == (3, 3)


async def test_one_caller_probes_and_the_others_go_elsewhere(bench: Bench) -> None:
    first, second = ScriptedProvider(answer("back")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (route(first.url, "p1"), route(second.url, "p2"))
        await cool(bench, routes[0], FailureReason.STALE, 1.0, promised=False)
        await bench.clock.sleep(2)
        both = await asyncio.gather(run(bench, *routes), run(bench, *routes))
        assert sorted(answered_by(chunks) for chunks in both) == ["p1", "p2"]
        assert answered_by(await run(bench, *routes)) == "p1"


async def test_a_promise_is_waited_for_where_it_is_short(bench: Bench) -> None:
    only = ScriptedProvider(answer("fine"))
    async with serving(only):
        await cool(bench, route(only.url), FailureReason.RATE_LIMIT, 20.0, promised=True)
        chunks = await run(bench, route(only.url))
    assert answered_by(chunks) == "p1"
    assert bench.clock.slept == pytest.approx([20.0])
    assert [(one.limit, one.skipped) for one in throttled(chunks)] == [("cooldown", False)]
    assert bench.counters.throttled == 1


async def test_a_promise_of_hours_ends_the_call_with_the_time_and_without_a_request(bench: Bench) -> None:
    only = ScriptedProvider(answer("fine"))
    async with serving(only):
        await cool(bench, route(only.url), FailureReason.RATE_LIMIT, 7_200.0, promised=True)
        with pytest.raises(ModelUnavailableError) as caught:
            await run(bench, route(only.url))
    assert caught.value.reason is FailureReason.RATE_LIMIT
    assert caught.value.retry_after_s == pytest.approx(7_200.0)
    assert (only.requests, bench.clock.slept) == ([], [])


def limited(url: str, name: str, rpm: int, *, patience_s: float = 5.0) -> Route:
    plain = route(url, name)
    provider = msgspec.structs.replace(plain.provider, rpm=rpm, api_key=f"sk-{name}-0123456789")
    return msgspec.structs.replace(plain, provider=provider, patience_s=patience_s)


async def test_a_route_at_its_limit_is_left_out(bench: Bench) -> None:
    first, second = ScriptedProvider(answer("one"), answer("two")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (limited(first.url, "p1", 2), route(second.url, "p2"))
        answers = [answered_by(await run(bench, *routes)) for _ in range(2)]
        chunks = await run(bench, *routes)
    assert (answers, answered_by(chunks)) == (["p1", "p1"], "p2")
    [left_out] = throttled(chunks)
    assert (left_out.route.provider, left_out.limit, left_out.skipped) == ("p1", "rpm", True)
    assert left_out.delay_s > 5.0


async def test_where_every_route_is_at_its_limit_the_earliest_place_is_waited_for(bench: Bench) -> None:
    only = ScriptedProvider(answer("one"), answer("two"))
    async with serving(only):
        await run(bench, limited(only.url, "p1", 1))
        await bench.clock.sleep(10)
        chunks = await run(bench, limited(only.url, "p1", 1))
    [wait] = throttled(chunks)
    assert (answered_by(chunks), wait.skipped, wait.limit) == ("p1", False, "rpm")
    assert bench.clock.slept == [10, wait.delay_s]
    assert 50.0 <= wait.delay_s <= 53.0


async def test_a_place_too_far_away_ends_the_call_with_the_time_and_takes_no_place(bench: Bench) -> None:
    only = ScriptedProvider(answer("one"))
    bench.longest_wait_s = MINUTE
    async with serving(only):
        await run(bench, limited(only.url, "p1", 1))
        with pytest.raises(ModelUnavailableError) as caught:
            await run(bench, limited(only.url, "p1", 1))
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > MINUTE
    assert len(only.requests) == 1


async def test_every_attempt_counts_against_the_limit(bench: Bench) -> None:
    first, second = ScriptedProvider(error(500), answer("one")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (limited(first.url, "p1", 2), route(second.url, "p2"))
        assert answered_by(await run(bench, *routes)) == "p1"
        assert answered_by(await run(bench, *routes)) == "p2"


async def test_a_wait_that_is_given_up_gives_its_place_back(bench: Bench) -> None:
    only = ScriptedProvider(answer("one"), answer("two"))
    async with serving(only):
        await run(bench, limited(only.url, "p1", 1))
        await bench.clock.sleep(10)
        stream = bench.chain(limited(only.url, "p1", 1)).stream(REQUEST)
        [notice] = await anext(stream)
        assert isinstance(notice, Throttled)
        await stream.aclose()
        [given_back] = bench.windows.given_back
        assert given_back.delay_s == notice.delay_s
    assert len(only.requests) == 1


async def test_tokens_are_reserved_by_estimate_and_settled_by_usage(bench: Bench) -> None:
    only = ScriptedProvider(answer("one"))
    request = msgspec.structs.replace(REQUEST, input_tokens=100)
    async with serving(only):
        plain = route(only.url)
        target = msgspec.structs.replace(plain, output_tokens=50, provider=msgspec.structs.replace(plain.provider, tpm=10_000))
        await run(bench, target, request=request)
    [(booking, tokens)] = bench.windows.settled
    assert (booking.tokens, tokens) == (150, 15)


def windowed(url: str, name: str, window: int) -> Route:
    return msgspec.structs.replace(route(url, name), context_window=window, output_tokens=100)


async def test_a_fallback_with_too_small_a_window_is_passed_over(bench: Bench) -> None:
    first, small, large = ScriptedProvider(error(401)), ScriptedProvider(answer("small")), ScriptedProvider(answer("large"))
    async with serving(first, small, large):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 2_000), windowed(large.url, "p3", 8_000))
        chunks = await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=5_000))
    assert (answered_by(chunks), small.requests) == ("p3", [])


async def test_where_only_a_smaller_window_is_left_compaction_is_asked_for(bench: Bench) -> None:
    first, small = ScriptedProvider(error(401)), ScriptedProvider(answer("small"))
    async with serving(first, small):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 2_000))
        with pytest.raises(ContextOverflowError) as caught:
            await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=5_000))
        assert (caught.value.reason, caught.value.window) == (FailureReason.CONTEXT_OVERFLOW, 2_000)
        assert answered_by(await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=1_900))) == "p2"


@pytest.mark.parametrize(("tokens", "overflow"), [(7_201, True), (7_200, False)])
async def test_a_connection_that_dies_again_on_a_full_window_is_an_overflow(bench: Bench, tokens: int, overflow: bool) -> None:
    only = ScriptedProvider([Close()])
    async with serving(only):
        with pytest.raises((ContextOverflowError, ModelUnavailableError)) as caught:
            await run(bench, windowed(only.url, "p1", 8_000), request=msgspec.structs.replace(REQUEST, input_tokens=tokens))
    assert isinstance(caught.value, ContextOverflowError) is overflow
    assert len(only.requests) == (2 if overflow else 3)


async def test_the_health_table_being_away_stops_no_call(bench: Bench) -> None:
    first, second = ScriptedProvider(error(500)), ScriptedProvider(answer("fine"))
    bench.health.away = bench.windows.away = True
    async with serving(first, second):
        assert answered_by(await run(bench, limited(first.url, "p1", 10), route(second.url, "p2"))) == "p2"
        assert answered_by(await run(bench, limited(first.url, "p1", 10), route(second.url, "p2"))) == "p2"
    assert len(first.requests) == 2


OVERFLOW = error(400, {"error": {"message": "This model's maximum context length is 4000 tokens.", "code": "context_length_exceeded"}})


@pytest.mark.parametrize("window", [8_000, 16_000])
async def test_a_request_that_is_too_long_for_one_route_goes_to_one_that_may_take_it(bench: Bench, window: int) -> None:
    first, small, large = ScriptedProvider(OVERFLOW), ScriptedProvider(answer("small")), ScriptedProvider(answer("large"))
    async with serving(first, small, large):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 3_000), windowed(large.url, "p3", window))
        chunks = await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=2_000))
    assert (answered_by(chunks), len(first.requests), small.requests) == ("p3", 1, [])


async def test_what_nobody_takes_is_to_be_made_shorter_than_the_first_window_named(bench: Bench) -> None:
    first, second = ScriptedProvider(OVERFLOW), ScriptedProvider(error(401))
    async with serving(first, second):
        routes = (windowed(first.url, "p1", 8_000), windowed(second.url, "p2", 8_000))
        with pytest.raises(ContextOverflowError) as caught:
            await run(bench, *routes)
    assert (caught.value.window, len(first.requests), len(second.requests)) == (4_000, 1, 1)


@pytest.mark.parametrize(("tokens", "overflow"), [(3_999, False), (4_000, True)])
async def test_a_refusal_without_a_word_is_about_the_size_only_where_that_is_plausible(bench: Bench, tokens: int, overflow: bool) -> None:
    only = ScriptedProvider(error(400))
    async with serving(only):
        with pytest.raises((ContextOverflowError, ModelUnavailableError)) as caught:
            await run(bench, windowed(only.url, "p1", 8_000), request=msgspec.structs.replace(REQUEST, input_tokens=tokens))
    assert isinstance(caught.value, ContextOverflowError) is overflow


async def test_a_promise_too_far_away_hides_no_smaller_window(bench: Bench) -> None:
    first, small = ScriptedProvider(answer("late")), ScriptedProvider(answer("small"))
    async with serving(first, small):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 2_000))
        await cool(bench, routes[0], FailureReason.RATE_LIMIT, 600.0, promised=True)
        with pytest.raises(ContextOverflowError) as caught:
            await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=5_000))
        assert caught.value.window == 2_000


async def test_a_time_that_another_replica_was_told_meanwhile_is_kept(bench: Bench) -> None:
    only = ScriptedProvider(error(429, Retry_After="2"), answer("fine"))
    async with serving(only):
        target = route(only.url)
        stream = bench.chain(target).stream(REQUEST)
        chunks = [*await anext(stream)]
        await cool(bench, target, FailureReason.RATE_LIMIT, 40.0, promised=True)
        chunks += [chunk async for batch in stream for chunk in batch]
    assert answered_by(chunks) == "p1"
    assert sum(bench.clock.slept) >= 40.0


async def test_a_place_that_is_used_too_late_is_given_back_and_booked_anew(bench: Bench) -> None:
    only = ScriptedProvider(answer("one"), answer("two"))
    async with serving(only):
        target = limited(only.url, "p1", 1, patience_s=61.0)
        await run(bench, target)
        stream = bench.chain(target).stream(REQUEST)
        [notice] = await anext(stream)
        assert isinstance(notice, Throttled)
        bench.clock.slept.append(notice.delay_s + 1.5)  # the reader was held up
        chunks = [chunk async for batch in stream for chunk in batch]
        assert answered_by(chunks) == "p1"
        [given_back] = bench.windows.given_back
        assert given_back.delay_s == notice.delay_s
    assert len(only.requests) == 2


async def test_a_probe_that_finds_no_place_is_left_to_others(bench: Bench) -> None:
    first, second = ScriptedProvider(answer("one"), answer("two")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (limited(first.url, "p1", 1), route(second.url, "p2"))
        await run(bench, *routes)
        await cool(bench, routes[0], FailureReason.STALE, 1.0, promised=False)
        await bench.clock.sleep(2)
        assert answered_by(await run(bench, *routes)) == "p2"
        await bench.clock.sleep(61)
        assert answered_by(await run(bench, *routes)) == "p1"
    assert bench.health.calls.count("leave_probe") == 1


async def test_a_refusal_that_names_no_window_is_about_the_window_of_the_route_that_refused(bench: Bench) -> None:
    wordless = error(400, {"error": {"code": "context_length_exceeded"}})
    first, small = ScriptedProvider(error(401)), ScriptedProvider(wordless)
    async with serving(first, small):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 4_000))
        with pytest.raises(ContextOverflowError) as caught:
            await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=2_000))
    assert caught.value.window == 4_000


async def test_a_larger_window_that_is_forbidden_for_long_keeps_no_conversation_from_becoming_shorter(bench: Bench) -> None:
    first, large = ScriptedProvider(OVERFLOW), ScriptedProvider(answer("late"))
    async with serving(first, large):
        routes = (windowed(first.url, "p1", 8_000), windowed(large.url, "p2", 16_000))
        for forbidden_s in (600.0, 40.0):
            await cool(bench, routes[1], FailureReason.RATE_LIMIT, forbidden_s, promised=True)
            with pytest.raises(ContextOverflowError):
                await run(bench, *routes)
    assert (large.requests, bench.clock.slept) == ([], [])


async def test_a_larger_window_at_its_limit_is_not_waited_for_where_a_shorter_request_would_do(bench: Bench) -> None:
    first, large = ScriptedProvider(OVERFLOW), ScriptedProvider(answer("one"), answer("two"))
    async with serving(first, large):
        full = msgspec.structs.replace(limited(large.url, "p2", 1), context_window=16_000, output_tokens=100)
        await run(bench, full)
        with pytest.raises(ContextOverflowError):
            await run(bench, windowed(first.url, "p1", 8_000), full)
    assert (len(large.requests), bench.clock.slept) == (1, [])


async def test_an_empty_reply_is_repeated_where_the_only_other_route_is_forbidden(bench: Bench) -> None:
    first, second = ScriptedProvider(ok(), answer("fine")), ScriptedProvider(answer("late"))
    async with serving(first, second):
        routes = (route(first.url, "p1"), route(second.url, "p2"))
        await cool(bench, routes[1], FailureReason.RATE_LIMIT, 600.0, promised=True)
        assert answered_by(await run(bench, *routes)) == "p1"
    assert (len(first.requests), second.requests) == (2, [])


async def test_a_smaller_window_that_is_forbidden_too_is_no_reason_to_compact(bench: Bench) -> None:
    first, small = ScriptedProvider(answer("late")), ScriptedProvider(answer("late"))
    async with serving(first, small):
        routes = (windowed(first.url, "p1", 8_000), windowed(small.url, "p2", 2_000))
        for one in routes:
            await cool(bench, one, FailureReason.RATE_LIMIT, 600.0, promised=True)
        with pytest.raises(ModelUnavailableError) as caught:
            await run(bench, *routes, request=msgspec.structs.replace(REQUEST, input_tokens=5_000))
    assert caught.value.reason is FailureReason.RATE_LIMIT
    assert (first.requests, small.requests) == ([], [])


async def test_attempts_are_counted_for_each_route(bench: Bench) -> None:
    first = ScriptedProvider(error(429, Retry_After="2"))
    second = ScriptedProvider(error(500), answer("fine"))
    async with serving(first, second):
        routes = (route(first.url, "p1"), route(second.url, "p2"))
        stream = bench.chain(*routes).stream(REQUEST)
        chunks = [*await anext(stream)]
        await cool(bench, routes[0], FailureReason.RATE_LIMIT, 40.0, promised=True)
        chunks += [chunk async for batch in stream for chunk in batch]
    assert [(one.route.provider, one.delay_s) for one in failed(chunks)] == [("p1", 2.0), ("p2", 5.0)]
    assert (answered_by(chunks), len(first.requests), len(second.requests)) == ("p2", 1, 2)


async def test_a_probe_that_finds_no_place_is_free_before_the_fallback_is_asked(bench: Bench) -> None:
    first, second = ScriptedProvider(answer("one")), ScriptedProvider(answer("fine"))
    async with serving(first, second):
        routes = (limited(first.url, "p1", 1), route(second.url, "p2"))
        await run(bench, *routes)
        await cool(bench, routes[0], FailureReason.STALE, 1.0, promised=False)
        await bench.clock.sleep(2)
        async with aclosing(bench.chain(*routes).stream(REQUEST)) as stream:
            chunks = [*await anext(stream), *await anext(stream)]
            assert [type(chunk) for chunk in chunks] == [Throttled, AttemptAccepted]
            assert bench.health.calls[-2:] == ["claim_probe", "leave_probe"]
