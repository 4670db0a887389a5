"""``delegate_task`` as the model is shown it. The agent answers it by child turns; the registry only where there can be none."""

from typing import Any

from app.domain.children import DELEGATE_TOOL, DELEGATION_TOOLSET
from app.domain.tools import ToolContext, ToolOutcome
from app.tools.tool import RegisteredTool

_DESCRIPTION = (
    "Hand one task to a sub-agent. It begins with a fresh context and knows nothing of this conversation: put everything it needs into goal"
    " and context. You get its final answer. Call it several times in one answer to have several sub-agents work at the same time; they use"
    " this turn's budget. With background you go on at once and find the result on its card (kanban_show)."
)


def delegate_tool() -> RegisteredTool:
    """The tool."""
    return RegisteredTool(
        name=DELEGATE_TOOL,
        description=_DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "goal": {"type": "string", "minLength": 1, "description": "What is to be done, and what the answer shall contain."},
                "context": {"type": "string", "description": "Facts, texts and decisions that the sub-agent needs."},
                "toolsets": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Toolsets of yours that it may use. Default: all of your tools.",
                },
                "background": {"type": "boolean", "description": "Do not wait for its answer."},
            },
            "required": ["goal"],
            "additionalProperties": False,
        },
        handler=_without_session,
        toolset=DELEGATION_TOOLSET,
        origin="built in",
    )


async def _without_session(_arguments: dict[str, Any], _context: ToolContext) -> ToolOutcome:
    return ToolOutcome(output="Not run: sub-agents need a session, and this call belongs to none.", is_error=True)
