"""OpenAI's error object, which Chat Completions and Responses share."""

from typing import Any

from app.simulator.script import ErrorText

_ERRORS = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_credits"),
    403: ("permission_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("requests", "rate_limit_exceeded"),
}


def error_object(status: int, error: ErrorText) -> dict[str, Any]:
    """Make the error of a status; what `error` leaves open has a default."""
    kind, code = _ERRORS.get(status, ("server_error", "server_error"))
    message = error.message or f"The simulator was told to answer with an error (status {status})."
    return {"error": {"message": message, "type": error.type or kind, "param": None, "code": error.code or code}}
