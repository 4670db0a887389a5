"""What routes cannot be asked for: options that a protocol or a model has no word for, and that change the answer when left out."""

import re
from typing import Any, Final

from app.domain.model import ApiMode, ModelOptions
from app.domain.tenants import Route

_effortless_models: Final = re.compile(
    r"(?:^|[/.])claude-(?:instant|[123]\b|(?:opus-4|haiku-4)(?![-.][5-9]\b)|haiku-4[-.]5|sonnet-4(?![-.][6-9]\b))"
)
"""Anthropic's models from before there was an effort to ask for. They think only when told to, so no effort at all is what they do."""


def missing_option(route: Route, options: ModelOptions) -> str | None:
    """The first of ``options``, by its name there, that ``route`` cannot be asked for; ``None`` when it can be asked for all."""
    match route.provider.api_mode:
        case ApiMode.RESPONSES:
            return "stop" if options.stop else None
        case ApiMode.ANTHROPIC_MESSAGES:
            return _missing_in_messages(route.model, options)
        case _:
            return None


def takes_effort(model: str) -> bool:
    """Whether one of Anthropic's models, or one that is served like them, can be told how much effort to make."""
    return _effortless_models.search(model) is None


def _missing_in_messages(model: str, options: ModelOptions) -> str | None:
    """The API refuses blank stop sequences, and promises JSON by a schema only."""
    if any(not stop.strip() for stop in options.stop):
        return "stop"
    if options.response_format is not None and schema_of(options.response_format) is None:
        return "response_format"
    if options.reasoning_effort not in (None, "none") and not takes_effort(model):
        return "reasoning_effort"
    return None


def schema_of(response_format: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that OpenAI's ``response_format`` asks for, if it has one."""
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    return schema if isinstance(schema, dict) else None
