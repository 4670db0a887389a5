"""The one table of what each :class:`FailureReason` means for the delivery of a call. A test sees that none is missing."""

from typing import Final

import msgspec

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a reason."""

    sentence: str
    """Shown to clients."""
    scope: CooldownScope
    """What is left alone for a while."""
    retryable: bool = False
    """The same request may succeed on the same route later."""
    compact: bool = False
    """The request is too large: a shorter conversation may fit."""
    next_route: bool = True
    """Another target may answer: false for what is the request's own fault. (One that is too large goes to no smaller one; see retry.)"""
    quotable: bool = False
    """The provider's own words help the caller; others speak of accounts and machines that are none of theirs."""


TRAITS: Final[dict[FailureReason, Traits]] = {
    FailureReason.AUTH: Traits(
        sentence="The provider refused the credential.",
        scope=CooldownScope.KEY,
    ),
    FailureReason.BILLING: Traits(
        sentence="The provider account has no credit or quota left.",
        scope=CooldownScope.KEY,
    ),
    FailureReason.RATE_LIMIT: Traits(
        sentence="The provider's rate limit was reached.",
        scope=CooldownScope.KEY_MODEL,
        retryable=True,
        quotable=True,
    ),
    # A blocked region, or a firewall in front of the provider: it is us who are refused there, whatever the credential, while the
    # credential's other models may well be allowed. What says that it is about the credential is narrowed to it (see classify).
    FailureReason.FORBIDDEN: Traits(
        sentence="The provider denied access.",
        scope=CooldownScope.ROUTE,
    ),
    FailureReason.MODEL_NOT_FOUND: Traits(
        sentence="The provider does not offer this model.",
        scope=CooldownScope.ROUTE,
        quotable=True,
    ),
    FailureReason.CONTEXT_OVERFLOW: Traits(
        sentence="The request does not fit the model's context window.",
        scope=CooldownScope.NONE,
        compact=True,
        next_route=False,
        quotable=True,
    ),
    FailureReason.PAYLOAD_TOO_LARGE: Traits(
        sentence="The provider refused the request as too large.",
        scope=CooldownScope.NONE,
        compact=True,
        next_route=False,
        quotable=True,
    ),
    FailureReason.CONTENT_FILTERED: Traits(
        sentence="The provider's content filter blocked the request.",
        scope=CooldownScope.NONE,
        next_route=False,
        quotable=True,
    ),
    FailureReason.INVALID_REQUEST: Traits(
        sentence="The provider refused the request as invalid.",
        scope=CooldownScope.NONE,
        next_route=False,
        quotable=True,
    ),
    FailureReason.OVERLOADED: Traits(
        sentence="The provider is overloaded.",
        scope=CooldownScope.ROUTE,
        retryable=True,
        quotable=True,
    ),
    FailureReason.SERVER_ERROR: Traits(
        sentence="The provider failed.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    FailureReason.CONNECT_FAILED: Traits(
        sentence="The provider could not be reached.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    FailureReason.CONNECTION_BROKEN: Traits(
        sentence="The connection to the provider broke.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    FailureReason.FIRST_TOKEN_TIMEOUT: Traits(
        sentence="The provider sent nothing in time.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    FailureReason.STALE: Traits(
        sentence="The provider stopped sending.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    # A stream that stops half-way comes from what serves the model (a restart, a proxy's limit), as a broken connection does.
    FailureReason.INCOMPLETE_STREAM: Traits(
        sentence="The provider's reply ended before it was complete.",
        scope=CooldownScope.ROUTE,
        retryable=True,
    ),
    # Models answer some conversations with nothing; the next conversation gets its answer from the same route.
    FailureReason.INVALID_RESPONSE: Traits(
        sentence="The provider's reply was empty or malformed.",
        scope=CooldownScope.NONE,
        retryable=True,
    ),
    FailureReason.UNSUPPORTED: Traits(
        sentence="The model cannot do what the request needs.",
        scope=CooldownScope.NONE,
        quotable=True,
    ),
    FailureReason.INVALID_REPLAY: Traits(
        sentence="The provider did not accept its own reasoning when it was sent back.",
        scope=CooldownScope.NONE,
        quotable=True,
    ),
    FailureReason.BAD_UNICODE: Traits(
        sentence="The provider refused text that is no proper Unicode.",
        scope=CooldownScope.NONE,
        quotable=True,
    ),
}
"""By reason."""
