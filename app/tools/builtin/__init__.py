"""Tools that come with the gateway, one module each."""

from typing import Final

BUILT_IN_NAMES: Final = frozenset(
    {
        *("clarify", "delegate_task", "get_time", "kanban_list", "kanban_show", "kanban_update"),
        *("memory", "session_search", "todo", "vision_analyze", "web_extract"),
    }
)
"""The gateway's own tools: no tenant can have a tool of such a name."""
