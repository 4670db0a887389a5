"""The tool get_time."""

from datetime import UTC, datetime

import pytest
from typing_extensions import override

from app.clock import SystemClock
from app.domain.tools import ToolOutcome
from app.tools.builtin.get_time import get_time_tool
from app.tools.execution import ToolExecutor
from app.tools.registry import ToolRegistry
from tests.fakes.tooling.builders import call_of, context_of


class NewYearClock(SystemClock):
    """Half a second before the year ends in UTC."""

    @override
    def now(self) -> datetime:
        return datetime(2026, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)


async def get_time(arguments: str) -> ToolOutcome:
    return await ToolRegistry([get_time_tool(NewYearClock())], ToolExecutor(5)).call(call_of("get_time", arguments), context_of("get_time"))


@pytest.mark.parametrize("arguments", ["", "{}", '{"timezone":""}', '{"timezone":"UTC"}', '{"timezone":" UTC ","why":"x"}'])
async def test_without_a_zone_it_is_utc(arguments: str) -> None:
    assert await get_time(arguments) == ToolOutcome(
        output='{"time":"2026-12-31T23:59:59+00:00","timezone":"UTC","weekday":"Thursday"}', toolset="core"
    )


async def test_a_zone_moves_time_and_weekday() -> None:
    outcome = await get_time('{"timezone":"Europe/Berlin"}')
    assert outcome.output == '{"time":"2027-01-01T00:59:59+01:00","timezone":"Europe/Berlin","weekday":"Friday"}'


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "+02:00", "x\\u0000", "\\ud800", "x" * 5000])
async def test_an_unknown_zone_is_answered_with_the_expected_form(zone: str) -> None:
    outcome = await get_time(f'{{"timezone":"{zone}"}}')
    assert outcome.is_error
    assert "Expected an IANA name such as Europe/Berlin" in outcome.output
    assert len(outcome.output) < 700


async def test_a_zone_that_is_no_text_is_refused() -> None:
    assert "timezone: 2 is not of type 'string'" in (await get_time('{"timezone":2}')).output
