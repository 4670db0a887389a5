"""What the turns of one process may use of their tenant's day."""

from datetime import date

import msgspec
import pytest

from app.domain.ids import TenantId
from app.domain.quotas import DayShare, DaySums, Spent
from app.domain.tenants import Tenant, TenantSettings
from app.turns import day_shares
from app.turns.day_shares import DayShares

TODAY = date(2026, 12, 1)
TENANT = Tenant(
    id=TenantId("ten_1"), name="acme", revision=1, settings=TenantSettings(tokens_per_day=1_000, cost_usd_per_day=2.0), chains={}
)


def sums(tokens: int, cost_usd: float = 0.0, day: date = TODAY) -> DaySums:
    return DaySums(day=day, tokens=tokens, cost_usd=cost_usd)


@pytest.fixture
def shares() -> DayShares:
    return DayShares()


def test_nothing_is_limited_before_anything_is_known(shares: DayShares) -> None:
    assert shares.open(TENANT, Spent()).share() == DayShare()


def test_a_turn_may_use_what_it_has_used_and_what_is_left(shares: DayShares) -> None:
    shares.learn(TENANT.id, sums(600, 0.5))
    turn = shares.open(TENANT, Spent(100, 0.25))
    assert turn.share() == DayShare(tokens=500, cost_usd=1.75)
    turn.count(Spent(250, 0.5), sums(750, 0.75))
    assert turn.share() == DayShare(tokens=500, cost_usd=1.75), "its own use leaves its share as it is"
    turn.count(Spent(250, 0.5), sums(950, 1.75))
    assert turn.share() == DayShare(tokens=300, cost_usd=0.75), "that of others does not"


def test_only_what_is_limited_is_limited(shares: DayShares) -> None:
    shares.learn(TENANT.id, sums(600, 0.5))
    for settings, share in (
        (TenantSettings(tokens_per_day=1_000), DayShare(tokens=400)),
        (TenantSettings(cost_usd_per_day=2.0), DayShare(cost_usd=1.5)),
    ):
        assert shares.open(msgspec.structs.replace(TENANT, settings=settings), Spent()).share() == share


def test_what_a_call_may_use_is_left_to_it_until_its_use_is_counted(shares: DayShares) -> None:
    shares.learn(TENANT.id, sums(512, 1.0))
    first, second = shares.open(TENANT, Spent()), shares.open(TENANT, Spent())
    first.hold(256)
    assert first.share() == DayShare(tokens=488, cost_usd=1.0)
    assert second.share() == DayShare(tokens=232, cost_usd=0.5)
    first.hold(128)
    assert second.share().tokens == 360
    first.count(Spent(), sums(512, 1.0))
    assert second.share().tokens == 360, "a step that used nothing is not its end"
    first.count(Spent(100, 0.25), sums(612, 1.25))
    assert second.share() == DayShare(tokens=388, cost_usd=0.75)


def test_a_turn_that_ends_holds_nothing(shares: DayShares) -> None:
    shares.learn(TENANT.id, sums(500))
    first, second = shares.open(TENANT, Spent()), shares.open(TENANT, Spent())
    first.hold(300)
    first.close()
    first.close()
    assert second.share().tokens == 500


def test_answers_that_overtake_each_other_do_not_bring_back_what_is_spent(shares: DayShares) -> None:
    turn = shares.open(TENANT, Spent())
    turn.count(Spent(10), sums(700))
    turn.count(Spent(10), sums(600))
    assert turn.share().tokens == 310


def test_a_new_day_begins_anew(shares: DayShares) -> None:
    turn = shares.open(TENANT, Spent())
    turn.count(Spent(10), sums(990))
    turn.count(Spent(20), sums(10, day=date(2026, 12, 2)))
    assert turn.share().tokens == 1_010


def test_tenants_have_days_of_their_own_and_are_bounded(shares: DayShares) -> None:
    turn = shares.open(TENANT, Spent())
    turn.count(Spent(10), sums(700))
    for number in range(day_shares.MAX_TENANTS + 10):
        shares.learn(TenantId(f"ten_other_{number}"), sums(1_000))
    assert len(shares._days) == day_shares.MAX_TENANTS
    assert turn.share().tokens == 310
