"""The one table of what went wrong: (status, headers, body) or an in-stream error or a transport fault in, a :class:`Failure` out.

Structured codes decide before words, words before the status alone. Pure: the wall clock is an argument.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from app.domain.delivery import CooldownScope
from app.domain.model import FailureReason
from app.providers.error_body import Said, read_body, read_error
from app.providers.error_words import (
    CODES,
    CREDENTIAL_WORDS,
    EMPTY_WORDS,
    GENERAL_CODES,
    HINT_WORDS,
    PERIOD_WORDS,
    TRANSIENT_WORDS,
    WORDS,
    plain_code,
)
from app.providers.overflow_words import (
    CONTEXT_WORDS,
    LONG_CONTEXT_WINDOW,
    LONG_CONTEXT_WORDS,
    MINUTE_WORDS,
    asks_for_too_much,
    minute_in,
    window_in,
)
from app.providers.redact import redact
from app.providers.retry_after import MAX_ASKED_S, body_wait_s, guessed_wait_s, header_wait_s, limits_wait_s, words_wait_s
from app.providers.traits import TRAITS

_OK: Final = 200
_PAYMENT_REQUIRED: Final = 402
_TOO_MANY: Final = 429
_REDIRECTS: Final = range(300, 400)
_CLIENT_STATUSES: Final = range(400, 500)
_SERVER_STATUSES: Final = range(500, 600)
_STATUSES: Final[dict[int, FailureReason]] = {
    401: FailureReason.AUTH,
    402: FailureReason.BILLING,
    403: FailureReason.FORBIDDEN,
    404: FailureReason.MODEL_NOT_FOUND,
    405: FailureReason.MODEL_NOT_FOUND,  # nothing serves models at this address
    408: FailureReason.SERVER_ERROR,
    409: FailureReason.SERVER_ERROR,
    410: FailureReason.MODEL_NOT_FOUND,
    413: FailureReason.PAYLOAD_TOO_LARGE,
    415: FailureReason.UNSUPPORTED,
    424: FailureReason.SERVER_ERROR,  # Bedrock: the model failed
    425: FailureReason.SERVER_ERROR,
    429: FailureReason.RATE_LIMIT,
    451: FailureReason.FORBIDDEN,
    498: FailureReason.OVERLOADED,  # Groq: no capacity in this tier
    499: FailureReason.SERVER_ERROR,  # a proxy in between gave up
    501: FailureReason.UNSUPPORTED,
    503: FailureReason.OVERLOADED,
    529: FailureReason.OVERLOADED,
}
_WINDOWLESS: Final = frozenset({401, 402, 403, 429})
"""Statuses that are never about the request's size, whatever the words."""
_UNWRAPPED: Final = frozenset({413, 429, 529})
"""Statuses that count when a server error's body names them: a proxy passes on what its upstream said."""
_WORDLESS: Final = frozenset({400, 413})
"""Cerebras answers overflow by these without a body."""
_PLAUSIBLE: Final = 0.5
"""Part of a window from which a refusal without a word is taken for one of the request's size: windows are often declared too large."""
_BAD_REQUEST: Final = 400
_HOLLOW: Final = frozenset({"", "error", "bad request", "400 bad request", "invalid request", "invalid request error", "request failed"})
"""Words of a refusal that say nothing."""
_SPOKEN: Final = frozenset({FailureReason.RATE_LIMIT, FailureReason.OVERLOADED, FailureReason.BILLING})
"""Reasons that come with a time to wait in words."""
_SAID_WITH_403: Final = frozenset(
    {
        FailureReason.AUTH,
        FailureReason.MODEL_NOT_FOUND,
        FailureReason.CONTENT_FILTERED,
        FailureReason.RATE_LIMIT,
        FailureReason.UNSUPPORTED,
    }
)
_SAID_WITH_5XX: Final = frozenset(
    {
        FailureReason.OVERLOADED,
        FailureReason.UNSUPPORTED,
        FailureReason.INVALID_REPLAY,
        FailureReason.BAD_UNICODE,
    }
)
_OF_CREDENTIALS: Final = frozenset({FailureReason.FORBIDDEN, FailureReason.MODEL_NOT_FOUND})
_OF_ACCOUNTS: Final = frozenset({FailureReason.AUTH, FailureReason.BILLING})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with an attempt. What follows from the reason alone is read from :data:`app.providers.traits.TRAITS`."""

    reason: FailureReason
    retryable: bool
    """The same request may succeed on the same route later."""
    message: str
    """Safe to show."""
    status: int | None = None
    retry_after_s: float | None = None
    """Seconds until the provider may answer again, as far as it says so, but no more than an hour; zero is at once."""
    promised: bool = False
    """Whether ``retry_after_s`` is what the provider asked for, not what we conclude from it."""
    window: int | None = None
    """Tokens that may be sent at most, where a refusal of a longer request names the number."""
    one_model: bool = False
    """It concerns this model through this credential only, however far its reason reaches otherwise."""

    @property
    def compact(self) -> bool:
        """The request is too large: a shorter conversation may fit."""
        return TRAITS[self.reason].compact

    @property
    def next_route(self) -> bool:
        """Another target may answer: false for what is the request's own fault."""
        return TRAITS[self.reason].next_route

    @property
    def scope(self) -> CooldownScope:
        """What is to be left alone for a while."""
        return CooldownScope.KEY_MODEL if self.one_model else TRAITS[self.reason].scope


def transport_failure(reason: FailureReason, *, retryable: bool = True) -> Failure:
    """A failure that we saw ourselves: a fault of the connection, a deadline, a stream that is not one."""
    traits = TRAITS[reason]
    return Failure(reason=reason, retryable=retryable and traits.retryable, message=traits.sentence)


def classify_response(
    status: int, headers: Mapping[str, str], body: bytes, *, secrets: tuple[str, ...], now: datetime, filled: float | None = None
) -> Failure:
    """The failure behind a response with an error status. ``now`` is aware; ``headers`` are looked up in lower case.

    ``filled``: the part of the route's window that the request took, by estimate; ``None`` when that is not known. A refusal that says
    nothing is about the size of a request that takes much of its window, and about something else in a small one.
    """
    said = read_body(body)
    kind = headers.get("x-amzn-errortype")  # where Bedrock puts the code
    if kind:
        said = msgspec.structs.replace(said, codes=(kind, *said.codes))
    if status in _WORDLESS and not body.strip() and (filled is None or filled >= _PLAUSIBLE):
        return _failure(FailureReason.CONTEXT_OVERFLOW, said, status=status, secrets=secrets, asked=None)
    asked = header_wait_s(headers, now)
    if asked is None:
        asked = body_wait_s(said, now)
    reason = _reason(_unwrapped(status, said), said, timed=asked is not None)
    if (
        status == _BAD_REQUEST
        and reason is FailureReason.INVALID_REQUEST
        and _is_hollow(said)
        and filled is not None
        and filled >= _PLAUSIBLE
    ):
        reason = FailureReason.CONTEXT_OVERFLOW
    if asked is None and reason in _SPOKEN:
        asked = words_wait_s(said.text, now)
    if asked is None and reason is FailureReason.RATE_LIMIT:
        asked = limits_wait_s(headers, said, now)
    failure = _failure(reason, said, status=status, secrets=secrets, asked=asked)
    if asked is None and reason is FailureReason.RATE_LIMIT:
        return msgspec.structs.replace(failure, retry_after_s=guessed_wait_s(headers, now))
    return failure


def classify_error(error: object, *, secrets: tuple[str, ...], now: datetime | None = None) -> Failure:
    """The failure behind an error that arrived inside a successful response: an object, a string, anything.

    Without ``now`` a moment that the error names is not understood; a number of seconds is.
    """
    said = read_error({"error": error})
    status = said.statuses[0] if said.statuses else None
    asked = body_wait_s(said, now)
    reason = _reason(_OK if status is None else _unwrapped(status, said), said, timed=asked is not None)
    if asked is None and reason in _SPOKEN:
        asked = words_wait_s(said.text, now)
    return _failure(reason, said, status=status, secrets=secrets, asked=asked)


def _failure(reason: FailureReason, said: Said, *, status: int | None, secrets: tuple[str, ...], asked: float | None) -> Failure:
    traits = TRAITS[reason]
    quoted = redact(said.text, secrets) if traits.quotable else ""
    return Failure(
        reason=reason,
        retryable=traits.retryable,
        message=f"{traits.sentence} It said: {quoted}" if quoted else traits.sentence,
        status=status,
        retry_after_s=None if asked is None else min(asked, MAX_ASKED_S),
        promised=asked is not None,
        window=_window(said) if traits.compact else None,
        one_model=_is_of_one_model(reason, said),
    )


def _is_hollow(said: Said) -> bool:
    return said.text.strip(" .!:").replace("_", " ").lower() in _HOLLOW


def _window(said: Said) -> int | None:
    if said.window is not None:
        return said.window
    if MINUTE_WORDS.search(said.text):
        return minute_in(said.text)
    if LONG_CONTEXT_WORDS.search(said.text):
        return LONG_CONTEXT_WINDOW
    return window_in(said.text)


def _is_of_one_model(reason: FailureReason, said: Said) -> bool:
    """Whether a refusal is about this model and this credential: who asks may not use it, or an aggregator's own account for it failed."""
    if reason in _OF_CREDENTIALS:
        return CREDENTIAL_WORDS.search(said.text) is not None
    return said.upstream and reason in _OF_ACCOUNTS


def _unwrapped(status: int, said: Said) -> int:
    """The status that decides."""
    if status in _SERVER_STATUSES:
        return next((inner for inner in said.statuses if inner in _UNWRAPPED), status)
    return status


def _reason(status: int, said: Said, *, timed: bool) -> FailureReason:
    if status in _REDIRECTS:
        return FailureReason.INVALID_RESPONSE
    reason = (
        _overruling(status, said.text)
        or _by_code(said.codes)
        or _by_words(status, said.text, timed=timed or TRANSIENT_WORDS.search(said.text) is not None)
        or _by_status(status, said)
    )
    if reason is FailureReason.BILLING and status == _TOO_MANY and said.upstream:
        return FailureReason.RATE_LIMIT  # the wallet is the aggregator's
    return reason


def _overruling(status: int, text: str) -> FailureReason | None:
    """Words that say more than the code beside them."""
    if MINUTE_WORDS.search(text):
        return FailureReason.PAYLOAD_TOO_LARGE
    if status == _TOO_MANY and LONG_CONTEXT_WORDS.search(text):
        return FailureReason.CONTEXT_OVERFLOW
    if status == _PAYMENT_REQUIRED and PERIOD_WORDS.search(text) and HINT_WORDS.search(text) and not EMPTY_WORDS.search(text):
        return FailureReason.RATE_LIMIT
    return None


def _by_code(codes: tuple[str, ...]) -> FailureReason | None:
    return next((CODES[plain] for plain in map(plain_code, codes) if plain in CODES), None)


def _by_words(status: int, text: str, *, timed: bool) -> FailureReason | None:
    if status not in _WINDOWLESS:
        if asks_for_too_much(text):
            return FailureReason.UNSUPPORTED
        if CONTEXT_WORDS.search(text):
            return FailureReason.CONTEXT_OVERFLOW
    for pattern, reason in WORDS:
        if not pattern.search(text):
            continue
        if reason is FailureReason.BILLING:
            return FailureReason.RATE_LIMIT if timed and not EMPTY_WORDS.search(text) else reason
        if _words_decide(status, reason):
            return reason
    return None


def _words_decide(status: int, reason: FailureReason) -> bool:
    match status:
        case 401 | 402:
            return False
        case 403:
            return reason in _SAID_WITH_403
        case 404 | 405 | 410:
            return reason is FailureReason.UNSUPPORTED
        case 429:
            return reason is FailureReason.OVERLOADED
        case _ if status in _SERVER_STATUSES:
            return reason in _SAID_WITH_5XX
        case _:
            return True


def _by_status(status: int, said: Said) -> FailureReason:
    if status in _STATUSES:
        return _STATUSES[status]
    general = next((GENERAL_CODES[plain] for plain in map(plain_code, said.codes) if plain in GENERAL_CODES), None)
    if general is not None:
        return general
    if status not in _CLIENT_STATUSES:
        return FailureReason.SERVER_ERROR
    return FailureReason.INVALID_RESPONSE if said.markup else FailureReason.INVALID_REQUEST  # no model server answers in HTML
