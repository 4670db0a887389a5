"""What routes cannot be asked for, by protocol and model."""

from typing import Any

import pytest

from app.domain.capabilities import missing_option, takes_effort
from app.domain.ids import ProviderId
from app.domain.model import ApiMode, ModelOptions
from app.domain.tenants import Provider, Route

OBJECT: dict[str, Any] = {"type": "json_object"}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
SCHEMALESS: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n"}}


def missing(mode: ApiMode, options: ModelOptions, model: str = "m") -> str | None:
    provider = Provider(id=ProviderId("prov_1"), name="p", api_mode=mode, base_url="http://x/v1", api_key="k", headers={})
    return missing_option(Route(provider=provider, model=model), options)


@pytest.mark.parametrize(
    ("options", "chat", "responses", "messages"),
    [
        pytest.param(ModelOptions(), None, None, None, id="nothing"),
        pytest.param(ModelOptions(temperature=1.0, max_output_tokens=1), None, None, None, id="sampling"),
        pytest.param(ModelOptions(stop=("END",)), None, "stop", None, id="stop"),
        pytest.param(ModelOptions(stop=("END", "\n")), None, "stop", "stop", id="blank-stop"),
        pytest.param(ModelOptions(response_format=OBJECT), None, None, "response_format", id="json-object"),
        pytest.param(ModelOptions(response_format=SCHEMA), None, None, None, id="schema"),
        pytest.param(ModelOptions(response_format=SCHEMALESS), None, None, "response_format", id="schema-without-one"),
        pytest.param(ModelOptions(reasoning_effort="high"), None, None, None, id="effort"),
    ],
)
def test_what_a_protocol_has_no_word_for(options: ModelOptions, chat: str | None, responses: str | None, messages: str | None) -> None:
    assert [missing(mode, options) for mode in (ApiMode.CHAT_COMPLETIONS, ApiMode.RESPONSES, ApiMode.ANTHROPIC_MESSAGES)] == [
        chat,
        responses,
        messages,
    ]


@pytest.mark.parametrize(
    "model",
    [
        *(
            "claude-3-7-sonnet-20250219",
            "claude-opus-4-20250514",
            "claude-opus-4-1-20250805",
            "claude-sonnet-4-5",
            "claude-haiku-4-5-20251001",
        ),
        *("claude-2.1", "anthropic/claude-sonnet-4.5", "us.anthropic.claude-sonnet-4-20250514-v1:0"),
    ],
)
def test_models_from_before_there_was_an_effort(model: str) -> None:
    assert missing(ApiMode.ANTHROPIC_MESSAGES, ModelOptions(reasoning_effort="low"), model) == "reasoning_effort"
    assert missing(ApiMode.ANTHROPIC_MESSAGES, ModelOptions(reasoning_effort="none"), model) is None


@pytest.mark.parametrize(
    "model", ["claude-opus-4-5-20251101", "anthropic/claude-opus-4.6", "claude-sonnet-4-6", "claude-opus-5", "claude-haiku-5-5", "other"]
)
def test_models_that_take_an_effort(model: str) -> None:
    assert takes_effort(model)
