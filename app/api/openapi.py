"""The OpenAPI 3.1 document: FastAPI's, completed with what it cannot know.

Answers are msgspec structs and events are a union of them, so their schemas come from msgspec; every error answer is a problem.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.errors import PROBLEM_MEDIA_TYPE, RequestProblem
from app.api.openai_errors import PREFIX
from app.domain.events import EVENT_TYPES

_REF = "#/components/schemas/{name}"
_PYDANTIC_REF = "#/components/schemas/{model}"
EVENT_UNION = "TurnEvent"
_PROBLEM_RESPONSE = "Problem"
_OPENAI_RESPONSE = "OpenAIError"
_STREAM_DESCRIPTION = (
    "Server-Sent Events. Each frame has `id` (the event's `seq`), `event` (its `type`) and `data`: one JSON object of this schema. "
    "Comments (lines that begin with a colon) keep the connection alive."
)

EVENT_STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": _STREAM_DESCRIPTION,
        "content": {"text/event-stream": {"schema": {"$ref": _REF.format(name=EVENT_UNION)}}},
    }
}
"""``responses=`` of a route that answers with a turn's stream."""

_RATE_LIMIT_HEADERS = {
    "RateLimit-Policy": {"description": 'Quotas and their windows, such as `"requests";q=60;w=60`.', "schema": {"type": "string"}},
    "RateLimit": {"description": 'What is left and for how long, such as `"requests";r=0;t=12`.', "schema": {"type": "string"}},
}
QUOTA_RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "A quota of the tenant is used up: `violated_policies` names it. Nothing was started and nothing counted.",
        "headers": _RATE_LIMIT_HEADERS
        | {"Retry-After": {"description": "Seconds after which there may be more.", "schema": {"type": "integer"}}},
        "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": _REF.format(name=RequestProblem.__name__)}}},
    }
}
"""``responses=`` of a route that starts turns."""

_OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

TAGS = [
    {"name": "sessions", "description": "Conversations and their transcripts."},
    {"name": "turns", "description": "From a user message to its terminal event: the stream of the agent's work."},
    {"name": "openai", "description": "OpenAI's protocols over turns: existing clients work by changing the base URL."},
    {"name": "admin", "description": "Tenants, keys, providers and chains. Admin key only."},
    {"name": "operations", "description": "Health and metrics."},
]
_METHODS = frozenset({"get", "post", "put", "patch", "delete", "head"})


def json_answer(shape: type[msgspec.Struct], description: str, *, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """``responses=`` of a route that answers with ``shape``, which must be among the document's shapes."""
    return {status: {"description": description, "content": {"application/json": {"schema": {"$ref": _REF.format(name=shape.__name__)}}}}}


def json_request(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra=`` of a route that reads its body as ``model``, which must be among the document's models."""
    schema = {"$ref": _REF.format(name=model.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, shapes: Sequence[type[Any]], models: Sequence[type[BaseModel]]) -> None:
    """Make ``/openapi.json`` the whole document; it is built at the first request for it."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, shapes, models)
        return app.openapi_schema

    # The documented way to extend FastAPI's document is to replace this method.
    vars(app)["openapi"] = document


def _document(app: FastAPI, shapes: Sequence[type[Any]], models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS)
    components: dict[str, Any] = document.setdefault("components", {})
    schemas: dict[str, Any] = {
        name: schema for name, schema in components.get("schemas", {}).items() if name not in ("HTTPValidationError", "ValidationError")
    }
    components["schemas"] = schemas | _struct_schemas(shapes) | _model_schemas(models) | event_schemas()
    schema = {"$ref": _REF.format(name=RequestProblem.__name__)}
    components["responses"] = {
        _PROBLEM_RESPONSE: {"description": "A problem (RFC 9457).", "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}}},
        _OPENAI_RESPONSE: {"description": "An error as OpenAI writes it.", "content": {"application/json": {"schema": _OPENAI_ERROR}}},
    }
    for path, operation in _operations(document):
        responses = operation["responses"]
        if "HTTPValidationError" in str(responses.get("422")):
            del responses["422"]
        for group in ("4XX", "5XX"):
            name = _OPENAI_RESPONSE if path.startswith(PREFIX) else _PROBLEM_RESPONSE
            responses[group] = {"$ref": f"#/components/responses/{name}"}
        _accept_header_key(operation)
    components["securitySchemes"] = components.get("securitySchemes", {}) | {
        "tenantKeyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "adminKeyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return document


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        yield from ((path, operation) for method, operation in operations.items() if method in _METHODS)


def _accept_header_key(operation: dict[str, Any]) -> None:
    """A key may come as a bearer token or in a header of its own: two alternatives."""
    security = operation.get("security", [])
    operation["security"] = security + [{f"{name}Header": scopes} for entry in security for name, scopes in entry.items()]


def _struct_schemas(shapes: Sequence[type[Any]]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components((*shapes, RequestProblem), ref_template=_REF)
    return dict(components)


def _model_schemas(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    _, schema = models_json_schema([(model, "validation") for model in models], ref_template=_PYDANTIC_REF)
    return dict(schema.get("$defs", {}))


def event_schemas() -> dict[str, Any]:
    """Components of every event as it stands in a frame's ``data``, and of their union, told apart by ``type``."""
    _, components = msgspec.json.schema_components(EVENT_TYPES, ref_template=_REF)
    schemas = dict(components)
    mapping: dict[str, str] = {}
    for event in EVENT_TYPES:
        payload = schemas.pop(event.__name__)
        name = event.__name__.removesuffix("Event") + "Event"
        head = {"type": {"const": event.event_type}, "seq": {"type": "integer"}, "turn_id": {"type": "string"}}
        schemas[name] = payload | {
            "title": name,
            "properties": head | payload["properties"],
            "required": [*head, *payload.get("required", ())],
        }
        mapping[event.event_type] = _REF.format(name=name)
    schemas[EVENT_UNION] = {
        "title": EVENT_UNION,
        "description": "One numbered fact of a turn.",
        "oneOf": [{"$ref": ref} for ref in mapping.values()],
        "discriminator": {"propertyName": "type", "mapping": mapping},
    }
    return schemas
