"""Tools of an operator whose results nobody would want: broken text, numbers that JSON lacks, credentials."""

from typing import Any

from app.tools.operator import Tool

MODULE = "tests.e2e.odd_tools"
LEAKED = "sk-test-DDDD4444EEEE5555FFFF6666"
"""The credential that :func:`leak` shows in its exception."""


def dirty(said: str = "") -> str:
    """Return text that Postgres and UTF-8 refuse, the argument included."""
    return f"a\x00b\ud800c{said}"


def not_a_number() -> dict[str, Any]:
    """Return numbers that JSON does not have."""
    return {"x": float("nan"), "y": [float("inf")], "\x00": "z\udfff"}


def leak() -> str:
    """Fail with everything that the request had in its head."""
    headers = {"Authorization": f"Bearer {LEAKED}", "x-api-key": LEAKED, "Host": "inner.host.internal:8443"}
    msg = f"upstream said 401 to https://svc:{LEAKED}@inner.host.internal:8443/v1?key={LEAKED} with {headers}"
    raise RuntimeError(msg)


_NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    Tool(dirty, {"type": "object", "properties": {"said": {"type": "string"}}}),
    Tool(not_a_number, _NOTHING),
    Tool(leak, _NOTHING),
]
