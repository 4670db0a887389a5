"""The tool todo."""

import asyncio
import json
from typing import Any

import pytest

from app.domain.tools import ToolOutcome
from app.tools.builtin.todo import CUT_MARKER, todo_tool
from app.tools.execution import ToolExecutor
from app.tools.registry import ToolRegistry
from tests.fakes.tooling.builders import call_of, context_of
from tests.fakes.tooling.todo_store import MemoryTodoStore


class Lists:
    """The tool over a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryTodoStore()
        self._registry = ToolRegistry([todo_tool(self.store)], ToolExecutor(5))

    async def raw(self, arguments: dict[str, Any], session: str = "sess_1") -> ToolOutcome:
        return await self._registry.call(call_of("todo", json.dumps(arguments)), context_of("todo", session=session))

    async def __call__(self, *todos: dict[str, Any], merge: bool = False, session: str = "sess_1") -> dict[str, Any]:
        outcome = await self.raw({"todos": list(todos), "merge": merge}, session)
        assert not outcome.is_error, outcome.output
        answer: dict[str, Any] = json.loads(outcome.output)
        return answer

    async def read(self, session: str = "sess_1") -> list[tuple[str, str, str]]:
        answer = json.loads((await self.raw({}, session)).output)
        return [(item["id"], item["content"], item["status"]) for item in answer["todos"]]


@pytest.fixture
def todo() -> Lists:
    return Lists()


def item(item_id: str | int, content: str = "c", status: str = "pending") -> dict[str, Any]:
    return {"id": item_id, "content": content, "status": status}


async def test_a_new_session_has_an_empty_list_and_reading_writes_nothing(todo: Lists) -> None:
    outcome = await todo.raw({})
    assert json.loads(outcome.output) == {
        "todos": [],
        "summary": {"total": 0, "pending": 0, "in_progress": 0, "completed": 0, "cancelled": 0},
    }
    assert todo.store.writes == 0


async def test_writing_returns_the_list_with_counts(todo: Lists) -> None:
    answer = await todo(item("1", "a", "completed"), item("2", "b", "in_progress"), item("3"), item(4, "d", "cancelled"))
    assert answer["summary"] == {"total": 4, "pending": 1, "in_progress": 1, "completed": 1, "cancelled": 1}
    assert answer["todos"][3] == {"id": "4", "content": "d", "status": "cancelled"}
    assert "note" not in answer


async def test_it_replaces_by_default_and_an_empty_list_empties(todo: Lists) -> None:
    await todo(item("1"), item("2"))
    await todo(item("3"))
    assert await todo.read() == [("3", "c", "pending")]
    await todo()
    assert await todo.read() == []


async def test_of_equal_ids_the_last_counts_at_the_last_position(todo: Lists) -> None:
    await todo(item("1", "old"), item("2"), item("1", "latest"))
    assert await todo.read() == [("2", "c", "pending"), ("1", "latest", "pending")]


async def test_merging_updates_in_place_keeps_what_is_not_given_and_appends_new_ones(todo: Lists) -> None:
    await todo(item("1", "a", "in_progress"), item("2", "b"))
    await todo({"id": "1", "status": "completed"}, {"id": "2", "content": "b2"}, item("3", "new"), merge=True)
    assert await todo.read() == [("1", "a", "completed"), ("2", "b2", "pending"), ("3", "new", "pending")]


@pytest.mark.parametrize("status", ["done", "", "PENDING"])
async def test_an_unknown_status_is_pending(todo: Lists, status: str) -> None:
    await todo(item("1", status=status))
    assert await todo.read() == [("1", "c", "pending")]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(
    "bad",
    [{"id": "9"}, {"id": "9", "content": ""}, {"id": "1", "content": " \n"}, {"id": " ", "content": "x"}],
    ids=["missing", "empty", "blank", "no id"],
)
async def test_one_bad_item_refuses_the_call_and_leaves_the_list(todo: Lists, bad: dict[str, Any], merge: bool) -> None:
    await todo(item("1", "kept"))
    outcome = await todo.raw({"todos": [item("2"), bad], "merge": merge})
    assert outcome.is_error
    assert "The list was not changed." in outcome.output
    assert await todo.read() == [("1", "kept", "pending")]
    assert todo.store.writes == 1


async def test_long_content_is_cut_with_a_marker(todo: Lists) -> None:
    await todo(item("1", "x" * 50_001), item("2", "x" * 4_000))
    [(_, first, _), (_, second, _)] = await todo.read()
    assert len(first) == 4_000
    assert first.endswith(CUT_MARKER)
    assert second == "x" * 4_000


async def test_a_list_has_at_most_256_items_and_says_what_was_left_out(todo: Lists) -> None:
    answer = await todo(*(item(number) for number in range(5_000)))
    assert answer["summary"]["total"] == 256
    assert answer["note"] == "The list holds 256 items; the last 4744 were left out."
    answer = await todo({"id": "0", "status": "completed"}, item("new"), merge=True)
    assert answer["todos"][0]["status"] == "completed"
    assert answer["summary"]["total"] == 256


async def test_unclean_text_is_stored_clean(todo: Lists) -> None:
    await todo(item("1\x00", "a\x00\ud800"))
    assert await todo.read() == [("1\ufffd", "a\ufffd\ufffd", "pending")]


async def test_sessions_have_lists_of_their_own(todo: Lists) -> None:
    await todo(item("1"), session="sess_1")
    await todo(item("2"), session="sess_2")
    assert [entry[0] for entry in await todo.read("sess_1")] == ["1"]
    assert [entry[0] for entry in await todo.read("sess_2")] == ["2"]


async def test_calls_at_the_same_time_do_not_lose_each_others_items(todo: Lists) -> None:
    await asyncio.gather(*(todo(item(number), merge=True) for number in range(20)))
    assert [entry[0] for entry in await todo.read()] == [str(number) for number in range(20)]
