"""One model call on its way through a chain: what was tried, and what is left."""

from collections.abc import Sequence

from app.domain.delivery import Booked
from app.domain.errors import ContextOverflowError, ModelError, ModelUnavailableError
from app.domain.model import FailureReason, ModelRequest, Throttled
from app.providers.amend import Amendment, amend
from app.providers.classify import Failure
from app.providers.stream import Attempt
from app.providers.target import Target

_FULL = 0.9
"""Part of a window above which a connection that dies again counts as a request that does not fit."""


class Call:
    """What has happened so far in one model call."""

    __slots__ = (
        "_tries",
        "_window",
        "amended",
        "attempt",
        "backed_off_s",
        "failures",
        "floor",
        "notices",
        "number",
        "passed",
        "probing",
        "request",
        "reserved",
        "shown",
        "targets",
        "waited_s",
    )

    def __init__(self, request: ModelRequest, targets: Sequence[Target]) -> None:
        self.request = request
        self.targets = targets
        self.number = request.first_attempt
        self._tries: dict[int, int] = {}
        """Attempts made, by the target's place."""
        self.passed: set[int] = set()
        """Places in the chain that this call does not ask (again)."""
        self.probing: Target | None = None
        """On probation, and nobody but this call may try it; it has not yet."""
        self.amended: tuple[Amendment, ...] = ()
        self.waited_s = 0.0
        """For limits and promised times."""
        self.backed_off_s = 0.0
        """Between attempts on one target, where nobody named a time."""
        self.floor = 0
        """Tokens: a target with a smaller window than this would refuse the request as another one did."""
        self._window: int | None = None
        """Tokens: that of the first target that refused the request as too long."""
        self.failures: list[Failure] = []
        """Of the attempts so far."""
        self.notices: list[Throttled] = []
        """Routes left out, not told yet."""
        self.attempt: Attempt | None = None
        self.shown = False
        """Some of the present attempt's deltas were given out."""
        self.reserved: Booked | None = None
        """A place in the limits that no attempt has used yet."""

    @property
    def open_targets(self) -> list[Target]:
        """Targets that may still be asked, in order, whatever their health."""
        return [target for target in self.targets if target.place not in self.passed and self.fits(target) and self._is_large(target)]

    @property
    def too_small(self) -> list[Target]:
        """Targets that could only be asked if the request were smaller."""
        return [target for target in self.targets if target.place not in self.passed and not self.fits(target)]

    @property
    def too_long(self) -> bool:
        """Whether a target refused the request as too long."""
        return self._window is not None

    def untried(self, present: Target) -> bool:
        """Whether there is another target that was not asked, be it one that takes only a smaller request."""
        return any(target is not present and target.place not in self.passed for target in self.targets)

    def tries_on(self, target: Target) -> int:
        """Attempts made on ``target``."""
        return self._tries.get(target.place, 0)

    def count_try(self, target: Target) -> None:
        """An attempt on ``target`` begins."""
        self._tries[target.place] = self.tries_on(target) + 1

    def refused_as_too_long(self, target: Target, window: int | None) -> None:
        """``target`` did not take the request; ``window`` is the number of tokens that it named."""
        refused = min(window or target.route.context_window, target.route.context_window)
        self.floor = max(self.floor, refused)
        if self._window is None:
            self._window = refused

    def _is_large(self, target: Target) -> bool:
        return target.route.context_window >= self.floor

    def fits(self, target: Target) -> bool:
        """Whether the request is likely to fit.

        Of the windows that a chain falls back to a smaller one than the first is judged by the estimate; the largest one itself is asked.
        """
        route = target.route
        if route.context_window >= self.targets[0].route.context_window:
            return True
        return self.request.input_tokens + route.output_limit(self.request.options) <= route.context_window

    def amend(self, amendment: Amendment) -> None:
        """Send the request differently from now on."""
        self.amended = (*self.amended, amendment)
        self.request = amend(self.request, amendment)

    def leave(self, target: Target) -> None:
        """The call does not come back to this target."""
        self.passed.add(target.place)

    def is_overflow(self, target: Target, reason: FailureReason) -> bool:
        """Whether a connection that died means that the request does not fit: it died before, and the request really fills the window.

        Providers that cannot take a request in often just hang up on it.
        """
        if reason is not FailureReason.CONNECTION_BROKEN or self.request.input_tokens <= _FULL * target.route.context_window:
            return False
        return any(failure.reason is FailureReason.CONNECTION_BROKEN for failure in self.failures)

    def error(self) -> ModelError:
        """What the call ends with: a refusal as too long if there was one, since a shorter conversation can be sent again to all.

        Else of its failures the last one that may pass, else the last.
        """
        last = self.failures[-1]
        overflow = next((failure for failure in self.failures if failure.compact), None)
        if overflow is not None:
            return ContextOverflowError(overflow.reason, overflow.message, window=self._window)
        telling = next((failure for failure in reversed(self.failures) if failure.retryable), last)
        return ModelUnavailableError(telling.reason, telling.message, retry_after_s=telling.retry_after_s)
