"""What providers call their errors: structured codes, and wordings for those who have none. Data for :mod:`app.providers.classify`."""

import re
from typing import Final

from app.domain.model import FailureReason

CODES: Final[dict[str, FailureReason]] = {
    **dict.fromkeys(
        (
            "insufficient_quota",
            "insufficient_balance",
            "insufficient_credits",
            "insufficient_funds",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "credit_balance_too_low",
            "usage_limit_reached",
            "usage_limit_exceeded",
            "quota_exceeded",
            "payment_required",
            "arrearage",
        ),
        FailureReason.BILLING,
    ),
    **dict.fromkeys(
        (
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limit_reached",
            "rate_limited",
            "too_many_requests",
            "throttlingexception",
            "throttling",
        ),
        FailureReason.RATE_LIMIT,
    ),
    **dict.fromkeys(
        (
            "invalid_api_key",
            "incorrect_api_key",
            "authentication_error",
            "invalid_authentication",
            "unauthorized",
            "unauthenticated",
            "account_deactivated",
        ),
        FailureReason.AUTH,
    ),
    **dict.fromkeys(
        (
            "permission_error",
            "permission_denied",
            "forbidden",
            "unsupported_country_region_territory",
            "access_denied",
            "access_terminated",
        ),
        FailureReason.FORBIDDEN,
    ),
    **dict.fromkeys(
        (
            "model_not_found",
            "model_not_supported",
            "model_not_available",
            "model_not_exist",
            "unsupported_model",
            "unknown_model",
            "invalid_model",
            "deploymentnotfound",
            "deployment_not_found",
            "not_found_error",
        ),
        FailureReason.MODEL_NOT_FOUND,
    ),
    **dict.fromkeys(
        (
            "context_length_exceeded",
            "context_window_exceeded",
            "model_context_window_exceeded",
            "request_too_large",
            "exceed_context_size_error",
        ),
        FailureReason.CONTEXT_OVERFLOW,
    ),
    **dict.fromkeys(
        ("content_filter", "content_policy_violation", "responsibleaipolicyviolation", "data_inspection_failed", "moderation_blocked"),
        FailureReason.CONTENT_FILTERED,
    ),
    **dict.fromkeys(
        (
            "overloaded_error",
            "overloaded",
            "engine_overloaded",
            "engine_overloaded_error",
            "server_overloaded",
            "service_unavailable",
            "unavailable",
        ),
        FailureReason.OVERLOADED,
    ),
    **dict.fromkeys(
        ("server_error", "api_error", "internal_error", "internal_server_error", "internal", "bad_gateway", "gateway_timeout", "timeout"),
        FailureReason.SERVER_ERROR,
    ),
}
"""By ``error.code``, ``error.type`` or ``error.status``, lower case. General ones (``invalid_request_error``) decide nothing."""

CONTEXT_WORDS: Final = re.compile(
    r"prompt (is )?too long"
    r"|exceeds? (the |its |your )?(model'?s? )?(available |maximum )?context"
    r"|(maximum|max) (model )?(context|prompt) (length|size)"
    r"|context[ _](length|window|size)[ _](is )?exceed"
    r"|exceed[^.]{0,60}context (window|length|limit|size)"
    r"|context window exceeds"
    r"|longer than the model'?s context"
    r"|too large for model with \d+ maximum context"
    r"|(greater|larger|longer) than the (model'?s )?context (length|window|size)"
    r"|input (token count|length) [^.]{0,60}exceeds"
    r"|prompt token count of \d+ exceeds"
    r"|exceeded model token limit"
    r"|exceeds max_seq_len"
    r"|more than max tokens allowed"
    r"|input is too long"
    r"|total length of all messages is too long"
    r"|reduce the length of (the |your )?(messages|prompt|input)"
    r"|range of input length should be"
    r"|request exceeds the maximum size",
    re.IGNORECASE,
)
"""The request does not fit the model's window. The many dialects of it are listed in the tests."""

TRANSIENT_WORDS: Final = re.compile(
    r"per[ _](second|minute|hour|day)|\b(rpm|tpm|rpd|tpd)\b|(retry|try again|resets?) (in|after|at) ", re.IGNORECASE
)
"""A quota that comes back by itself: speed, not money."""

WORDS: Final[tuple[tuple[re.Pattern[str], FailureReason], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (
            (
                r"insufficient (quota|credits?|balance|funds)|credit balance|current quota|quota (is |has been )?"
                r"(used up|exhausted|exceeded)"
                r"|exceeded (your|the) (monthly )?(quota|budget|spending limit)|out of credits|usage limit|plan and billing"
                r"|payment required"
                r"|(spend(ing)?|key) limit (reached|exceeded)|余额不足|欠费"
            ),
            FailureReason.BILLING,
        ),
        (r"rate[ -]?limit|too many requests|slow down|quota|throttl|频率", FailureReason.RATE_LIMIT),
        (
            r"(api[ -]?key|credential|token)s? (is |are )?(not valid|invalid|expired|revoked)|(invalid|incorrect) (api[ -]?key|credential)",
            FailureReason.AUTH,
        ),
        (
            r"not (available|supported) in your (country|region|location)|(country|region|location) (is )?not supported",
            FailureReason.FORBIDDEN,
        ),
        (
            (
                r"\bmodels?\b[^.,;]{0,60}?\b(not (be )?(found|available|supported|exist|accessible)|does ?n[o']t exist"
                r"|is not a valid|unavailable for)"
                r"|(unknown|no such|invalid|unsupported) model\b|no endpoints found|not a valid model"
            ),
            FailureReason.MODEL_NOT_FOUND,
        ),
        (r"content (management )?policy|content[ _]filter|safety system|flagged (as|by|for)|moderation", FailureReason.CONTENT_FILTERED),
        (
            r"overloaded|at capacity|over capacity|capacity exceeded|temporarily unavailable|no available (worker|server|instance)",
            FailureReason.OVERLOADED,
        ),
    )
)
"""In order of precedence."""
