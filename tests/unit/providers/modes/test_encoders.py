"""One table of conversations through the encoders of all API modes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from app.domain.model import ApiMode
from app.providers.mode import Mode
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.modes.responses import Responses
from tests.unit.providers.modes import bodies_anthropic_messages, bodies_chat_completions, bodies_responses
from tests.unit.providers.modes.conversations import CONVERSATIONS, request_for, route_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One mode: where its body has the conversation, and what is expected there."""

    mode: Mode
    member: str
    bodies: Mapping[str, Any]


COLUMNS = {
    ApiMode.CHAT_COMPLETIONS: Column(mode=ChatCompletions(), member="messages", bodies=bodies_chat_completions.BODIES),
    ApiMode.RESPONSES: Column(mode=Responses(), member="input", bodies=bodies_responses.BODIES),
    ApiMode.ANTHROPIC_MESSAGES: Column(mode=AnthropicMessages(), member="messages", bodies=bodies_anthropic_messages.BODIES),
}


def without_markers(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_markers(item) for key, item in value.items() if key != "cache_control"}
        case list():
            return [without_markers(item) for item in value]
        case _:
            return value


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("api_mode", COLUMNS)
def test_a_conversation_as_each_mode_writes_it(api_mode: ApiMode, name: str) -> None:
    column, route = COLUMNS[api_mode], route_of(api_mode)
    body = json.loads(column.mode.encode(route, request_for(route, CONVERSATIONS[name])))
    assert without_markers(body[column.member]) == column.bodies[name]


@pytest.mark.parametrize("api_mode", COLUMNS)
def test_the_same_request_is_always_the_same_bytes(api_mode: ApiMode) -> None:
    route = route_of(api_mode)
    for conversation in CONVERSATIONS.values():
        first, second = (COLUMNS[api_mode].mode.encode(route, request_for(route, conversation)) for _ in range(2))
        assert first == second
