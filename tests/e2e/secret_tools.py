"""Tools of an operator with secrets among their arguments."""

from app.tools.operator import Tool

MODULE = "tests.e2e.secret_tools"


async def login(user: str, password: str, note: str = "") -> str:
    """Log somebody in."""
    return f"{user} is in, with {len(password)} characters"


async def unlock(pin: str) -> str:
    """Unlock the door."""
    return f"unlocked with {len(pin)} digits"


_TEXT = {"type": "string"}
TOOLS = [
    Tool(
        login,
        {"type": "object", "properties": {"user": _TEXT, "password": _TEXT, "note": _TEXT}, "required": ["user", "password"]},
        secret_arguments=("password",),
    ),
    Tool(
        unlock,
        {"type": "object", "properties": {"pin": {"type": "string", "format": "password"}}, "required": ["pin"]},
        needs_approval=True,
    ),
]
