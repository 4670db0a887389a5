"""Tools of an operator whose results are too long, no text, or both.

Use with ``replica(url, tool_modules=MODULE)`` and call ``reset()`` before a test.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterator

from app.tools.operator import Tool

MODULE = "tests.e2e.large_tools"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
looks: "Counter[str]" = Counter()
"""How often each tool was run."""


def reset() -> None:
    """Forget earlier tests."""
    looks.clear()


def produce(kind: str) -> object:
    """Give what ``kind`` names."""
    if kind == "long error":
        raise RuntimeError(f"BEGIN{'y' * 400_000}END")
    return _MAKERS[kind]()


def _numbers() -> Iterator[int]:
    yield from range(3)


_MAKERS: dict[str, Callable[[], object]] = {
    "one line": lambda: f"BEGIN{'x' * 5_000_000}END",
    "three bytes": lambda: f"BEGIN{'語' * 150_000}END",
    "list": lambda: [{"row": number, "name": f"name {number}"} for number in range(30_000)],
    "image": lambda: PNG,
    "base64": lambda: base64.b64encode(PNG * 220).decode(),
    "log": lambda: "\n".join([*(f"line {number}: ok" for number in range(10_000)), "ERROR: the disk is full"]),
    "object": lambda: {"b": [1, None], "a": "é"},
    "generator": _numbers,
    "nothing": lambda: None,
}


def survey(path: str) -> str:
    """Read something long of which only the middle changes."""
    looks["survey"] += 1
    return f"{path} {'x' * 90_000} {looks['survey']} {'x' * 90_000}"


TOOLS = [
    Tool(produce, {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}),
    Tool(survey, {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}, read_only=True),
]
