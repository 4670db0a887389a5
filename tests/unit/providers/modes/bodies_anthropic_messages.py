"""What ``anthropic_messages`` makes of the table of conversations: the messages, cache markers aside."""

from collections.abc import Mapping
from typing import Any

from app.context.history import INTERRUPTED_NOTE
from app.domain.model import ApiMode
from tests.unit.providers.modes.conversations import REPLAYED


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def call(call_id: str, name: str = "lookup", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "r", **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **members}


HI = user(text("Hi"))
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}, "title": "a.pdf"}

BODIES: Mapping[str, list[dict[str, Any]]] = {
    "plain": [HI, assistant(text("Hello.")), user(text("Bye"))],
    "system": [HI],
    "images": [user(text("See:"), PNG, {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}})],
    "pdf": [user(PDF)],
    "call": [
        HI,
        assistant(text("Looking."), call("c1", q="a")),
        user(result("c1", "found")),
        assistant(text("There.")),
        user(text("Thanks")),
    ],
    "parallel-calls": [HI, assistant(call("c1", q="a"), call("c2", "now")), user(result("c1"), result("c2"))],
    "user-behind-results": [HI, assistant(call("c1", q="a")), user(result("c1"), text("Go on."))],
    "error-result": [HI, assistant(call("c1", q="a")), user(result("c1", "no such place", is_error=True))],
    "image-result": [HI, assistant(call("c1", q="a")), user(result("c1", [text("See:"), PNG]))],
    "own-reasoning": [HI, assistant(*REPLAYED[ApiMode.ANTHROPIC_MESSAGES], call("c1", q="a")), user(result("c1"))],
    "foreign-reasoning": [HI, assistant(call("c1", q="a")), user(result("c1"))],
    "interrupted": [HI, assistant(text(INTERRUPTED_NOTE)), user(text("Again"))],
    "empty-texts": [user(text("[empty message]")), assistant(call("c1", "now")), user({"type": "tool_result", "tool_use_id": "c1"})],
    "illegal-names": [HI, assistant(call("c1", "browser_tabs_open", q="a"), call("c2", "unnamed")), user(result("c1"), result("c2"))],
    "repeated-ids": [
        HI,
        assistant(call("call_0", q="a"), call("call", "now", q="a")),
        user(result("call_0", "1"), result("call", "2")),
        assistant(call("call_0_2", q="a")),
        user(result("call_0_2", "3")),
    ],
    "unicode": [user(text("b\ufffd🦊 北京")), assistant(call("c1", q="杭州")), user(result("c1", "\ufffd"))],
}
