"""Errors of the service; the API maps them to statuses in one table (``api/errors.py``).

::

    GatewayError
    ├── InvalidRequestError      the caller's input is wrong                        (pointer, detail)
    ├── UnauthorizedError        no key, or not a good one                          (detail)
    ├── ForbiddenError           closed to everybody, whatever the key              (code)
    ├── NotFoundError            unknown, deleted or another tenant's
    ├── ConflictError            the state does not allow it                        (code)
    ├── QuotaExceededError       a quota of the tenant is used up                   (violated)
    ├── UnavailableError         try again later: draining, full, storage away      (code, retry_after_s)
    ├── LeaseLostError           this replica no longer owns the turn
    └── ModelError               a model call that cannot succeed                   (reason, window)
        ├── ContextOverflowError the request does not fit the model's window
        └── ModelUnavailableError no route of the chain answered

Not errors but values: a tool's failure, truncation, refusal, an interrupt, a used-up budget.
"""

from app.domain.ids import TurnId
from app.domain.model import FailureReason
from app.domain.quotas import QuotaState


class GatewayError(Exception):
    """Root of the errors this service raises on purpose."""


class InvalidRequestError(GatewayError):
    """The caller's input is wrong; ``pointer`` is a JSON pointer to the place, ``detail`` one sentence."""

    def __init__(self, detail: str, *, pointer: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer


class UnauthorizedError(GatewayError):
    """No key, or one that is unknown or disabled; ``detail`` never says which of the two."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ForbiddenError(GatewayError):
    """Closed, whatever the key. ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class NotFoundError(GatewayError):
    """No such thing for this tenant."""


class ConflictError(GatewayError):
    """The state does not allow it. ``code`` is stable; ``turn_id`` names the turn in the way, if one is."""

    def __init__(self, code: str, detail: str, *, turn_id: TurnId | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.turn_id = turn_id


class QuotaExceededError(GatewayError):
    """The tenant has used up quotas of its own: ``violated`` are all those found so; ``detail`` names them."""

    def __init__(self, detail: str, violated: tuple[QuotaState, ...]) -> None:
        super().__init__(detail)
        self.detail = detail
        self.violated = violated


class UnavailableError(GatewayError):
    """Not now. ``code`` is stable, ``retry_after_s`` in seconds."""

    def __init__(self, code: str, detail: str, *, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s


class LeaseLostError(GatewayError):
    """Another replica has taken the turn over: stop at once and write nothing."""


class ModelError(GatewayError):
    """A model call that cannot succeed, for the reason of a failed attempt; ``detail`` is safe to show.

    ``retry_after_s``: when it may succeed, as far as a limit or a provider said; ``window``: tokens that the request has to fit into,
    where that is what is wrong and it is known.
    """

    def __init__(
        self,
        reason: FailureReason,
        detail: str,
        *,
        retry_after_s: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.window = window


class ContextOverflowError(ModelError):
    """The request does not fit the model's window."""


class ModelUnavailableError(ModelError):
    """No route of the chain gave a complete reply."""
