import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.model import FailureReason as Reason
from app.providers.amend import Amendment
from app.providers.classify import Failure
from app.providers.retry import GiveUp, NextRoute, Repeat, Situation, Step, backoff_s, next_step
from app.providers.traits import TRAITS

OWN_FAULT = [reason for reason in Reason if not TRAITS[reason].next_route]
AMENDABLE = [Reason.INVALID_REPLAY, Reason.BAD_UNICODE]


def failure(reason: Reason, status: int | None = None, retry_after_s: float | None = None) -> Failure:
    return Failure(reason=reason, retryable=TRAITS[reason].retryable, message="m", status=status, retry_after_s=retry_after_s)


def decide(
    what: Failure,
    *,
    tries: int = 1,
    others: bool = False,
    untried: bool = False,
    fitting: bool | None = None,
    backed_off_s: float = 0.0,
    arrived: bool = False,
    amended: tuple[Amendment, ...] = (),
) -> Step:
    at = Situation(
        tries=tries,
        max_attempts=3,
        patience_s=5.0,
        longest_wait_s=60.0,
        others=others,
        untried=untried or others,
        fitting=(untried or others) if fitting is None else fitting,
        backed_off_s=backed_off_s,
        arrived=arrived,
        amended=amended,
    )
    return next_step(what, at, random=0.5)


TOO_LARGE = (Reason.CONTEXT_OVERFLOW, Reason.PAYLOAD_TOO_LARGE)


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("reason", OWN_FAULT)
def test_the_requests_own_fault_ends_the_call(reason: Reason, others: bool) -> None:
    assert decide(failure(reason, 400), others=others, fitting=False) == GiveUp()
    if reason not in TOO_LARGE:
        assert decide(failure(reason, 400), others=others, fitting=True) == GiveUp()


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("reason", [*TOO_LARGE, Reason.INVALID_RESPONSE])
def test_a_route_that_may_take_the_request_is_asked_at_once(reason: Reason, others: bool) -> None:
    assert decide(failure(reason), others=others, untried=True, fitting=True) == NextRoute()


def test_growing_delays_of_a_call_are_bounded_together() -> None:
    assert decide(failure(Reason.SERVER_ERROR, 500), tries=2, backed_off_s=290.0) == Repeat(10.0)
    assert decide(failure(Reason.SERVER_ERROR, 500), tries=2, backed_off_s=291.0) == GiveUp()


def test_what_is_the_requests_own_fault() -> None:
    assert {Reason.CONTEXT_OVERFLOW, Reason.PAYLOAD_TOO_LARGE, Reason.CONTENT_FILTERED, Reason.INVALID_REQUEST} <= set(OWN_FAULT)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in OWN_FAULT + AMENDABLE])
def test_with_another_route_the_second_failure_moves_on(reason: Reason) -> None:
    assert decide(failure(reason, 500), tries=2, others=True) == NextRoute()


@pytest.mark.parametrize(
    ("what", "arrived", "step"),
    [
        (failure(Reason.CONNECTION_BROKEN), False, Repeat(0.0)),
        (failure(Reason.CONNECTION_BROKEN), True, Repeat(0.0)),
        (failure(Reason.SERVER_ERROR, 500), True, Repeat(0.0)),
        (failure(Reason.OVERLOADED, 503), True, Repeat(0.0)),
        (failure(Reason.OVERLOADED, 503, 9.0), True, NextRoute()),
        (failure(Reason.OVERLOADED, 503, 4.0), True, Repeat(4.0)),
        (failure(Reason.SERVER_ERROR), True, NextRoute()),
        (failure(Reason.RATE_LIMIT, 429), True, NextRoute()),
        (failure(Reason.RATE_LIMIT, 429, 1.0), True, Repeat(1.0)),
        (failure(Reason.RATE_LIMIT, 429, 5.0), True, Repeat(5.0)),
        (failure(Reason.RATE_LIMIT, 429, 5.1), True, NextRoute()),
        (failure(Reason.BILLING, 429, 1.0), True, NextRoute()),
        (failure(Reason.AUTH, 401), True, NextRoute()),
        (failure(Reason.CONNECT_FAILED), False, NextRoute()),
        (failure(Reason.INVALID_RESPONSE), True, NextRoute()),
        (failure(Reason.INCOMPLETE_STREAM), True, NextRoute()),
        (failure(Reason.UNSUPPORTED, 400), True, NextRoute()),
        (failure(Reason.STALE), True, NextRoute()),
        (failure(Reason.FIRST_TOKEN_TIMEOUT), False, NextRoute()),
    ],
)
def test_with_another_route_the_first_failure(what: Failure, arrived: bool, step: Step) -> None:
    assert decide(what, others=True, arrived=arrived) == step


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


@pytest.mark.parametrize(
    ("what", "tries", "step"),
    [
        (failure(Reason.SERVER_ERROR, 500), 2, Repeat(10.0)),
        (failure(Reason.SERVER_ERROR, 500), 3, NextRoute()),
        (failure(Reason.AUTH, 401), 1, NextRoute()),
        (failure(Reason.INVALID_REQUEST, 400), 1, GiveUp()),
    ],
)
def test_an_ailing_route_that_was_not_tried_is_the_last_resort(what: Failure, tries: int, step: Step) -> None:
    assert decide(what, tries=tries, untried=True) == step


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize(
    ("reason", "amended", "wanted"),
    [
        (Reason.INVALID_REPLAY, (), Amendment.WITHOUT_REPLAY),
        (Reason.INVALID_REPLAY, (Amendment.WITHOUT_REPLAY,), None),
        (Reason.BAD_UNICODE, (), Amendment.PLAIN_TEXT),
        (Reason.BAD_UNICODE, (Amendment.PLAIN_TEXT,), Amendment.ASCII),
        (Reason.BAD_UNICODE, (Amendment.PLAIN_TEXT, Amendment.ASCII), None),
    ],
)
def test_a_refused_form_is_amended_a_bounded_number_of_times(
    reason: Reason, amended: tuple[Amendment, ...], wanted: Amendment | None, others: bool
) -> None:
    step = decide(failure(reason, 400), others=others, amended=amended)
    if wanted is None:
        assert not isinstance(step, Repeat)
    else:
        assert step == Repeat(0.0, wanted)


@given(attempt=st.integers(-5, 10_000), random=st.floats(0, 1, exclude_max=True))
def test_backoff_grows_within_its_bounds(attempt: int, random: float) -> None:
    middle = min(5.0 * 2 ** min(max(attempt - 1, 0), 20), 120.0)
    assert middle * 0.75 <= backoff_s(attempt, random) < middle * 1.25 + 1e-9
