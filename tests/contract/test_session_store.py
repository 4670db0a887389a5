"""What every :class:`app.ports.SessionStore` and :class:`app.ports.MessageStore` does."""

import msgspec
import pytest

from app.domain.errors import ConflictError
from app.domain.ids import SessionId
from app.domain.messages import Message, MessageKind, Role, ToolCall
from app.domain.openings import OpenTurn
from app.domain.sessions import SessionChange
from tests.contract.worlds import World, new_session
from tests.integration.store.builders import a_turn, an_id

HISTORY = (
    Message(role=Role.USER, content="what time is it? \u2028 \U0001f980"),
    Message(role=Role.ASSISTANT, tool_calls=(ToolCall("c", "get_time", '{"b": 1, "a":2}'),), reasoning="look"),
    Message(role=Role.TOOL, content="noon", tool_call_id="c", tool_name="get_time"),
    Message(role=Role.ASSISTANT, content="[note]", kind=MessageKind.NOTE),
    Message(role=Role.USER, content="thanks"),
)


async def test_a_created_session_reads_back_and_is_unknown_to_another_tenant(world: World) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id, user="ada", model="m-test")
    session = await world.sessions.get(tenant_id, session_id)
    assert session is not None
    assert (session.user, session.model, session.system_prompt, session.active_turn_id) == ("ada", "m-test", "be kind", None)
    other = await world.tenant()
    assert await world.sessions.get(other, session_id) is None
    assert await world.sessions.change(other, session_id, SessionChange(user="eve")) is None
    assert await world.sessions.delete(other, session_id) is False
    assert await world.messages.page(other, session_id, 10, 0) is None


async def test_an_idempotency_key_makes_one_session_of_a_tenant(world: World) -> None:
    tenant_id, other = await world.tenant(), await world.tenant()
    first = await new_session(world, tenant_id, idempotency_key="k", fingerprint="body")
    assert await new_session(world, tenant_id, idempotency_key="k", fingerprint="body") == first
    assert await new_session(world, other, idempotency_key="k", fingerprint="else") != first
    with pytest.raises(ConflictError) as refused:
        await new_session(world, tenant_id, idempotency_key="k", fingerprint="else")
    assert refused.value.code == "idempotency_mismatch"


async def test_an_imported_history_comes_back_as_it_was(world: World) -> None:
    session_id = await new_session(world, await world.tenant(), *HISTORY)
    rows = await world.messages.working_set(session_id)
    assert [row.message for row in rows] == list(HISTORY)
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert {row.turn_id for row in rows} == {None}
    assert await world.messages.working_set(SessionId("sess_none")) == []


async def test_a_transcript_has_archived_rows_and_no_notes_and_a_working_set_the_other_way_round(world: World) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id, *HISTORY)
    await world.archive(session_id, 3)
    assert [row.seq for row in await world.messages.working_set(session_id)] == [3, 4, 5]
    first = await world.messages.page(tenant_id, session_id, 3, 0)
    assert first is not None
    assert [(row.seq, row.archived) for row in first.data] == [(1, True), (2, True), (3, False)]
    second = await world.messages.page(tenant_id, session_id, 3, int(first.next_cursor or 0))
    assert second is not None
    assert ([row.seq for row in second.data], second.next_cursor) == ([5], None)


async def test_pages_of_sessions_are_newest_first_and_can_be_of_one_user(world: World) -> None:
    tenant_id = await world.tenant()
    made = [await new_session(world, tenant_id, user="ada" if number % 2 else None) for number in range(5)]
    await new_session(world, await world.tenant())
    first = await world.sessions.page(tenant_id, 3, None, None)
    second = await world.sessions.page(tenant_id, 3, first.next_cursor, None)
    assert [session.id for session in first.data + second.data] == sorted(made, reverse=True)
    assert second.next_cursor is None
    adas = await world.sessions.page(tenant_id, 5, None, "ada")
    assert [session.id for session in adas.data] == sorted((made[1], made[3]), reverse=True)


CHANGES = {
    "prompt": SessionChange(system_prompt="New."),
    "model-off": SessionChange(model=None),
    "user-off": SessionChange(user=None),
    "toolsets": SessionChange(toolsets=("time",), tools=b"[1]"),
    "metadata": SessionChange(metadata={"a": "b"}),
    "nothing": SessionChange(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_changes_what_it_names(world: World, change: SessionChange) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id, user="ada", model="m-test")
    before = await world.sessions.get(tenant_id, session_id)
    after = await world.sessions.change(tenant_id, session_id, change)
    assert before is not None
    assert after is not None
    given = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET and name != "tools"}
    assert after == msgspec.structs.replace(before, updated_at_ms=after.updated_at_ms, **given)
    assert await world.sessions.get(tenant_id, session_id) == after


async def test_a_deleted_session_is_gone(world: World) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id, *HISTORY)
    assert await world.sessions.delete(tenant_id, session_id) is True
    assert await world.sessions.get(tenant_id, session_id) is None
    assert await world.messages.working_set(session_id) == []
    assert await world.sessions.delete(tenant_id, session_id) is False
    assert await world.sessions.change(tenant_id, session_id, SessionChange(user="eve")) is None


async def test_a_session_names_its_running_turn_and_is_not_deleted_under_it(world: World) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id)
    turn = await world.turns.open(a_turn(tenant_id, session_id))
    assert isinstance(turn, OpenTurn)
    session = await world.sessions.get(tenant_id, session_id)
    assert session is not None
    assert session.active_turn_id == turn.fence.turn_id
    with pytest.raises(ConflictError) as refused:
        await world.sessions.delete(tenant_id, session_id)
    assert (refused.value.code, refused.value.turn_id) == ("turn_in_progress", turn.fence.turn_id)


async def test_a_session_that_nobody_made_does_not_exist(world: World) -> None:
    assert await world.sessions.get(await world.tenant(), SessionId(an_id("sess"))) is None


async def test_a_change_for_an_end_user_is_not_made_to_a_session_that_is_no_longer_theirs(world: World) -> None:
    tenant_id = await world.tenant()
    session_id = await new_session(world, tenant_id, user="ada")
    for_nobody = SessionChange(system_prompt="of nobody", memory="of nobody", if_user=None)
    assert await world.sessions.change(tenant_id, session_id, for_nobody) is None
    assert await world.sessions.change(tenant_id, session_id, SessionChange(system_prompt="x", if_user="bob")) is None
    changed = await world.sessions.change(tenant_id, session_id, SessionChange(user=None, memory="of nobody", if_user="ada"))
    assert changed is not None
    assert (changed.user, changed.system_prompt) == (None, "be kind")
    assert await world.sessions.change(tenant_id, session_id, for_nobody) is not None
