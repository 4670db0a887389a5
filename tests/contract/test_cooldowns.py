"""What every :class:`app.ports.HealthStore` does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest
from sqlalchemy import text

from app.domain.delivery import Cooldown, CooldownReport, CooldownScope
from app.domain.model import FailureReason
from app.ports import HealthStore
from app.store.cooldowns import Cooldowns
from app.store.engine import Database
from tests.fakes.clock import HandClock
from tests.fakes.cooldowns import InMemoryCooldowns

SHIFT = text("""
    UPDATE cooldowns SET until_at = until_at - make_interval(secs => :seconds), updated_at = updated_at - make_interval(secs => :seconds),
                         probe_until = probe_until - make_interval(secs => :seconds)
""")
DOWN = CooldownReport(key="r:1", scope=CooldownScope.ROUTE, reason=FailureReason.SERVER_ERROR, status=500, duration_s=10.0, promised=False)
PROMISE = CooldownReport(
    key="m:1", scope=CooldownScope.KEY_MODEL, reason=FailureReason.RATE_LIMIT, status=429, duration_s=30.0, promised=True
)


@dataclass(frozen=True, slots=True)
class Timed:
    """The store, and the way to let its time pass."""

    store: HealthStore
    let_pass: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["memory", "postgres"])
def timed(request: pytest.FixtureRequest) -> Timed:
    if request.param == "memory":
        clock = HandClock()
        return Timed(InMemoryCooldowns(clock), clock.advance)
    database: Database = request.getfixturevalue("database")

    async def let_pass(seconds: float) -> None:
        await database.fetch(SHIFT, {"seconds": seconds})

    return Timed(Cooldowns(database), let_pass)


@pytest.fixture
def store(timed: Timed) -> HealthStore:
    return timed.store


async def only(store: HealthStore) -> Cooldown:
    (row,) = await store.read()
    return row


async def test_what_failed_is_known_to_all_with_its_reason_and_time(store: HealthStore) -> None:
    assert await store.read() == []

    reported = await store.report(DOWN)
    row = await only(store)

    assert (row.key, row.scope, row.reason, row.promised, row.failures) == ("r:1", DOWN.scope, DOWN.reason, False, 1)
    assert 9.0 < row.remaining_s <= reported.remaining_s <= 10.0
    assert [(note.reason, note.status) for note in row.recent] == [(FailureReason.SERVER_ERROR, 500)]
    assert row.recent[0].at_ms > 1_700_000_000_000


async def test_failures_in_a_row_are_counted_per_cool_down(timed: Timed) -> None:
    await timed.store.report(DOWN)
    assert (await timed.store.report(DOWN)).failures == 1  # it began before the cool-down

    await timed.let_pass(11.0)
    assert (await only(timed.store)).remaining_s <= 0.0
    assert (await timed.store.report(DOWN)).failures == 2


async def test_a_running_cool_down_is_never_made_shorter(store: HealthStore) -> None:
    await store.report(msgspec.structs.replace(DOWN, duration_s=60.0))
    assert (await store.report(DOWN)).remaining_s > 59.0
    assert (await store.report(msgspec.structs.replace(DOWN, duration_s=90.0))).remaining_s > 89.0


async def test_a_guess_does_not_stretch_a_promise_and_a_promise_replaces_a_guess(store: HealthStore) -> None:
    guess = msgspec.structs.replace(PROMISE, promised=False, duration_s=90.0)
    await store.report(PROMISE)
    kept = await store.report(guess)
    assert kept.promised
    assert 29.0 < kept.remaining_s <= 30.0

    await store.report(msgspec.structs.replace(guess, key="m:2"))
    named = await store.report(msgspec.structs.replace(PROMISE, key="m:2"))
    assert named.promised
    assert 29.0 < named.remaining_s <= 30.0


async def test_a_claim_can_be_left_to_the_next(timed: Timed) -> None:
    await timed.store.report(DOWN)
    await timed.let_pass(11.0)
    assert await timed.store.claim_probe("r:1", 30.0)
    assert not await timed.store.claim_probe("r:1", 30.0)
    await timed.store.leave_probe(["r:1", "r:unknown"])
    assert await timed.store.claim_probe("r:1", 30.0)


async def test_a_promise_holds_while_it_runs_also_beside_other_failures(timed: Timed) -> None:
    other = msgspec.structs.replace(PROMISE, reason=FailureReason.OVERLOADED, promised=False, duration_s=5.0)
    await timed.store.report(PROMISE)
    assert (await timed.store.report(other)).promised

    await timed.let_pass(31.0)
    assert not (await timed.store.report(other)).promised


async def test_the_last_five_failures_are_kept_newest_first(timed: Timed) -> None:
    for status in range(500, 508):
        await timed.store.report(msgspec.structs.replace(DOWN, status=status))
        await timed.let_pass(11.0)
    assert [note.status for note in (await only(timed.store)).recent] == [507, 506, 505, 504, 503]


async def test_a_failure_without_a_status_is_kept_like_others(store: HealthStore) -> None:
    await store.report(msgspec.structs.replace(DOWN, reason=FailureReason.CONNECT_FAILED, status=None))
    assert [(note.reason, note.status) for note in (await only(store)).recent] == [(FailureReason.CONNECT_FAILED, None)]


async def test_a_limit_used_up_is_no_failure(store: HealthStore) -> None:
    known = await store.report(msgspec.structs.replace(PROMISE, failed=False))
    assert (known.failures, known.recent, known.promised) == (0, (), True)
    assert (await store.report(PROMISE)).failures == 1


async def test_a_success_forgets_the_failures(timed: Timed) -> None:
    await timed.store.report(DOWN)
    await timed.store.clear(["r:1", "unknown"])
    assert await timed.store.read() == []
    assert (await timed.store.report(DOWN)).failures == 1


async def test_a_running_promise_outlives_a_success(timed: Timed) -> None:
    await timed.store.report(PROMISE)
    await timed.store.clear(["m:1"])
    assert (await only(timed.store)).remaining_s > 29.0

    await timed.let_pass(31.0)
    await timed.store.clear(["m:1"])
    assert await timed.store.read() == []


async def test_one_caller_at_a_time_probes(timed: Timed) -> None:
    await timed.store.report(DOWN)
    assert not await timed.store.claim_probe("r:1", 20.0)  # still cooling down

    await timed.let_pass(11.0)
    assert await timed.store.claim_probe("r:1", 20.0)
    assert not await timed.store.claim_probe("r:1", 20.0)
    await timed.let_pass(21.0)
    assert await timed.store.claim_probe("r:1", 20.0)


async def test_a_probe_that_failed_leaves_the_next_one_free_after_the_cool_down(timed: Timed) -> None:
    await timed.store.report(DOWN)
    await timed.let_pass(11.0)
    assert await timed.store.claim_probe("r:1", 600.0)
    await timed.store.report(DOWN)
    await timed.let_pass(11.0)
    assert await timed.store.claim_probe("r:1", 600.0)


async def test_what_nothing_is_known_of_may_be_tried_by_all(store: HealthStore) -> None:
    assert await store.claim_probe("r:unknown", 20.0)
    assert await store.claim_probe("r:unknown", 20.0)
    assert await store.read() == []


async def test_what_has_been_quiet_for_an_hour_is_not_read_and_pruned(timed: Timed) -> None:
    await timed.store.report(DOWN)
    await timed.store.report(msgspec.structs.replace(PROMISE, duration_s=86_400.0))
    await timed.let_pass(3_500.0)
    assert len(await timed.store.read()) == 2
    assert await timed.store.prune(3_600.0) == 0

    await timed.let_pass(200.0)
    assert [row.key for row in await timed.store.read()] == ["m:1"]
    assert await timed.store.prune(3_600.0) == 1
    assert await timed.store.prune(3_600.0) == 0


async def test_the_latest_failure_is_read_first(timed: Timed) -> None:
    for key in ("r:1", "r:2", "r:3"):
        await timed.store.report(msgspec.structs.replace(DOWN, key=key))
        await timed.let_pass(1.0)
    assert [row.key for row in await timed.store.read()] == ["r:3", "r:2", "r:1"]


async def test_a_reset_forgets_also_what_a_provider_asked_for_and_nothing_else(store: HealthStore) -> None:
    await store.report(DOWN)
    await store.report(PROMISE)
    await store.reset([PROMISE.key, "k:unknown"])
    assert (await only(store)).key == DOWN.key
    assert (await store.report(PROMISE)).failures == 1


async def test_the_last_failures_are_left_out_where_nobody_shows_them(store: HealthStore) -> None:
    await store.report(DOWN)
    (whole,), (brief,) = await store.read(), await store.read(recent=False)
    assert len(whole.recent) == 1
    assert msgspec.structs.replace(whole, recent=(), remaining_s=0.0) == msgspec.structs.replace(brief, remaining_s=0.0)
