"""The tool ``clarify``: the model asks a question, and the turn waits until somebody answers.

The agent itself pauses the turn for a question that can be shown; a call that comes here has none.
"""

from typing import Any

from app.domain.guardrails import ToolTraits
from app.domain.tools import ToolContext, ToolOutcome
from app.domain.waiting import MAX_CHOICE, MAX_CHOICES, MAX_QUESTION
from app.tools.tool import CORE, RegisteredTool

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "description": "What you need to know.", "minLength": 1, "maxLength": MAX_QUESTION},
        "choices": {
            "type": "array",
            "description": "Answers to choose from; another one can always be given.",
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_CHOICE},
            "maxItems": MAX_CHOICES,
        },
    },
    "required": ["question"],
}
_DESCRIPTION = (
    "Ask the user a question and get the answer. Only when you cannot go on without it: a decision that is theirs, or a request that can "
    "mean several things. Never to ask whether you may run another tool."
)


def clarify_tool() -> RegisteredTool:
    """The tool."""
    return RegisteredTool(
        name="clarify",
        description=_DESCRIPTION,
        parameters=_PARAMETERS,
        handler=_run,
        toolset=CORE,
        origin="built in",
        traits=ToolTraits(interactive=True),
    )


async def _run(_arguments: dict[str, Any], _context: ToolContext) -> ToolOutcome:
    return ToolOutcome(output="Nobody was asked: the question is blank, or there is nobody to ask. Go on without.", is_error=True)
