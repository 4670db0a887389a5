from app.domain.messages import Message, Replay, Role, ToolCall, ToolSpec
from app.domain.model import ModelRequest
from app.providers.amend import Amendment, amend

REQUEST = ModelRequest(
    system="sys\ud83e \ufdd0",
    messages=(
        Message(role=Role.USER, content=[{"type": "text", "text": "né\ue000"}, {"type": "image_url", "image_url": {"url": "http://x/é"}}]),
        Message(
            role=Role.ASSISTANT,
            content="ok\u0007\n",
            tool_calls=(ToolCall("c", "look", '{"q":"\\ufdd0é"}'), ToolCall("d", "look", "{broken \ue000")),
            replay=Replay(origin="o", items=({"type": "thinking"},)),
        ),
        Message(role=Role.TOOL, content="plain", tool_call_id="c"),
    ),
    tools=(ToolSpec(name="look", description="dé\ue000", parameters={"type": "object", "properties": {"q": {"description": "\ufdd0"}}}),),
    first_attempt=1,
)


def test_replay_is_left_out_and_nothing_else_changes() -> None:
    changed = amend(REQUEST, Amendment.WITHOUT_REPLAY)
    assert [message.replay for message in changed.messages] == [None, None, None]
    assert not changed.replays
    assert [message.content for message in changed.messages] == [message.content for message in REQUEST.messages]


def test_doubtful_characters_are_replaced_in_every_nested_string() -> None:
    changed = amend(REQUEST, Amendment.PLAIN_TEXT)
    assert changed.system == "sys\ufffd \ufffd"
    user, assistant, tool = changed.messages
    assert user.content == [{"type": "text", "text": "né\ufffd"}, {"type": "image_url", "image_url": {"url": "http://x/é"}}]
    assert (assistant.content, [call.arguments for call in assistant.tool_calls]) == ("ok\ufffd\n", ['{"q":"\ufffdé"}', "{broken \ufffd"])
    assert tool == REQUEST.messages[2]
    assert (changed.tools[0].description, changed.tools[0].parameters["properties"]) == ("dé\ufffd", {"q": {"description": "\ufffd"}})


def test_ascii_leaves_nothing_else() -> None:
    changed = amend(REQUEST, Amendment.ASCII)
    assert repr(changed).isascii()
    assert changed.messages[0].content == [{"type": "text", "text": "n??"}, {"type": "image_url", "image_url": {"url": "http://x/?"}}]
