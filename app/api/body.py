"""Request bodies: read and validated inside the handler, so after authentication and not before it as FastAPI's own would be."""

import json
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from app.api.errors import FieldError, InvalidBodyError
from app.domain.messages import clean_json

Model = TypeVar("Model", bound=BaseModel)


async def raw_object(request: Request) -> dict[str, Any]:
    """The body of a request that :func:`read_body` has taken, as JSON values and with every member that it has."""
    raw: dict[str, Any] = clean_json(json.loads(await request.body() or b"{}"))
    return raw


async def read_body(request: Request, model: type[Model]) -> Model:
    """Read the request's JSON body as ``model``; an empty body counts as ``{}``. Raises InvalidBodyError.

    The content type is not looked at: JSON is all that any route takes.
    """
    content = await request.body() or b"{}"
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        if b"\\u" in content and error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            return _read_with_surrogates(content, model)
        raise InvalidBodyError.of(error, content) from None


def _read_with_surrogates(content: bytes, model: type[Model]) -> Model:
    """The same for a text that was cut inside a surrogate pair: pydantic's parser refuses it, we keep all of it but the half character."""
    try:
        cleaned = json.dumps(clean_json(json.loads(content))).encode()
    except (ValueError, RecursionError):
        raise InvalidBodyError("invalid_json", (FieldError("", "The body is not valid JSON, or nested too deeply."),)) from None
    try:
        return model.model_validate_json(cleaned)
    except ValidationError as error:
        raise InvalidBodyError.of(error, cleaned) from None
