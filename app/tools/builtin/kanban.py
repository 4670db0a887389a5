"""``kanban_list``, ``kanban_show`` and ``kanban_update``: the board of a session, where its child turns have their cards."""

import secrets
from typing import Any, Final

from app.domain.children import DELEGATION_TOOLSET
from app.domain.guardrails import ToolTraits
from app.domain.ids import ENTROPY_BYTES, SessionId, make_id
from app.domain.kanban import MAX_CARD_RESULT, MAX_CARDS, MAX_OWNER, MAX_TITLE, Card, CardChange, CardState, NewCard
from app.domain.messages import canonical_json
from app.domain.tools import ToolContext, ToolOutcome
from app.ports import Clock, KanbanStore
from app.tools.tool import RegisteredTool

MAX_WAIT_S: Final = 60.0
LOOK_S: Final = 0.5
"""Between looks at a card that is waited for."""
_SHOWN_RESULT: Final = 200
_NO_SESSION = ToolOutcome(output="There is no board: the call belongs to no session.", is_error=True)
_NO_CARD = ToolOutcome(output="There is no such card. Look at the board with kanban_list.", is_error=True)
_STATES = [state.value for state in CardState]
_POLLING = ToolTraits(read_only=True, polling=True)


def kanban_tools(store: KanbanStore, clock: Clock) -> tuple[RegisteredTool, ...]:
    """The tools, on ``store``."""

    async def listed(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if context.session_id is None:
            return _NO_SESSION
        wanted = arguments.get("state")
        cards = [card for card in await store.board(context.session_id) if wanted in (None, card.state.value)]
        return ToolOutcome(output=canonical_json({"cards": [_line(card) for card in cards]}))

    async def shown(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if context.session_id is None:
            return _NO_SESSION
        wait_s = min(float(arguments.get("wait_s", 0)), MAX_WAIT_S)
        card = await _wait(store, clock, context.session_id, card_id=arguments["card_id"], wait_s=wait_s)
        return _NO_CARD if card is None else ToolOutcome(output=canonical_json(_whole(card)))

    async def updated(arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
        return await _update(store, clock, arguments, context)

    properties = {"card_id": {"type": "string"}}
    return (
        _tool(
            "kanban_list",
            "List the cards of this conversation's board: sub-agents and what you have put there.",
            {"state": {"type": "string", "enum": _STATES}},
            listed,
            traits=_POLLING,
        ),
        _tool(
            "kanban_show",
            f"Read one card with its whole result. wait_s (at most {MAX_WAIT_S:g}) waits until the card has ended.",
            {**properties, "wait_s": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}},
            shown,
            required=["card_id"],
            traits=_POLLING,
            timeout_s=MAX_WAIT_S + 30.0,
        ),
        _tool(
            "kanban_update",
            "Put a card on the board (without card_id) or change one. The card of a running sub-agent changes by itself only.",
            {
                **properties,
                "title": {"type": "string", "minLength": 1, "maxLength": MAX_TITLE},
                "state": {"type": "string", "enum": _STATES},
                "owner": {"type": "string", "maxLength": MAX_OWNER},
                "result": {"type": "string", "maxLength": MAX_CARD_RESULT},
            },
            updated,
        ),
    )


async def _wait(store: KanbanStore, clock: Clock, session_id: SessionId, *, card_id: str, wait_s: float) -> Card | None:
    """The card, as soon as it has ended or the time is over."""
    until = clock.monotonic() + wait_s
    card = await store.card(session_id, card_id)
    while card is not None and not card.state.ended and clock.monotonic() < until:
        await clock.sleep(LOOK_S)
        card = await store.card(session_id, card_id)
    return card


async def _update(store: KanbanStore, clock: Clock, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome:
    session_id, card_id = context.session_id, arguments.get("card_id")
    if session_id is None:
        return _NO_SESSION
    if card_id is None:
        added = await _add(store, clock, arguments, context)
        if isinstance(added, ToolOutcome):
            return added
        card_id = added.id
    known = await store.card(session_id, card_id)
    if known is not None and known.child_turn_id is not None and known.state is CardState.RUNNING:
        return ToolOutcome(output="A sub-agent works on this card: it changes by itself.", is_error=True)
    change = CardChange(title=arguments.get("title"), state=_state(arguments), owner=arguments.get("owner"), result=arguments.get("result"))
    card = await store.change(session_id, card_id, change)
    return _NO_CARD if card is None else ToolOutcome(output=canonical_json(_whole(card)))


async def _add(store: KanbanStore, clock: Clock, arguments: dict[str, Any], context: ToolContext) -> Card | ToolOutcome:
    if "title" not in arguments or context.session_id is None:
        return ToolOutcome(output="A new card needs a title.", is_error=True)
    new = NewCard(
        id=make_id("card", clock.unix_ms(), secrets.token_bytes(ENTROPY_BYTES)),
        session_id=context.session_id,
        turn_id=context.turn_id,
        title=arguments["title"],
        state=_state(arguments) or CardState.TODO,
        owner=arguments.get("owner", ""),
    )
    added = await store.add(new)
    return added or ToolOutcome(output=f"The board is full: it holds {MAX_CARDS} cards.", is_error=True)


def _state(arguments: dict[str, Any]) -> CardState | None:
    return CardState(arguments["state"]) if "state" in arguments else None


def _line(card: Card) -> dict[str, Any]:
    result = card.result if len(card.result) <= _SHOWN_RESULT else f"{card.result[:_SHOWN_RESULT]}…"
    return {"card_id": card.id, "title": card.title, "state": card.state.value, "owner": card.owner, "result": result}


def _whole(card: Card) -> dict[str, Any]:
    return {**_line(card), "result": card.result, "child_turn_id": card.child_turn_id}


def _tool(
    name: str,
    description: str,
    properties: dict[str, Any],
    handler: Any,
    *,
    required: list[str] | None = None,
    traits: ToolTraits | None = None,
    timeout_s: float | None = None,
) -> RegisteredTool:
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parameters["required"] = required
    return RegisteredTool(
        name=name,
        description=description,
        parameters=parameters,
        handler=handler,
        toolset=DELEGATION_TOOLSET,
        origin="built in",
        traits=traits or ToolTraits(),
        timeout_s=timeout_s,
    )
