"""The table of conversations that every API mode's encoder writes. What each makes of them stands in ``bodies_<mode>.py``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.context.history import INTERRUPTED_NOTE
from app.domain.ids import ProviderId
from app.domain.messages import Content, Message, MessageKind, Replay, Role, ToolCall, ToolSpec
from app.domain.model import ApiMode, ModelRequest
from app.domain.tenants import Provider, Route

HERE = "here"
"""Stands for the origin of the route that is asked."""

REPLAYED: Mapping[ApiMode, tuple[dict[str, Any], ...]] = {
    ApiMode.CHAT_COMPLETIONS: ({"reasoning_details": [{"type": "reasoning.text", "text": "Let me look.", "signature": "c2ln"}]},),
    ApiMode.RESPONSES: ({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},),
    ApiMode.ANTHROPIC_MESSAGES: (
        {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
    ),
}
"""What a provider of each mode wants back."""

TOOLS = (
    ToolSpec(name="lookup", description="Looks up.", parameters={"type": "object", "properties": {"q": {"type": "string"}}}),
    ToolSpec(name="now", description="The time.", parameters={}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A history as the agent asks with it."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()


def route_of(mode: ApiMode) -> Route:
    """A route of a provider of that mode."""
    provider = Provider(id=ProviderId("prov_1"), name="p", api_mode=mode, base_url="http://x/v1", api_key="k", headers={})
    return Route(provider=provider, model="m", output_tokens=99)


def request_for(route: Route, conversation: Conversation) -> ModelRequest:
    """The conversation as a request on ``route``, whose own replays are those of its mode."""
    messages = tuple(_placed(message, route) for message in conversation.messages)
    return ModelRequest(system=conversation.system, messages=messages, tools=conversation.tools, first_attempt=1)


def _placed(message: Message, route: Route) -> Message:
    if message.replay is None or message.replay.origin != HERE:
        return message
    return msgspec.structs.replace(message, replay=Replay(origin=route.origin, items=REPLAYED[route.provider.api_mode]))


def user(content: Content) -> Message:
    return Message(role=Role.USER, content=content)


def said(text: str, *calls: ToolCall, replay: Replay | None = None, reasoning: str | None = None) -> Message:
    return Message(role=Role.ASSISTANT, content=text, tool_calls=calls, replay=replay, reasoning=reasoning)


def result(call_id: str, content: Content = "r", *, is_error: bool = False) -> Message:
    return Message(role=Role.TOOL, tool_call_id=call_id, content=content, is_error=is_error)


def call(call_id: str, name: str = "lookup", arguments: str = '{"q": "a"}') -> ToolCall:
    return ToolCall(call_id, name, arguments)


PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"}}
WEB_IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}

CONVERSATIONS: Mapping[str, Conversation] = {
    "plain": Conversation(messages=(user("Hi"), said("Hello."), user("Bye"))),
    "system": Conversation(messages=(user("Hi"),), system="Be kind.", tools=TOOLS),
    "images": Conversation(messages=(user([{"type": "text", "text": "See:"}, PNG, WEB_IMAGE]),)),
    "pdf": Conversation(messages=(user([PDF]),)),
    "call": Conversation(messages=(user("Hi"), said("Looking.", call("c1")), result("c1", "found"), said("There."), user("Thanks"))),
    "parallel-calls": Conversation(messages=(user("Hi"), said("", call("c1"), call("c2", "now", "{}")), result("c1"), result("c2"))),
    "user-behind-results": Conversation(messages=(user("Hi"), said("", call("c1")), result("c1"), user("Go on."))),
    "error-result": Conversation(messages=(user("Hi"), said("", call("c1")), result("c1", "no such place", is_error=True))),
    "image-result": Conversation(messages=(user("Hi"), said("", call("c1")), result("c1", [{"type": "text", "text": "See:"}, PNG]))),
    "own-reasoning": Conversation(
        messages=(user("Hi"), said("", call("c1"), replay=Replay(origin=HERE, items=()), reasoning="Let me look."), result("c1"))
    ),
    "foreign-reasoning": Conversation(
        messages=(
            user("Hi"),
            said("", call("c1"), replay=Replay(origin="elsewhere", items=({"type": "thinking"},)), reasoning="Let me look."),
            result("c1"),
        )
    ),
    "interrupted": Conversation(
        messages=(user("Hi"), Message(role=Role.ASSISTANT, content=INTERRUPTED_NOTE, kind=MessageKind.NOTE), user("Again"))
    ),
    "empty-texts": Conversation(messages=(user(" "), said("\n", call("c1", "now", "")), result("c1", ""))),
    "illegal-names": Conversation(
        messages=(user("Hi"), said("", call("c1", "browser.tabs.open"), call("c2", "", "[1]")), result("c1"), result("c2"))
    ),
    "repeated-ids": Conversation(
        messages=(
            user("Hi"),
            said("", call("call_0"), call("", "now")),
            result("call_0", "1"),
            result("", "2"),
            said("", call("call_0")),
            result("call_0", "3"),
        )
    ),
    "unicode": Conversation(
        messages=(user("b\x00\ud83e\udd8a 北京"), said("", call("c1", "lookup", '{"q":"杭州"}')), result("c1", "\ud800"))
    ),
}
