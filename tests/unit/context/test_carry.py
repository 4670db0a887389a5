import msgspec
import pytest

from app.context.carry import flush_request, todo_note
from app.context.cut import newest_user
from app.domain.compaction import Room
from app.domain.messages import Message, MessageKind, Role, ToolSpec
from tests.unit.context.rows import MODES, asked, body, problems, rounds, said, stored, user

MEMORY = ToolSpec(name="memory", description="Keeps facts.", parameters={"type": "object", "properties": {"text": {"type": "string"}}})


def items(*pairs: tuple[str, str]) -> bytes:
    return msgspec.json.encode(
        [{"id": str(number), "content": content, "status": status} for number, (content, status) in enumerate(pairs)]
    )


def test_open_items_come_back_as_a_note() -> None:
    note = todo_note(items(("a", "completed"), ("b", "pending"), ("c", "in_progress"), ("d", "cancelled")), 128_000)
    assert note is not None
    assert (note.role, note.kind) == (Role.USER, MessageKind.NOTE)
    assert str(note.content).splitlines()[1:] == ["- [ ] b", "- [>] c"]


@pytest.mark.parametrize("stored_items", [None, b"", b"[]", items(("a", "completed"), ("b", "cancelled"))])
def test_nothing_open_makes_no_note(stored_items: bytes | None) -> None:
    assert todo_note(stored_items, 128_000) is None


@pytest.mark.parametrize(("window", "size"), [(8_192, 1_638), (131_072, 8_000)])
def test_a_long_list_is_cut_and_says_so(window: int, size: int) -> None:
    note = todo_note(items(*[("x" * 4_000, "pending")] * 256), window)
    assert note is not None
    lines = str(note.content).splitlines()
    assert len(str(note.content).encode()) <= size + 250
    shown = sum(line.startswith("- [ ] ") for line in lines)
    assert shown > 2
    assert lines[-1] == f"(and {256 - shown} more: read them with the tool todo)"


@pytest.mark.parametrize("messages", [[user("u"), *rounds(2)], [user("u"), said("a"), user("v")], [user("u"), said("a")]])
def test_the_note_is_valid_behind_the_newest_row_and_is_not_the_user_s_message(messages: list[Message]) -> None:
    note = todo_note(items(("b", "pending")), 8_192)
    assert note is not None
    rows = stored([*messages, note])
    assert problems(asked(rows)) == []
    newest = newest_user(rows)
    assert newest is not None
    assert rows[newest].message is [message for message in messages if message.role is Role.USER][-1]


@pytest.mark.parametrize("room", [Room(8_192, 1_024), Room(8_192, 4_096), Room(131_072, 4_096)])
@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.5])
def test_the_flush_offers_only_the_memory_and_fits(room: Room, ratio: float) -> None:
    rows = stored([user("TASK"), *rounds(80, size=8_000)])
    request = flush_request(rows, MEMORY, room=room, ratio=ratio, first_attempt=3)
    assert request is not None
    assert (request.tools, request.first_attempt, request.options.tool_choice) == ((MEMORY,), 3, "auto")
    for api_mode in MODES:
        assert len(body(request, api_mode)) / 4 * max(1.0, ratio) + room.output_tokens <= room.window
        assert problems(request, api_mode) == []
    assert "r79 " in str(request.messages[0].content)
    assert request.input_tokens <= room.most


def test_a_model_without_room_is_not_asked() -> None:
    assert flush_request(stored([user("u")]), MEMORY, room=Room(4_096, 4_096), ratio=1.0, first_attempt=1) is None
