"""Tools of the client: which step follows a reply that calls them, and what a forced choice is good for."""

from collections.abc import Iterable

import pytest
from typing_extensions import override

from app.agent.client_tools import NOT_RUN, ClientTools, options_of
from app.agent.machine import Finish, RunTools
from app.domain.ids import TenantId, TurnId
from app.domain.messages import Message, Role, ToolCall, ToolSpec
from app.domain.model import ModelOptions
from app.domain.tools import CallStatus, ToolContext, ToolOutcome
from app.domain.turns import Completed, CompletedReason
from app.ports import Toolbox

OWN = (ToolSpec(name="lookup", description="Ours.", parameters={"type": "object"}),)
CLIENTS = (
    ToolSpec(name="ask", description="Theirs.", parameters={"type": "object"}),
    ToolSpec(name="zoom", description="Theirs.", parameters={"type": "object"}),
)
CONTEXT = ToolContext(tenant_id=TenantId("ten_1"), session_id=None, turn_id=TurnId("turn_1"), enabled=frozenset({"lookup"}))


class Echo(Toolbox):
    @override
    def toolset_names(self) -> tuple[str, ...]:
        return ("own",)

    @override
    async def specs(self, toolsets: Iterable[str]) -> tuple[ToolSpec, ...]:
        return OWN

    @override
    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        return ToolOutcome(output=f"{call.name} ran")


def asked(*names: str, bad: tuple[str, ...] = ()) -> RunTools:
    calls = tuple(ToolCall(name, name, "{}") for name in names)
    message = Message(role=Role.ASSISTANT, content="so:", tool_calls=calls)
    return RunTools(message=message, calls=calls, bad_arguments=dict.fromkeys(bad, "no JSON"))


TOOLS = ClientTools(Echo(), CLIENTS)


@pytest.mark.parametrize("names", [("ask",), ("ask", "zoom", "ask")], ids=str)
def test_calls_of_client_tools_alone_end_the_turn(names: tuple[str, ...]) -> None:
    step = asked(*names)
    assert TOOLS.judge(step) == Finish(outcome=Completed(reason=CompletedReason.TOOL_CALLS, output="so:"), message=step.message)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(asked("lookup"), id="ours alone"),
        pytest.param(asked("ask", "lookup"), id="of both kinds"),
        pytest.param(asked("unknown"), id="nobody's"),
        pytest.param(asked("ask", bad=("ask",)), id="not legible"),
        pytest.param(Finish(outcome=Completed(reason=CompletedReason.ANSWER, output="x"), message=None), id="no calls"),
    ],
)
def test_anything_else_goes_on_as_ever(step: RunTools | Finish) -> None:
    assert TOOLS.judge(step) is step


async def test_a_clients_tool_is_never_run_here() -> None:
    assert await TOOLS.call(ToolCall("1", "ask", "{}"), CONTEXT) == ToolOutcome(
        output=NOT_RUN, is_error=True, status=CallStatus.REFUSED, toolset="client"
    )
    assert (await TOOLS.call(ToolCall("2", "lookup", "{}"), CONTEXT)).output == "lookup ran"


def test_the_model_is_offered_both_sorted_by_name() -> None:
    assert [spec.name for spec in TOOLS.offered(OWN)] == ["ask", "lookup", "zoom"]
    assert TOOLS.enabled(OWN) == {"lookup"}
    assert TOOLS.size > 0


def test_a_clients_tool_stands_in_place_of_one_of_ours_with_its_name() -> None:
    theirs = ToolSpec(name="lookup", description="Theirs.", parameters={"type": "object"})
    tools = ClientTools(Echo(), (theirs,))
    assert tools.offered(OWN) == (theirs,)
    assert tools.enabled(OWN) == frozenset()


def test_without_client_tools_nothing_changes() -> None:
    tools = ClientTools(Echo(), ())
    assert tools.offered(OWN) is OWN
    assert tools.size == 0


@pytest.mark.parametrize(
    ("choice", "later"), [(None, None), ("auto", "auto"), ("none", "none"), ("required", None), ("tool:f", None)], ids=str
)
def test_a_forced_choice_is_for_the_first_call_only(choice: str | None, later: str | None) -> None:
    options = ModelOptions(tool_choice=choice, temperature=0.5)
    assert options_of(options, 1) is options
    assert options_of(options, 2) == ModelOptions(tool_choice=later, temperature=0.5)
