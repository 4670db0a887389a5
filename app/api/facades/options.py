"""A facade's parameters as model options and client tools."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.facades.schemas import ChatCompletionCreate, FacadeBody, ResponseCreate, Stop
from app.domain.errors import InvalidRequestError
from app.domain.messages import ToolSpec, clean_json, clean_text
from app.domain.model import ModelOptions

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CHOICES = ("auto", "none", "required")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_MAX_STOP_CHARACTERS = 256


def chat_options(body: ChatCompletionCreate) -> ModelOptions:
    """The options of a chat completion. Raises InvalidRequestError for what the gateway cannot do."""
    refused = {
        "n": body.n not in (None, 1),
        "logprobs": bool(body.logprobs),
        "top_logprobs": bool(body.top_logprobs),
        "audio": body.audio is not None,
        "modalities": any(kind != "text" for kind in body.modalities or ()),
        "functions": body.functions is not None,
        "function_call": body.function_call is not None,
        "web_search_options": body.web_search_options is not None,
    }
    _refuse(refused)
    return _options(
        body,
        limit=body.max_completion_tokens or body.max_tokens,
        stop=_stop(body.stop),
        response_format=_format(body.response_format, "/response_format"),
        effort=body.reasoning_effort,
        effort_pointer="/reasoning_effort",
    )


def response_options(body: ResponseCreate) -> ModelOptions:
    """The options of a response. Raises InvalidRequestError for what the gateway cannot do."""
    _refuse({"background": bool(body.background), "prompt": body.prompt is not None, "top_logprobs": bool(body.top_logprobs)})
    return _options(
        body,
        limit=body.max_output_tokens,
        stop=(),
        response_format=_text_format((body.text or {}).get("format")),
        effort=(body.reasoning or {}).get("effort"),
        effort_pointer="/reasoning/effort",
    )


def client_tools(tools: Sequence[Mapping[str, Any]] | None, *, nested: bool) -> tuple[ToolSpec, ...]:
    """The client's functions; ``nested``: below ``function``, as chat completions have them. Raises InvalidRequestError."""
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools or ()):
        place = f"/tools/{index}"
        if tool.get("type") != "function":
            raise InvalidRequestError("Only tools of type function can be called.", pointer=f"{place}/type")
        spec = _tool(tool.get("function") if nested else tool, f"{place}/function" if nested else place)
        if spec.name in specs:
            raise InvalidRequestError("Two tools have this name.", pointer=f"{place}/function/name" if nested else f"{place}/name")
        specs[spec.name] = spec
    return tuple(specs.values())


def _refuse(refused: Mapping[str, bool]) -> None:
    for name, given in refused.items():
        if given:
            raise InvalidRequestError("This gateway does not support this value of the parameter.", pointer=f"/{name}")


def _options(
    body: FacadeBody,
    *,
    limit: int | None,
    stop: tuple[str, ...],
    response_format: dict[str, Any] | None,
    effort: object,
    effort_pointer: str,
) -> ModelOptions:
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequestError(f"Must be one of {', '.join(_EFFORTS)}.", pointer=effort_pointer)
    return ModelOptions(
        max_output_tokens=limit,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=stop,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=response_format,
        reasoning_effort=str(effort) if effort is not None else None,
    )


def _tool_choice(body: FacadeBody) -> str | None:
    choice = body.tool_choice
    if choice is None or choice in _CHOICES:
        return choice if isinstance(choice, str) else None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str) and _NAME.fullmatch(name):
            return f"tool:{name}"
    raise InvalidRequestError('Must be "auto", "none", "required", or one function.', pointer="/tool_choice")


def _stop(stop: Stop) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if any(not text or len(text) > _MAX_STOP_CHARACTERS for text in stops):
        raise InvalidRequestError(f"A stop sequence has 1 to {_MAX_STOP_CHARACTERS} characters.", pointer="/stop")
    return tuple(clean_text(text) for text in stops)


def _format(value: Mapping[str, Any] | None, pointer: str) -> dict[str, Any] | None:
    match "text" if value is None else value.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            inner = (value or {}).get("json_schema")
            if isinstance(inner, dict) and isinstance(inner.get("name"), str) and isinstance(inner.get("schema", {}), dict):
                return {"type": "json_schema", "json_schema": clean_json(inner)}
            raise InvalidRequestError("Needs a name and a schema.", pointer=f"{pointer}/json_schema")
        case _:
            raise InvalidRequestError("Must be text, json_object or json_schema.", pointer=f"{pointer}/type")


def _text_format(value: object) -> dict[str, Any] | None:
    """The format of a response, whose schema stands beside its type, as that of a chat completion."""
    if value is not None and not isinstance(value, dict):
        raise InvalidRequestError("Must be an object.", pointer="/text/format")
    if value is not None and value.get("type") == "json_schema":
        inner = {key: item for key, item in value.items() if key != "type"}
        return _format({"type": "json_schema", "json_schema": inner}, "/text/format")
    return _format(value, "/text/format")


def _tool(function: object, place: str) -> ToolSpec:
    if not isinstance(function, Mapping):
        raise InvalidRequestError("Must be an object.", pointer=place)
    name, description, parameters = function.get("name"), function.get("description"), function.get("parameters")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidRequestError("Must be 1 to 64 letters, digits, underscores and hyphens.", pointer=f"{place}/name")
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError("Must be a string.", pointer=f"{place}/description")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequestError("Must be a JSON schema.", pointer=f"{place}/parameters")
    schema = clean_json(parameters or _NO_PARAMETERS)
    if schema.setdefault("type", "object") != "object":
        raise InvalidRequestError('The schema of a function\'s parameters has "type": "object".', pointer=f"{place}/parameters/type")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequestError("Must be true or false.", pointer=f"{place}/strict")
    return ToolSpec(name=name, description=clean_text(description or ""), parameters=schema, strict=strict is True)
