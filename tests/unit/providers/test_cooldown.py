import pytest

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason as Reason
from app.providers.classify import Failure
from app.providers.cooldown import Pause, pause_after
from app.providers.traits import TRAITS


def failure(reason: Reason, retry_after_s: float | None = None, *, promised: bool = True) -> Failure:
    return Failure(reason=reason, retryable=True, message="", retry_after_s=retry_after_s, promised=promised and retry_after_s is not None)


@pytest.mark.parametrize(
    ("reason", "durations"),
    [
        pytest.param(Reason.BILLING, [600, 1_200, 2_400, 3_600, 3_600], id="billing: ten minutes to an hour"),
        pytest.param(Reason.AUTH, [600, 600], id="credential refused: ten minutes"),
        pytest.param(Reason.FORBIDDEN, [600, 600], id="access denied: ten minutes"),
        pytest.param(Reason.MODEL_NOT_FOUND, [600, 600], id="unknown model: ten minutes"),
        pytest.param(Reason.RATE_LIMIT, [10, 20, 40, 60, 60], id="rate limit without a time"),
        pytest.param(Reason.OVERLOADED, [5, 10, 20, 30, 30], id="overloaded"),
        pytest.param(Reason.SERVER_ERROR, [5, 10, 20, 30, 30], id="server error"),
        pytest.param(Reason.CONNECT_FAILED, [5, 10, 20, 30], id="unreachable"),
        pytest.param(Reason.CONNECTION_BROKEN, [5, 10, 20, 30], id="connection broken"),
        pytest.param(Reason.INCOMPLETE_STREAM, [5, 10, 20, 30], id="stream cut"),
        pytest.param(Reason.FIRST_TOKEN_TIMEOUT, [10, 60, 120, 240, 300, 300], id="silent: opens with the second"),
        pytest.param(Reason.STALE, [10, 60, 120], id="stalled: opens with the second"),
    ],
)
def test_durations_grow_with_the_failures_in_a_row(reason: Reason, durations: list[float]) -> None:
    assert [pause_after(failure(reason), number) for number in range(1, len(durations) + 1)] == [
        Pause(float(duration), promised=False) for duration in durations
    ]


def test_many_failures_do_not_overflow() -> None:
    assert pause_after(failure(Reason.SERVER_ERROR), 100_000) == Pause(30.0, promised=False)


@pytest.mark.parametrize("asked", [0.0, 3.0, 3_600.0])
@pytest.mark.parametrize("reason", [Reason.RATE_LIMIT, Reason.OVERLOADED, Reason.SERVER_ERROR, Reason.BILLING])
def test_a_time_that_the_provider_named_is_kept_exactly(reason: Reason, asked: float) -> None:
    assert pause_after(failure(reason, asked), 4) == Pause(asked, promised=True)


def test_a_time_that_we_conclude_is_kept_without_being_a_promise() -> None:
    assert pause_after(failure(Reason.RATE_LIMIT, 8.0, promised=False), 1) == Pause(8.0, promised=False)


@pytest.mark.parametrize("reason", [reason for reason in Reason if TRAITS[reason].scope is CooldownScope.NONE])
def test_what_is_the_requests_own_cools_nothing_down(reason: Reason) -> None:
    assert pause_after(failure(reason), 3) is None
    assert pause_after(failure(reason, 5.0), 3) is None


@pytest.mark.parametrize("reason", [reason for reason in Reason if TRAITS[reason].scope is not CooldownScope.NONE])
def test_whatever_reaches_further_cools_something_down(reason: Reason) -> None:
    assert pause_after(failure(reason), 1) is not None
