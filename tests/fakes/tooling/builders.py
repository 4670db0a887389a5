"""Short ways to a tool and to the context of a call."""

from typing import Any

from app.domain.ids import SessionId, TenantId, TurnId
from app.domain.messages import ToolCall
from app.domain.tools import ToolContext
from app.tools.tool import CORE, Handler, RegisteredTool

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def context_of(*enabled: str, session: str = "sess_1") -> ToolContext:
    return ToolContext(tenant_id=TenantId("ten_1"), session_id=SessionId(session), turn_id=TurnId("turn_1"), enabled=frozenset(enabled))


def tool_of(handler: Handler, name: str = "probe", parameters: dict[str, Any] = ANY_OBJECT, toolset: str = CORE) -> RegisteredTool:
    return RegisteredTool(name=name, description="A probe.", parameters=parameters, handler=handler, toolset=toolset, origin="a test")


def call_of(name: str = "probe", arguments: str = "{}", call_id: str = "call_1") -> ToolCall:
    return ToolCall(call_id, name, arguments)
