"""Tools of an operator for tests of guardrails: some read, one watches, and what they say can change with each call.

Use with ``replica(url, tool_modules=MODULE)`` and call ``reset()`` before a test.
"""

from collections import Counter

from app.tools.operator import Tool

MODULE = "tests.e2e.watching_tools"
calls: "Counter[str]" = Counter()
"""How often each tool was run."""


def reset() -> None:
    """Forget earlier tests."""
    calls.clear()


def read(path: str) -> str:
    """Read what is always the same."""
    calls["read"] += 1
    return f"{path}: the same as ever"


def write(path: str) -> str:
    """Write the same thing."""
    calls["write"] += 1
    return f"{path} written"


def measure(path: str) -> str:
    """Measure what changes with every look."""
    calls["measure"] += 1
    return f"{path}: {calls['measure']}"


def status() -> str:
    """Say how far some background work is."""
    calls["status"] += 1
    return f"{min(100, 10 * (calls['status'] // 2))} %"


def fail(path: str) -> str:
    """Fail."""
    calls["fail"] += 1
    raise RuntimeError(f"{path} is broken")


_PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    Tool(read, _PATH, read_only=True),
    Tool(write, _PATH),
    Tool(measure, _PATH, read_only=True),
    Tool(status, {"type": "object", "properties": {}}, read_only=True, polling=True),
    Tool(fail, _PATH),
]
