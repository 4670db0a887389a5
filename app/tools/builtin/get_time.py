"""The tool ``get_time``: the current time. The system prompt holds no date, so that it stays the same from call to call."""

from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.domain.messages import canonical_json
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import Clock
from app.tools.tool import CORE, RegisteredTool

_MAX_NAME = 64


def get_time_tool(clock: Clock) -> RegisteredTool:
    """The tool, on ``clock``."""

    async def run(arguments: dict[str, Any], _context: ToolContext) -> ToolOutcome:
        return _get_time(clock, arguments.get("timezone", ""))

    return RegisteredTool(
        name="get_time",
        description="Get the current date, time and weekday.",
        parameters={
            "type": "object",
            "properties": {
                "timezone": {"type": "string", "description": "IANA time zone such as Europe/Berlin or America/New_York. Default: UTC."}
            },
        },
        handler=run,
        toolset=CORE,
        origin="built in",
    )


def _get_time(clock: Clock, name: str) -> ToolOutcome:
    name = name.strip()
    zone = _zone(name)
    if zone is None:
        expected = "Expected an IANA name such as Europe/Berlin, America/New_York or UTC."
        return ToolOutcome(output=f"Unknown time zone {name[:_MAX_NAME]!a}. {expected}", is_error=True)
    now = clock.now().astimezone(zone)
    result = {"time": now.isoformat(timespec="seconds"), "timezone": name or "UTC", "weekday": f"{now:%A}"}
    return ToolOutcome(output=canonical_json(result))


def _zone(name: str) -> tzinfo | None:
    if name.upper() in {"", "UTC", "Z"}:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # ValueError: not a relative name, NUL, surrogates. OSError: a folder ("Europe") or too long a name.
        return None
