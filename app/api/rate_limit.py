"""A tenant's quotas in the header fields of draft-ietf-httpapi-ratelimit-headers-11, and ``Retry-After``.

::

    RateLimit-Policy: "requests";q=60;w=60, "concurrent_turns";q=5
    RateLimit: "requests";r=12;t=60

``q`` is the quota and ``w`` its window in seconds; ``r`` is what is left and ``t`` the seconds until there is more. ``cost`` is counted in
millionths of a US dollar, since these fields take whole numbers only.
"""

import math
from collections.abc import Sequence

from app.domain.quotas import QuotaState


def rate_limit_headers(states: Sequence[QuotaState]) -> dict[str, str]:
    """The fields that say how quotas stand; none for a tenant without any."""
    if not states:
        return {}
    headers = {"RateLimit-Policy": ", ".join(_policy(state) for state in states)}
    known = [_limit(state) for state in states if state.remaining is not None]
    return headers | {"RateLimit": ", ".join(known)} if known else headers


def retry_after_s(violated: Sequence[QuotaState]) -> int:
    """Whole seconds after which none of these quotas stands in the way, as far as known."""
    return max((math.ceil(state.reset_s) for state in violated if state.reset_s is not None), default=1) or 1


def _policy(state: QuotaState) -> str:
    window = "" if state.window_s is None else f";w={state.window_s}"
    return f'"{state.policy.value}";q={state.limit}{window}'


def _limit(state: QuotaState) -> str:
    reset = "" if state.reset_s is None else f";t={math.ceil(state.reset_s)}"
    return f'"{state.policy.value}";r={state.remaining}{reset}'
