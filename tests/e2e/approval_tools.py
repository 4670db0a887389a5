"""Tools of an operator that need an approval. Their runs are counted with those of :mod:`tests.e2e.operator_tools`."""

import asyncio

from app.tools.operator import Tool
from tests.e2e.operator_tools import runs

MODULE = "tests.e2e.approval_tools"


async def purge(place: str) -> str:
    """Purge a place."""
    runs.begin("purge")
    runs.end("purge")
    return f"purged {place}"


async def rebuild(seconds: float) -> str:
    """Rebuild everything, which takes ``seconds`` seconds."""
    runs.begin("rebuild")
    await asyncio.sleep(seconds)
    runs.end("rebuild")
    return "rebuilt"


TOOLS = [
    Tool(rebuild, {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}, needs_approval=True),
    Tool(purge, {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}, needs_approval=True),
]
