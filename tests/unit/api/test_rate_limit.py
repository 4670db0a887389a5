import pytest

from app.api.errors import gateway_problem
from app.api.rate_limit import rate_limit_headers, retry_after_s
from app.domain.errors import QuotaExceededError
from app.domain.quotas import DAY_S, MINUTE_S, QuotaPolicy, QuotaState

REQUESTS = QuotaState(policy=QuotaPolicy.REQUESTS, limit=60, window_s=MINUTE_S, remaining=12, reset_s=19.2)
CONCURRENT = QuotaState(policy=QuotaPolicy.CONCURRENT_TURNS, limit=5, window_s=None)
COST = QuotaState(policy=QuotaPolicy.COST, limit=1_500_000, window_s=DAY_S, remaining=0, reset_s=3_600.0)


def test_a_tenant_without_quotas_is_told_nothing() -> None:
    assert rate_limit_headers(()) == {}


def test_the_fields_are_lists_of_named_policies() -> None:
    assert rate_limit_headers((REQUESTS, CONCURRENT, COST)) == {
        "RateLimit-Policy": '"requests";q=60;w=60, "concurrent_turns";q=5, "cost";q=1500000;w=86400',
        "RateLimit": '"requests";r=12;t=20, "cost";r=0;t=3600',
    }


def test_what_was_not_looked_at_is_a_policy_only() -> None:
    assert rate_limit_headers((CONCURRENT,)) == {"RateLimit-Policy": '"concurrent_turns";q=5'}


@pytest.mark.parametrize(
    ("violated", "seconds"), [((REQUESTS,), 20), ((REQUESTS, COST), 3_600), ((CONCURRENT,), 1)], ids=["one", "the longest", "unknown"]
)
def test_retry_after_waits_for_all_of_them(violated: tuple[QuotaState, ...], seconds: int) -> None:
    assert retry_after_s(violated) == seconds


def test_a_used_up_quota_is_a_429_that_names_it() -> None:
    body, headers = gateway_problem(QuotaExceededError("The tenant's money of the day is used up.", (COST,)))
    assert (body.status, body.code, body.retryable, body.violated_policies) == (429, "quota_exceeded", True, ("cost",))
    assert body.detail == "The tenant's money of the day is used up."
    assert headers == {
        "Retry-After": "3600",
        "RateLimit-Policy": '"cost";q=1500000;w=86400',
        "RateLimit": '"cost";r=0;t=3600',
    }
