"""A module such as an operator would write."""

import threading
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any

from app.domain.tools import ToolContext
from app.tools.operator import Tool

request_id: ContextVar[str] = ContextVar("request_id", default="none")

ARTICLE: dict[str, Any] = {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]}


def stock(article: str) -> dict[str, object]:
    """How many pieces of an article are there."""
    return {"article": article, "pieces": 3, "main_thread": threading.current_thread() is threading.main_thread()}


async def order(article: str, *, context: ToolContext) -> str:
    """Order an article."""
    return f"{article} for {context.tenant_id} on {threading.current_thread() is threading.main_thread()}"


def whose(context: ToolContext) -> str:
    return f"{context.session_id} {request_id.get()}"


def order_later(article: str, context: ToolContext) -> Awaitable[str]:
    """A plain function that hands out a coroutine."""
    return order(article, context=context)


class Greeter:
    """A callable object with an async __call__."""

    async def __call__(self, name: str = "you") -> str:
        """Greet somebody."""
        return f"hello {name}"


TOOLS = [
    Tool(order_later, ARTICLE),
    Tool(stock, ARTICLE),
    Tool(order, ARTICLE, description="Order it."),
    Tool(whose, {"type": "object"}, name="who-is-it", description="Says whose call it is."),
    Tool(Greeter(), {"type": "object", "properties": {"name": {"type": "string"}}}, name="greet", description="Greets."),
]
