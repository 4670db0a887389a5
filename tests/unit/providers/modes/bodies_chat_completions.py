"""What ``chat_completions`` makes of the table of conversations: the messages."""

from collections.abc import Mapping
from typing import Any

from app.context.history import INTERRUPTED_NOTE
from app.domain.model import ApiMode
from tests.unit.providers.modes.conversations import PDF, PNG, REPLAYED, WEB_IMAGE

HI = {"role": "user", "content": "Hi"}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def call(call_id: str, name: str = "lookup", arguments: str = '{"q": "a"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


BODIES: Mapping[str, list[dict[str, Any]]] = {
    "plain": [HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}],
    "system": [{"role": "system", "content": "Be kind."}, HI],
    "images": [{"role": "user", "content": [{"type": "text", "text": "See:"}, PNG, WEB_IMAGE]}],
    "pdf": [{"role": "user", "content": [PDF]}],
    "call": [
        HI,
        calling(call("c1"), content="Looking."),
        result("c1", "found"),
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "Thanks"},
    ],
    "parallel-calls": [HI, calling(call("c1"), call("c2", "now", "{}")), result("c1"), result("c2")],
    "user-behind-results": [HI, calling(call("c1")), result("c1"), {"role": "user", "content": "Go on."}],
    "error-result": [HI, calling(call("c1")), result("c1", "no such place")],
    "image-result": [HI, calling(call("c1")), result("c1", [{"type": "text", "text": "See:"}, PNG])],
    "own-reasoning": [HI, {**calling(call("c1")), **REPLAYED[ApiMode.CHAT_COMPLETIONS][0]}, result("c1")],
    "foreign-reasoning": [HI, calling(call("c1")), result("c1")],
    "interrupted": [HI, {"role": "assistant", "content": INTERRUPTED_NOTE}, {"role": "user", "content": "Again"}],
    "empty-texts": [{"role": "user", "content": " "}, calling(call("c1", "now", "{}")), result("c1", "")],
    "illegal-names": [HI, calling(call("c1", "browser_tabs_open"), call("c2", "unnamed", "{}")), result("c1"), result("c2")],
    "repeated-ids": [
        HI,
        calling(call("call_0"), call("call", "now")),
        result("call_0", "1"),
        result("call", "2"),
        calling(call("call_0_2")),
        result("call_0_2", "3"),
    ],
    "unicode": [{"role": "user", "content": "b\ufffd🦊 北京"}, calling(call("c1", "lookup", '{"q":"杭州"}')), result("c1", "\ufffd")],
}
