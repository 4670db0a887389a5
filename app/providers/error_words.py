"""What providers call their errors: structured codes, and wordings for those who have none. Data for :mod:`app.providers.classify`."""

import re
from typing import Final

from app.domain.model import FailureReason

_CODES: Final[dict[FailureReason, tuple[str, ...]]] = {
    FailureReason.BILLING: (
        *("insufficient_quota", "insufficient_user_quota", "insufficient_balance", "insufficient_credits", "insufficient_funds"),
        *("billing_hard_limit_reached", "billing_not_active", "billing_error", "credit_balance_too_low", "out_of_credits"),
        *("usage_limit_reached", "usage_limit_exceeded", "quota_exceeded", "exceeded_current_quota_error", "spend_limit_reached"),
        *("payment_required", "arrearage", "personal_team_blocked_spending_limit"),
    ),
    FailureReason.RATE_LIMIT: (
        *("rate_limit_exceeded", "rate_limit_error", "rate_limit_reached", "rate_limit_reached_error", "rate_limited"),
        *("too_many_requests", "too_many_requests_exception", "throttling_exception", "throttling", "throttled"),
        *("throttling_rate_quota", "throttling_allocation_quota", "throttling_burst_rate", "model_not_ready_exception"),
    ),
    FailureReason.AUTH: (
        *("invalid_api_key", "incorrect_api_key", "api_key_invalid", "authentication_error", "invalid_authentication"),
        *("invalid_authentication_error", "unauthorized", "unauthenticated", "account_deactivated", "deactivated_workspace"),
        *("organization_restricted", "access_terminated", "unrecognized_client_exception", "expired_token_exception"),
        *("invalid_signature_exception", "missing_authentication_token"),
    ),
    FailureReason.FORBIDDEN: ("unsupported_country_region_territory", "request_forbidden_by_region"),
    FailureReason.MODEL_NOT_FOUND: (
        *("model_not_found", "model_not_supported", "model_not_available", "model_not_exist", "unsupported_model", "unknown_model"),
        *("invalid_model", "model_decommissioned", "deployment_not_found", "not_found_error", "resource_not_found_error"),
        *("resource_not_found_exception", "not_found"),
    ),
    FailureReason.CONTEXT_OVERFLOW: (
        *("context_length_exceeded", "context_window_exceeded", "context_window_exceeded_error", "model_context_window_exceeded"),
        *("request_too_large", "exceed_context_size_error"),
    ),
    FailureReason.PAYLOAD_TOO_LARGE: ("string_above_max_length", "payload_too_large", "request_entity_too_large"),
    FailureReason.CONTENT_FILTERED: (
        *("content_filter", "content_filtered", "content_policy_violation", "image_content_policy_violation"),
        *("responsible_ai_policy_violation", "data_inspection_failed", "moderation_blocked", "bio_policy", "cyber_policy"),
    ),
    FailureReason.OVERLOADED: (
        *("overloaded_error", "overloaded", "engine_overloaded", "engine_overloaded_error", "server_overloaded", "slow_down"),
        *("service_unavailable", "service_unavailable_exception", "unavailable", "capacity_exceeded"),
    ),
    FailureReason.UNSUPPORTED: ("unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"),
    FailureReason.INVALID_REPLAY: ("invalid_encrypted_content", "invalid_thinking_signature", "thinking_signature_invalid"),
}
_GENERAL_CODES: Final[dict[FailureReason, tuple[str, ...]]] = {
    FailureReason.INVALID_REQUEST: (
        *("invalid_request_error", "invalid_request", "invalid_argument", "invalid_parameter_error", "invalid_parameter", "bad_request"),
        *("validation_exception", "validation_error", "unprocessable_entity", "failed_precondition", "out_of_range"),
        *("invalid_prompt", "invalid_value", "missing_required_parameter", "invalid_type", "invalid_image", "invalid_image_format"),
        *("invalid_base64_image", "invalid_image_url", "image_too_large", "image_too_small", "image_parse_error", "image_file_too_large"),
        *("unsupported_image_media_type", "empty_image_file", "failed_to_download_image", "image_file_not_found", "invalid_image_mode"),
    ),
    FailureReason.FORBIDDEN: (
        *("permission_error", "permission_denied", "permission_denied_error", "forbidden", "access_denied", "access_denied_exception"),
    ),
    FailureReason.RATE_LIMIT: ("resource_exhausted", "service_quota_exceeded_exception"),
    FailureReason.SERVER_ERROR: (
        *("server_error", "api_error", "internal_error", "internal_server_error", "internal_server_exception", "internal", "unknown"),
        *("bad_gateway", "gateway_timeout", "timeout", "timeout_error", "deadline_exceeded", "aborted", "cancelled", "upstream_error"),
        *("model_error_exception", "model_timeout_exception", "model_stream_error_exception", "vector_store_timeout"),
    ),
}


def plain_code(code: str) -> str:
    """A code without case, separators, an address behind it and the word error: ``a.b#RateLimitError`` is ``ratelimit``."""
    letters = "".join(filter(str.isalnum, code.lower().rsplit("#", 1)[-1].split(":", 1)[0]))
    return letters.removesuffix("exception").removesuffix("error")


CODES: Final = {plain_code(code): reason for reason, codes in _CODES.items() for code in codes}
"""Codes that decide, by :func:`plain_code`."""
GENERAL_CODES: Final = {plain_code(code): reason for reason, codes in _GENERAL_CODES.items() for code in codes}
"""Codes that decide only where neither words nor the status say more."""

TRANSIENT_WORDS: Final = re.compile(
    r"per[ _](second|minute|hour|day)|\b(rpm|tpm|rpd|tpd)\b|(retry|try again|resets?) (in|after|at) |\bresets? (in|at)\b", re.IGNORECASE
)
"""A quota that comes back by itself: speed, not money."""
PERIOD_WORDS: Final = re.compile(r"usage limit|rate limit|quota|limit (was |is |has been )?(reached|exceeded)", re.IGNORECASE)
HINT_WORDS: Final = re.compile(r"try again|retry|resets? (at|in)|\bwait\b|requests remaining|periodic|window", re.IGNORECASE)
"""Together with :data:`PERIOD_WORDS` they make a 402 one that passes."""
EMPTY_WORDS: Final = re.compile(
    r"insufficient (credits?|balance|funds)|credit balance|out of credits|(no|not enough) credits|payment required"
    r"|add (more )?credits|top up|recharge|余额不足|欠费",
    re.IGNORECASE,
)
"""Money, which no wait brings back."""

CREDENTIAL_WORDS: Final = re.compile(
    r"\b(api[ -]?key|credential|account|organi[sz]ation|project|subscription|plan|team|workspace|permissions?|tier)\b"
    r"|(does not|doesn't|not) (currently )?have access|not allowed to|not authori[sz]ed",
    re.IGNORECASE,
)
"""A refusal of a model that is about who asks."""

_FEATURE: Final = (
    r"(image|vision|audio|video|file|document|pdf|multi-?modal|tool|function|system|developer|json|response_?format|structured"
    r"|reasoning|thinking|prefill|temperature|top_p|parallel)"
)

WORDS: Final[tuple[tuple[re.Pattern[str], FailureReason], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (
            (
                EMPTY_WORDS.pattern + r"|insufficient[ _]quota|current quota|quota (is |has been )?(used up|exhausted|exceeded)"
                r"|exceeded (your|the) (monthly )?(quota|budget|spending limit)|usage limits?\b|plan and billing"
                r"|(spend(ing)?|key) limit (reached|exceeded)"
            ),
            FailureReason.BILLING,
        ),
        (
            (
                r"invalid.{0,20}signature.{0,20}thinking|thinking.{0,60}(invalid|missing|corrupted).{0,20}signature"
                r"|thinking\.signature|thought[_ ]signature (is )?(not valid|invalid)|(invalid|corrupted) thought[_ ]signature"
                r"|thinking.{0,60}blocks?.{0,80}cannot be modified|cannot contain.{0,4}thinking"
                r"|encrypted[_ ]content.{0,80}(could not be|cannot be|not be|invalid|failed)|(invalid|decrypt).{0,40}encrypted[_ ]content"
                r"|encrypted[_ ]content is not supported"
                r"|of type .reasoning. was provided without|item with id .rs_.{0,80}not found"
            ),
            FailureReason.INVALID_REPLAY,
        ),
        (
            (
                r"(low|high|lone|unpaired|leading|trailing|invalid|unexpected)[ -]surrogate|surrogates? (is |are )?not allowed"
                r"|(invalid|malformed|not valid|not well-formed).{0,12}(utf-?8|unicode)|unicode(encode|decode)error"
                r"|can't (en|de)code (character|byte)"
            ),
            FailureReason.BAD_UNICODE,
        ),
        (r"rate[ -]?limit|too many requests|slow down|quota|throttl|频率", FailureReason.RATE_LIMIT),
        (
            (
                r"(api[ -]?key|credential|token)s? (is |are |was )?(not valid|invalid|expired|revoked|reported as leaked)"
                r"|(invalid|incorrect) (api[ -]?key|credential)"
            ),
            FailureReason.AUTH,
        ),
        (
            (
                r"not (available|supported) in your (country|region|location)"
                r"|(country|region|location|territory)( is)? not supported|unsupported (country|region|location)"
            ),
            FailureReason.FORBIDDEN,
        ),
        (
            (
                r"pre-?fill|final assistant content|(must|should) end with a user message|assistant messages? at the end"
                r"|expected last role|last message must (be|have)"
                r"|(does not|doesn't|do not|don't|cannot|can't) support (?!(the |this |that )?model\b)"
                r"|only support(s|ed)\b|unknown variant .{0,2}image|requires --|mmproj|no endpoints found that support"
                r"|incompatible with enable_thinking"
                # Thinking that another model has signed, or that never was: only a target that does not insist on it can go on.
                r"|expected .{0,4}thinking.{0,60}but found|must start with a thinking block|thinking.{0,60}must be passed back"
                r"|(reasoning_content|thinking)( blocks?)? (is|are) missing"
                r"|(unknown|unrecognized|unsupported) (request )?(parameter|argument|field|key|name|value|content type)"
                r"|extra (inputs?|fields?) (is |are )?not permitted|unexpected keyword argument"
            ),
            FailureReason.UNSUPPORTED,
        ),
        (
            (
                r"\bmodels?\b[^.,;]{0,60}?\b(not (be )?(found|available|supported|exist|accessible)|does ?n[o']t exist"
                r"|is not a valid|unavailable for|(been )?(decommissioned|deprecated))"
                r"|(unknown|no such|invalid|unsupported) model\b|no endpoints found|not a valid model"
                r"|not have access to (the )?model|(does not|doesn't) support (the |this |that )?model\b"
            ),
            FailureReason.MODEL_NOT_FOUND,
        ),
        (
            rf"\b{_FEATURE}[\w `'\"/-]{{0,40}}(\bnot|n't) (currently )?(supported|enabled|available)\b",
            FailureReason.UNSUPPORTED,
        ),
        (
            r"content (management )?policy|content[ _]filter|safety system|flagged (as|by|for)|moderation|usage polic(y|ies)",
            FailureReason.CONTENT_FILTERED,
        ),
        (
            r"overloaded|at capacity|over capacity|capacity exceeded|temporarily unavailable|no available (worker|server|instance)",
            FailureReason.OVERLOADED,
        ),
        (r"\b(messages|input)\b.{0,4}: array too long", FailureReason.PAYLOAD_TOO_LARGE),
    )
)
"""In order of precedence."""
