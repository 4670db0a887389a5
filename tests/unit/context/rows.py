"""Histories as stored rows, and what strict providers say of the requests made of them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from app.context import history
from app.context.render import View, shown
from app.domain.ids import MessageId, SessionId
from app.domain.messages import Message, MessageKind, Role, StoredMessage, ToolCall, ToolSpec
from app.domain.model import ApiMode, ModelRequest
from app.providers.mode import Mode
from app.providers.modes.anthropic_messages import AnthropicMessages
from app.providers.modes.chat_completions import ChatCompletions
from app.providers.modes.responses import Responses
from app.simulator.chat_rules import chat_problems
from app.simulator.messages_rules import messages_problems
from app.simulator.responses_rules import responses_problems
from tests.unit.providers.modes.conversations import route_of

TOOLS = (ToolSpec(name="lookup", description="Looks up.", parameters={"type": "object"}),)
MODES: Mapping[ApiMode, tuple[Mode, Callable[..., list[str]]]] = {
    ApiMode.CHAT_COMPLETIONS: (ChatCompletions(), chat_problems),
    ApiMode.RESPONSES: (Responses(), responses_problems),
    ApiMode.ANTHROPIC_MESSAGES: (AnthropicMessages(), messages_problems),
}
WIDE = View(1_000_000)


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def note(text: str) -> Message:
    return Message(role=Role.USER, content=text, kind=MessageKind.NOTE)


def said(text: str = "", *calls: str, arguments: str = "{}") -> Message:
    return Message(role=Role.ASSISTANT, content=text, tool_calls=tuple(ToolCall(call, "lookup", arguments) for call in calls))


def result(call: str, text: str = "found") -> Message:
    return Message(role=Role.TOOL, content=text, tool_call_id=call, tool_name="lookup")


def stored(messages: Iterable[Message], *, first_seq: int = 1) -> list[StoredMessage]:
    return [
        StoredMessage(
            id=MessageId(f"msg_{seq}"),
            session_id=SessionId("sess_1"),
            seq=seq,
            turn_id=None,
            message=message,
            archived=False,
            created_at_ms=0,
        )
        for seq, message in enumerate(messages, first_seq)
    ]


def rounds(count: int, *, size: int = 100, first: int = 0) -> list[Message]:
    """Rounds of one call each."""
    messages = []
    for number in range(first, first + count):
        messages += [said("", f"call_{number}"), result(f"call_{number}", f"r{number} ".ljust(size, "."))]
    return messages


def seqs(rows: Iterable[StoredMessage]) -> list[int]:
    return [row.seq for row in rows]


def asked(rows: Sequence[StoredMessage], view: View = WIDE) -> ModelRequest:
    """The session's next request."""
    messages = history.repair([shown(row, view) for row in rows])
    return ModelRequest(system="Be kind.", messages=messages, tools=TOOLS, first_attempt=1)


def body(request: ModelRequest, api_mode: ApiMode = ApiMode.CHAT_COMPLETIONS) -> bytes:
    return MODES[api_mode][0].encode(route_of(api_mode), request)


def problems(request: ModelRequest, *modes: ApiMode) -> list[str]:
    """What the strict simulator would refuse, in all three modes when none is named."""
    found = []
    for api_mode in modes or tuple(MODES):
        check = MODES[api_mode][1]
        found += [f"{api_mode}: {problem}" for problem in check(json.loads(body(request, api_mode)), picky=True)]
    return found


def counted(request: ModelRequest) -> int:
    """The request's tokens as the simulator counts them: a quarter of its bytes."""
    return len(body(request)) // 4


PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
_texts = st.sampled_from(["", " ", "a", "long " * 200, "a\x00b", "\ud83e", "é" * 300])
_ids = st.sampled_from(["1", "2", "3", "call_0", " ", ""])
_calls = st.lists(
    st.builds(ToolCall, id=_ids, name=st.sampled_from(["lookup", "bad name"]), arguments=st.sampled_from(["{}", '{"q":1}'])), max_size=3
).map(tuple)
_parts = st.lists(st.sampled_from([PICTURE, {"type": "text", "text": "t" * 500}]), max_size=2)
_users = st.builds(
    Message, role=st.just(Role.USER), content=st.one_of(_texts, _parts), kind=st.sampled_from([MessageKind.SAID, MessageKind.NOTE])
)
_assistants = st.builds(Message, role=st.just(Role.ASSISTANT), content=_texts, tool_calls=_calls)
_results = st.builds(Message, role=st.just(Role.TOOL), content=st.one_of(_texts, _parts), tool_call_id=st.none() | _ids)
anything = st.lists(st.one_of(_users, _assistants, _results), max_size=14)
"""Any history, however broken."""
