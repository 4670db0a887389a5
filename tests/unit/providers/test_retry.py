import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.model import FailureReason as Reason
from app.providers.classify import RETRYABLE, Failure
from app.providers.retry import MAX_ASKED_WAIT_S, GiveUp, NextRoute, Repeat, Step, backoff_s, next_step


def failure(reason: Reason, status: int | None = None, retry_after_s: float | None = None) -> Failure:
    return Failure(reason=reason, retryable=reason in RETRYABLE, message="m", status=status, retry_after_s=retry_after_s)


def decide(what: Failure, *, tries: int = 1, more_routes: bool = False, arrived: bool = False) -> Step:
    return next_step(what, tries=tries, max_attempts=3, more_routes=more_routes, arrived=arrived, random=0.5)


FATAL = [Reason.CONTEXT_OVERFLOW, Reason.CONTENT_FILTERED, Reason.INVALID_REQUEST]


@pytest.mark.parametrize("more_routes", [True, False])
@pytest.mark.parametrize("reason", FATAL)
def test_the_requests_own_fault_ends_the_call(reason: Reason, more_routes: bool) -> None:
    assert decide(failure(reason, 400), more_routes=more_routes) == GiveUp()


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in FATAL])
def test_with_another_route_the_second_failure_moves_on(reason: Reason) -> None:
    assert decide(failure(reason, 500), tries=2, more_routes=True) == NextRoute()


@pytest.mark.parametrize(
    ("what", "arrived", "step"),
    [
        (failure(Reason.CONNECTION_BROKEN), False, Repeat(0.0)),
        (failure(Reason.CONNECTION_BROKEN), True, NextRoute()),
        (failure(Reason.SERVER_ERROR, 500), True, Repeat(0.0)),
        (failure(Reason.OVERLOADED, 503), True, Repeat(0.0)),
        (failure(Reason.OVERLOADED, 503, 9.0), True, NextRoute()),
        (failure(Reason.SERVER_ERROR), True, NextRoute()),
        (failure(Reason.RATE_LIMIT, 429, 1.0), True, NextRoute()),
        (failure(Reason.AUTH, 401), True, NextRoute()),
        (failure(Reason.CONNECT_FAILED), False, NextRoute()),
        (failure(Reason.INVALID_RESPONSE), True, NextRoute()),
        (failure(Reason.INCOMPLETE_STREAM), True, NextRoute()),
        (failure(Reason.STALE), True, NextRoute()),
        (failure(Reason.FIRST_TOKEN_TIMEOUT), False, NextRoute()),
    ],
)
def test_with_another_route_the_first_failure(what: Failure, arrived: bool, step: Step) -> None:
    assert decide(what, more_routes=True, arrived=arrived) == step


@pytest.mark.parametrize(
    ("what", "tries", "step"),
    [
        (failure(Reason.SERVER_ERROR, 500), 1, Repeat(5.0)),
        (failure(Reason.SERVER_ERROR, 500), 2, Repeat(10.0)),
        (failure(Reason.SERVER_ERROR, 500), 3, GiveUp()),
        (failure(Reason.RATE_LIMIT, 429, 2.0), 1, Repeat(2.0)),
        (failure(Reason.RATE_LIMIT, 429, 0.0), 1, Repeat(0.0)),
        (failure(Reason.RATE_LIMIT, 429, 60.0), 1, Repeat(60.0)),
        (failure(Reason.RATE_LIMIT, 429, 60.1), 1, GiveUp()),
        (failure(Reason.CONNECTION_BROKEN), 1, Repeat(0.0)),
        (failure(Reason.CONNECTION_BROKEN), 2, Repeat(10.0)),
        (failure(Reason.INVALID_RESPONSE), 1, Repeat(5.0)),
        (failure(Reason.AUTH, 401), 1, GiveUp()),
        (failure(Reason.BILLING, 402), 1, GiveUp()),
        (failure(Reason.MODEL_NOT_FOUND, 404), 1, GiveUp()),
        (failure(Reason.PAYLOAD_TOO_LARGE, 413), 1, GiveUp()),
    ],
)
def test_on_the_last_route(what: Failure, tries: int, step: Step) -> None:
    assert decide(what, tries=tries) == step


@given(attempt=st.integers(-5, 10_000), random=st.floats(0, 1, exclude_max=True))
def test_backoff_grows_within_its_bounds(attempt: int, random: float) -> None:
    middle = min(5.0 * 2 ** min(max(attempt - 1, 0), 20), 120.0)
    assert middle * 0.75 <= backoff_s(attempt, random) < middle * 1.25 + 1e-9


failures = st.builds(
    failure,
    st.sampled_from(Reason),
    st.sampled_from([None, 400, 429, 500, 503]),
    st.one_of(st.none(), st.floats(0, 1e6)),
)


@given(what=failures, tries=st.integers(1, 6), more=st.booleans(), arrived=st.booleans())
def test_every_call_ends_and_nobody_is_asked_too_early(what: Failure, tries: int, more: bool, arrived: bool) -> None:
    step = decide(what, tries=tries, more_routes=more, arrived=arrived)
    match step:
        case Repeat():
            assert tries < 3
            assert what.retry_after_s is None or what.retry_after_s <= step.delay_s <= MAX_ASKED_WAIT_S
        case NextRoute():
            assert more
        case GiveUp():
            assert not more or what.reason in FATAL


def test_a_route_of_one_attempt_is_not_repeated_while_another_remains() -> None:
    step = next_step(failure(Reason.SERVER_ERROR, 500), tries=1, max_attempts=1, more_routes=True, arrived=True, random=0.5)
    assert step == NextRoute()
