"""What ``responses`` makes of the table of conversations: the input."""

from collections.abc import Mapping
from typing import Any

from app.context.history import INTERRUPTED_NOTE
from app.domain.model import ApiMode
from tests.unit.providers.modes.conversations import REPLAYED


def user(*content: Any) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in content]
    return {"type": "message", "role": "user", "content": parts}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(call_id: str, name: str = "lookup", arguments: str = '{"q": "a"}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id: str, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


HI = user("Hi")
PNG = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw==", "detail": "low"}
WEB_IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}
PDF = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}

BODIES: Mapping[str, list[dict[str, Any]]] = {
    "plain": [HI, said("Hello."), user("Bye")],
    "system": [HI],
    "images": [user("See:", PNG, WEB_IMAGE)],
    "pdf": [user(PDF)],
    "call": [HI, said("Looking."), call("c1"), result("c1", "found"), said("There."), user("Thanks")],
    "parallel-calls": [HI, call("c1"), call("c2", "now", "{}"), result("c1"), result("c2")],
    "user-behind-results": [HI, call("c1"), result("c1"), user("Go on.")],
    "error-result": [HI, call("c1"), result("c1", "no such place")],
    "image-result": [HI, call("c1"), result("c1", [{"type": "input_text", "text": "See:"}, PNG])],
    "own-reasoning": [HI, *REPLAYED[ApiMode.RESPONSES], call("c1"), result("c1")],
    "foreign-reasoning": [HI, call("c1"), result("c1")],
    "interrupted": [HI, said(INTERRUPTED_NOTE), user("Again")],
    "empty-texts": [user(" "), call("c1", "now", "{}"), result("c1", "")],
    "illegal-names": [HI, call("c1", "browser_tabs_open"), call("c2", "unnamed", "{}"), result("c1"), result("c2")],
    "repeated-ids": [
        HI,
        call("call_0"),
        call("call", "now"),
        result("call_0", "1"),
        result("call", "2"),
        call("call_0_2"),
        result("call_0_2", "3"),
    ],
    "unicode": [user("b\ufffd🦊 北京"), call("c1", "lookup", '{"q":"杭州"}'), result("c1", "\ufffd")],
}
